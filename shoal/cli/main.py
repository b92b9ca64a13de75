"""The command ``shoal``. Exit codes: 0 done, 1 the run failed, 2 the command was wrong, 129, 130 and 143 signals."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.terminal import plain_streams, styled
from shoal.torchrun.place import place, wait_for_the_first

if TYPE_CHECKING:
    from shoal.program import Program
    from shoal.settings.flags import Groups
    from shoal.systems import System

USAGE = """\
shoal: distributed deep reinforcement learning in PyTorch

  shoal train SYSTEM --env ID   train; any field of the system's config is a flag (shoal config SYSTEM)
      --preset P                auto (default: by the kind of environment), none, or one of the system's
      --config FILE             values from a TOML or YAML file, or those of the run in a directory; flags win over it
      --runtime R               local (default: processes), serial (one process, deterministic) or ray (processes on
                                a cluster: --address auto, HOST:PORT or ray://HOST:PORT; without, a Ray of its own);
                                `torchrun --nproc-per-node N -m shoal train dd-ppo ...`: each process is a rank
      --run-dir DIR             where to write; default runs/SYSTEM-ENV-TIME-SEED
      --seconds S               stop after S seconds
      --until-return R          stop when the mean return of 100 episodes reaches R
      --hang-timeout S          replace a process that makes no progress for S seconds (default 60; 0: never)
      --checkpoint-every S      save everything every S seconds (default 300; 0: only at the end)
      --checkpoint-replay-gb G  leave replays larger than this out of checkpoints (default 8)
      --log BACKEND...          metrics also to tensorboard, wandb or mlflow (extras of these names)
      --init-from RUN|FILE      begin with the parameters of a run, or of a file that Policy.save wrote
      --seed N                  default 0
      --eval-every N            evaluate the newest parameters every N environment steps, in a process of its own,
                                and keep the best; --eval-episodes N (default 10), --eval-sampled, --eval-video (one
                                episode of each, in videos/)
      --quiet                   show nothing
  shoal train pbt --of SYSTEM --mutate FIELD,FIELD=LOW:HIGH
                                population-based training: --population N (default 8), --interval STEPS (between two
                                turns; default a twentieth of --steps), --exploit truncation|tournament|ttest,
                                --explore perturb|resample, --share, --gap, --warm-up, --eval-episodes N (a
                                member's score, instead of its training episodes), --slots N (members at a time;
                                default one per core in serial, one in local),
                                --runtime serial|local (of members; default serial); other flags are the system's
  shoal resume RUN              go on from a run's newest checkpoint: --steps N, --seconds S, --until-return R
                                (new limits, counted from the run's beginning), --runtime local|ray, --address A,
                                --quiet; --hang-timeout, --checkpoint-every, --checkpoint-replay-gb, --log, --eval-...,
                                and any field of its config that changes no shape, such as --learning-rate X, are
                                changed from there on
  shoal cluster check [SYSTEM]  nodes, resources and versions of a Ray cluster (--address A), and what of a program
                                fits where
  shoal profile RUN|SYSTEM      run for --seconds S (default 15), say what takes the time, and write trace.json
  shoal systems                 the systems there are
  shoal config SYSTEM           every value, what it means and where it came from; --toml prints a file
  shoal draw SYSTEM             the program: --format text|mermaid|svg, --output FILE.txt|.mmd|.svg
  shoal eval RUN                play whole episodes with a run's policy: --episodes N (default 20), --sampled,
                                --seed N, --envs N (default 8), --best (instead of the last parameters),
                                --video FILE.mp4
  shoal plot RUN...             learning curves, runs that differ only by seed together: --out FILE.png|.svg|.pdf
                                (default curves.png), --x steps|seconds|both; of a population: its lineage
  shoal compare RUN...          final return, speed, time to --threshold R, probability of improvement, configs
  shoal record SOURCE --out SET play whole episodes into a Minari data set (an ID or a directory): --episodes N
                                (default 20), --seed N. SOURCE is a run (--sampled, --best), MODULE:FUNCTION that
                                takes an observation, or `keyboard`, a person (--keys left=0 right=1, --noop N,
                                --wait); the last two play in --env ID
  shoal record --list SET       its episodes; --show SET --episode N: every step of one
  shoal export RUN --to F       the policy without Shoal: onnx, torchscript or safetensors; --out DIR, --best
  --trust                       with a RUN: it is yours, or you trust it: import the system or environment that it
                                names, follow its links, connect to what it names (docs/security.md)
  shoal --version
  shoal train SYSTEM --help     the flags of a system, each with its meaning and the value it would have

SYSTEM is a name of `shoal systems`, a module of your own, or a path to its .py file.
Exit codes: 0 done, 1 the run failed, 2 the command was wrong, 130, 143 and 129 ended by Ctrl-C, SIGTERM and SIGHUP
(a checkpoint is written first; a second signal ends the run at once, without one).
"""

REFUSED = {  # what a machine refuses: a full or read-only disk, rights, descriptors, a directory that is gone
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE,
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG,
}  # fmt: skip
HELP = ("-h", "--help")
OF_SYSTEMS = ("train", "config", "draw")  # commands whose flags are also the fields of a system's config


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    with plain_streams():
        return _main(list(sys.argv[1:] if argv is None else argv))


def _main(args: list[str]) -> int:
    wants_help = not args or args[0] == "help" or any(word in HELP for word in args)
    if wants_help and (len(args) < 3 or args[0] not in OF_SYSTEMS or args[1] == "pbt"):
        print(USAGE, end="")
        return 0
    if args[0] == "--version":
        from shoal import __version__

        print(f"shoal {__version__}")
        return 0
    if args[0] not in COMMANDS:
        near = get_close_matches(args[0], COMMANDS, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        return _fail(f"unknown command '{args[0]}'{hint} (`shoal --help` lists all)", 2)
    if (
        args[0] == "train" and not wants_help and not {"serial", "ray"} & {*args} and place() is None
    ):  # not for resume: what it needs is in the run's directory
        from shoal.local import processes

        processes.prepare()  # imports torch in the background while this process imports it too
    from shoal.api import ShoalError, Stopped, UsageError, WiringError

    try:
        return _help(args[0], args[1:]) if wants_help else COMMANDS[args[0]](args[1:])
    except (UsageError, WiringError) as error:
        wait_for_the_first()
        return _fail(str(error), 2)
    except Stopped:
        return 1  # another rank says why
    except ShoalError as error:
        return _fail(str(error), 1)
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        return _fail(f"{error.strerror}" + (f": '{error.filename}'" if error.filename else ""), 1)


def _fail(sentence: str, code: int) -> int:
    print(f"shoal: {sentence}", file=sys.stderr)
    return code


def _help(command: str, args: list[str]) -> int:
    """The flags of a system, each with its meaning and the value that it would have."""
    import contextlib
    import dataclasses
    from copy import copy
    from functools import partial
    from typing import Annotated

    import tyro

    from shoal.run.flags import resolve_flags
    from shoal.settings.config import field_docs, show
    from shoal.settings.flags import field_name, ranged, short_name

    name, system, groups = _system([word for word in args if word not in HELP], command)
    known = {"preset", "config", "trust", *(field.name for field in dataclasses.fields(system.Config))}
    of_system = [g for g in groups if {key := field_name(g[0]), key.removeprefix("no_")} & known]
    _, resolved = resolve_flags(name, system, of_system, {})
    docs, hints = field_docs(system.Config), ranged(system.Config)
    values = {  # a dictionary as text, for tyro shows none
        key: (str, show(value)) if isinstance(value, dict) else (hints[key], value)
        for key, value in resolved.shown().items()
    }
    shown = [
        (
            key,
            Annotated[hint, tyro.conf.arg(help=docs.get(key, ""))],
            dataclasses.field(default_factory=partial(copy, v)),
        )
        for key, (hint, v) in values.items()
    ]
    print(f"The flags of the command itself are shown by `shoal --help`; preset: {resolved.preset} ({resolved.why}).\n")
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(styled(sys.stdout)):
        flags = dataclasses.make_dataclass("Flags", shown)
        tyro.cli(flags, prog=f"shoal {command} {short_name(name)}", description="", args=["--help"])
    return 0


# -------------------------------------------------------------------------------------- commands
def train(args: list[str]) -> int:
    if args[:1] == ["pbt"]:
        from shoal.cli.population import train as train_population

        return train_population(args[1:])
    from shoal.cli.resume import report
    from shoal.run import RunOptions, start
    from shoal.run.flags import resolve_flags
    from shoal.run.options import FLAGS
    from shoal.run.runtimes import RUNTIMES
    from shoal.run.training import as_json
    from shoal.run.trust import note
    from shoal.settings.flags import choice

    name, system, groups = _system(args, "train")
    opts, resolved = resolve_flags(name, system, groups, FLAGS)
    choice("--runtime", opts.get("runtime", RunOptions.runtime), tuple(RUNTIMES))
    options = RunOptions.from_flags(opts)
    note(name, as_json(resolved))
    return report(start(name, system, resolved, options, trust=bool(opts.get("trust"))), options.quiet)


def resume(args: list[str]) -> int:
    from shoal.cli.resume import command

    return command(args)


def profile(args: list[str]) -> int:
    from shoal.analysis.profile import command

    return command(args)


def list_systems(args: list[str]) -> int:
    import ast
    from importlib.util import find_spec

    from shoal.settings.flags import options, split
    from shoal.systems import SYSTEMS

    options(split(args), {}, "systems")
    for name, module in SYSTEMS.items():
        spec = find_spec(module)
        if spec is not None and spec.origin is not None:
            doc = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
            print(f"{name:<16}{doc.partition(chr(10))[0]}")
    return 0


def draw(args: list[str]) -> int:

    from shoal.api import UsageError
    from shoal.envs import looking
    from shoal.local.apart import apart
    from shoal.paths import require_folder
    from shoal.program import draw
    from shoal.program.draw_svg import svg
    from shoal.run.flags import resolve_flags
    from shoal.settings.flags import choice

    name, system, groups = _system(args, "draw")
    opts, resolved = resolve_flags(name, system, groups, {"format": str, "output": str})
    formats: dict[str, Callable[[Program], str]] = {
        "text": draw.text, "mermaid": draw.mermaid, "svg": svg,
    }  # fmt: skip
    output = opts.get("output")
    endings = {".svg": "svg", ".mmd": "mermaid", ".txt": "text", "": "text"}
    ending = Path(output).suffix if output else ""
    if "format" not in opts and ending not in endings:
        raise UsageError(f"--output expects a name that ends in .txt, .mmd or .svg, or --format, found '{output}'")
    kind = opts.get("format") or endings[ending]
    choice("--format", kind, tuple(formats))
    with looking(apart):
        program = system.program(resolved.cfg)
    program.validate()
    picture = formats[kind](program)
    if output:
        require_folder(Path(output))
        Path(output).write_text(picture, encoding="utf-8")
    else:
        print(picture, end="")
    return 0


def config(args: list[str]) -> int:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from shoal.run.flags import resolve_flags
    from shoal.settings.config import field_docs, show, to_toml
    from shoal.settings.flags import short_name
    from shoal.untrusted import one_line

    name, system, groups = _system(args, "config")
    opts, resolved = resolve_flags(name, system, groups, {"toml": bool})
    if opts.get("toml"):
        print(to_toml(resolved, name), end="")
        return 0
    docs = field_docs(type(resolved.cfg))
    table = Table(box=None, padding=(0, 2, 0, 0), title=None)
    for column in ("field", "value", "from", "meaning"):
        table.add_column(column, overflow="fold", no_wrap=column == "field")
    for key, value in resolved.shown().items():
        origin = resolved.origins[key]
        style = "dim" if origin == "default" else "bold"
        told, origin = escape(one_line(show(value))), escape(one_line(origin))
        table.add_row(key, told, f"[{style}]{origin}[/{style}]", escape(docs.get(key, "")))
    console = Console(file=styled(sys.stdout), width=None if sys.stdout.isatty() else 200)
    heading = one_line(f"{short_name(name)}, preset {resolved.preset} ({resolved.why})")
    console.print(heading, highlight=False, markup=False)
    console.print(table)
    return 0


def cluster(args: list[str]) -> int:
    from shoal.cli.cluster import command

    return command(args)


def record(args: list[str]) -> int:
    from shoal.cli.record import command

    return command(args)


def of_runs(command: str) -> Callable[[list[str]], int]:
    """A command of ``cli.runs``, imported when it is used."""

    def call(args: list[str]) -> int:
        from shoal.cli import runs as cli_runs

        run: Callable[[list[str]], int] = getattr(cli_runs, command)
        return run(args)

    return call


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": train, "resume": resume, "systems": list_systems, "config": config, "draw": draw, "profile": profile,
    "cluster": cluster,
    "eval": of_runs("evaluate"),
    "plot": of_runs("plot"),
    "compare": of_runs("compare"),
    "export": of_runs("export"),
    "record": record,
}  # fmt: skip


# ------------------------------------------------------------------------------------- arguments
def _system(args: list[str], command: str) -> tuple[str, System, Groups]:
    """(name of the system, its module, the flags after it)."""
    from shoal import systems
    from shoal.api import UsageError
    from shoal.settings.flags import split

    if not args or args[0].startswith("--"):
        example = f"shoal {command} dqn" + (" --env CartPole-v1" if command == "train" else "")
        raise UsageError(f"shoal {command} needs a system first, for example: {example}")
    return args[0], systems.load(args[0]), split(args[1:])
