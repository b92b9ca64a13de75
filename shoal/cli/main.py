"""The command ``shoal``. Exit codes: 0 done, 1 the run failed, 2 the command was wrong, 129, 130 and 143 signals."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.terminal import OFF_TERMINAL, plain_streams, print_table, styled
from shoal.torchrun.place import place, wait_for_the_first

if TYPE_CHECKING:
    from shoal.program import Program
    from shoal.settings.flags import Groups
    from shoal.systems import System

REFUSED = {  # what a machine refuses: a full or read-only disk, rights, descriptors, a directory that is gone
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE,
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP,
}  # fmt: skip
MAX_VALUE = 2_000  # characters of a setting in a table
MAX_SENTENCE = 4_000  # characters of what is said of a failure
HELP = ("-h", "--help", "--help-all")
OF_SYSTEMS = ("train", "config", "draw", "plan")  # commands whose flags are also the fields of a system's config


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    with plain_streams():
        return _main(list(sys.argv[1:] if argv is None else argv))


def _main(args: list[str]) -> int:
    if args[:1] == ["help"]:
        args = [*args[1:], "--help"]
    wants_help = not args or any(word in HELP for word in args)
    if wants_help and (plain := _help_without_system(args)) is not None:
        print(plain, end="")
        return 0
    if args[0] in ("--version", "version", "-V"):
        from shoal import __version__

        print(f"shoal {__version__}")
        return 0
    from shoal.cli import word_order

    if not (wants_help and args[0] in COMMANDS) and (sentence := word_order.advice(args, COMMANDS)) is not None:
        return _fail(sentence, 2)
    if args[0] not in COMMANDS:
        from shoal.settings import other_names
        from shoal.settings.nearest import did_you_mean

        elsewhere = other_names.COMMANDS.get(args[0].lower())
        hint = f"; did you mean '{elsewhere}'?" if elsewhere else did_you_mean(args[0], tuple(COMMANDS))
        return _fail(f"unknown command '{args[0]}'{hint} (`shoal --help` lists all)", 2)
    from shoal.errors import ShoalError, Stopped, UsageError, WiringError, out_of_memory

    try:
        if wants_help:
            return _help(args[0], args[1:])
        _begin(*args)
        return COMMANDS[args[0]](args[1:])
    except (UsageError, WiringError) as error:
        wait_for_the_first()
        return _fail(str(error), 2)
    except Stopped:
        return 1  # another rank says why
    except ShoalError as error:
        return _fail(str(error), 1)
    except (MemoryError, RuntimeError) as error:
        if (sentence := out_of_memory(error)) is None:
            raise
        return _fail(sentence, 1)
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        return _fail(f"{error.strerror}" + (f": '{error.filename}'" if error.filename else ""), 1)


def _begin(command: str, *args: str) -> None:
    """Refuse what can be refused before anything large is imported, and let torch be imported for the replicas while
    this process imports it too."""
    from shoal.beside import ignore_matplotlibrc
    from shoal.cli import early

    early.check(command, [*args])
    ignore_matplotlibrc()
    if command != "train":
        return
    if not {"serial", "ray"} & {*args} and place() is None:  # for resume, what it needs is in the run's directory
        from shoal.local import processes

        processes.prepare()


def _fail(sentence: str, code: int) -> int:
    more = "..." if len(sentence) > MAX_SENTENCE else ""  # it may quote a name of megabytes
    print(f"shoal: {sentence[:MAX_SENTENCE]}{more}", file=sys.stderr)
    return code


def _help_without_system(args: list[str]) -> str | None:
    """The help that needs no system: of a command or, where none is named, of all. None: that of a system is asked
    for."""
    from shoal.cli import help as texts

    words = [word for word in args if word not in HELP]
    command = words[0] if words else ""
    if words[:2] == ["train", "pbt"]:
        command = "pbt"
    if command not in texts.COMMANDS:
        return texts.SUMMARY if not words else None
    of_a_system = command in OF_SYSTEMS and len(words) > 1 and not words[1].startswith("-")
    return None if of_a_system else texts.of_command(command)


def _help(command: str, args: list[str]) -> int:
    """Print the flags of a system, each with its meaning and the value that it would have."""
    import dataclasses

    from shoal.cli import help as texts
    from shoal.run.flags import resolve_flags
    from shoal.settings.field_docs import field_docs
    from shoal.settings.flags import field_name, ranged, short_name

    name, system, groups = _system([word for word in args if word not in HELP], command)
    known = {"preset", "config", "trust", *(field.name for field in dataclasses.fields(system.Config))}
    of_system = [g for g in groups if {key := field_name(g[0]), key.removeprefix("no_")} & known]
    _, resolved = resolve_flags(name, system, of_system, {})
    title = f"shoal {command} {short_name(name)}, preset {resolved.preset} ({resolved.why})"
    hints, docs = ranged(system.Config), field_docs(system.Config)
    print(texts.of_system(title, resolved.shown(), hints, docs, "--help-all" in args), end="")
    return 0


# -------------------------------------------------------------------------------------- commands
def train(args: list[str]) -> int:
    if args[:1] == ["pbt"]:
        from shoal.cli.population import train as train_population

        return train_population(args[1:])
    from shoal.cli import seeds
    from shoal.cli.resume import report
    from shoal.run import Run, RunOptions, monitors, start
    from shoal.run.flags import resolve_flags
    from shoal.run.options import FLAGS
    from shoal.run.runtimes import check_runtime
    from shoal.run.training import as_json
    from shoal.run.trust import note

    name, system, groups = _system(args, "train")
    opts, resolved = resolve_flags(name, system, groups, {**FLAGS, **monitors.FLAGS, "seeds": list, "json": bool})
    check_runtime(opts.get("runtime", RunOptions.runtime))
    several, as_text = seeds.read(opts), not opts.pop("json", False)
    chosen = monitors.read(opts)
    options = RunOptions.from_flags(opts if as_text else {"quiet": True, **opts})
    note(name, as_json(resolved), options.named())

    def run(options: RunOptions) -> Run:
        return start(name, system, resolved, options, trust=bool(opts.get("trust")), monitors=chosen)

    def done(run: Run) -> int:
        return report(run, not options.shows, not as_text)

    return done(run(options)) if several is None else seeds.train(options, several, run, done)


def resume(args: list[str]) -> int:
    from shoal.cli.resume import command

    return command(args)


def profile(args: list[str]) -> int:
    from shoal.analysis.profile import command

    return command(args)


def draw(args: list[str]) -> int:

    from shoal.api import UsageError
    from shoal.envs import looking
    from shoal.local.apart import apart
    from shoal.paths import require_folder
    from shoal.program import draw
    from shoal.program.draw_svg import svg
    from shoal.records.atomic_write import write_output
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
        write_output(Path(output), picture)
    else:
        print(picture, end="")
    return 0


def config(args: list[str]) -> int:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from shoal.run.flags import resolve_flags
    from shoal.settings.config import show
    from shoal.settings.field_docs import field_docs
    from shoal.settings.flags import short_name
    from shoal.settings.toml_text import to_toml
    from shoal.untrusted import one_line

    name, system, groups = _system(args, "config")
    opts, resolved = resolve_flags(name, system, groups, {"toml": bool, "json": bool})
    if opts.get("json"):
        import json

        fields = {key: {"value": value, "from": resolved.origins[key]} for key, value in resolved.shown().items()}
        print(json.dumps({"system": name, "preset": resolved.preset, "why": resolved.why, "fields": fields}, indent=1))
        return 0
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
        text, origin = one_line(show(value)), escape(one_line(origin))
        told = escape(text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}... (--toml shows all of it)")
        table.add_row(key, told, f"[{style}]{origin}[/{style}]", escape(docs.get(key, "")))
    console = Console(file=styled(sys.stdout), width=None if sys.stdout.isatty() else OFF_TERMINAL)
    heading = one_line(f"{short_name(name)}, preset {resolved.preset} ({resolved.why})")
    console.print(heading, highlight=False, markup=False)
    print_table(table)
    return 0


def plan(args: list[str]) -> int:
    from shoal.planning.command import command

    return command(args)


def cluster(args: list[str]) -> int:
    from shoal.cli.cluster import command

    return command(args)


def record(args: list[str]) -> int:
    from shoal.cli.record import command

    return command(args)


def tune(args: list[str]) -> int:
    from shoal.cli.tune import command

    return command(args)


def watch(args: list[str]) -> int:
    from shoal.cli.watch import command

    return command(args)


def report(args: list[str]) -> int:
    from shoal.cli.watch import report as command

    return command(args)


def of_runs(command: str) -> Callable[[list[str]], int]:
    """A command of ``cli.runs``, imported when it is used."""

    def call(args: list[str]) -> int:
        from shoal.cli import runs as cli_runs

        run: Callable[[list[str]], int] = getattr(cli_runs, command)
        return run(args)

    return call


def of_listing(command: str) -> Callable[[list[str]], int]:
    """A command of ``cli.listing``, imported when it is used."""

    def call(args: list[str]) -> int:
        from shoal.cli import listing

        run: Callable[[list[str]], int] = getattr(listing, command)
        return run(args)

    return call


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": train, "resume": resume, "config": config, "draw": draw, "profile": profile, "plan": plan,
    "cluster": cluster,
    "systems": of_listing("systems"),
    "eval": of_runs("evaluate"),
    "plot": of_runs("plot"),
    "compare": of_runs("compare"),
    "export": of_runs("export"),
    "record": record, "tune": tune, "watch": watch, "report": report,
    "envs": of_listing("environments"),
    "runs": of_listing("runs"),
    "zoo": of_listing("zoo"),
    "completion": of_listing("completion"),
}  # fmt: skip


# ------------------------------------------------------------------------------------- arguments
def _system(args: list[str], command: str) -> tuple[str, System, Groups]:
    """(name of the system, its module, the flags after it)."""
    from shoal import systems
    from shoal.api import UsageError
    from shoal.settings.flags import split
    from shoal.settings.other_names import ALIASES

    if not args or args[0].startswith("-"):
        example = f"shoal {command} dqn" + (" --env CartPole-v1" if command == "train" else "")
        raise UsageError(f"shoal {command} needs a system first, for example: {example}")
    name = ALIASES.get(args[0], args[0])
    return name, systems.load(name), split(args[1:])
