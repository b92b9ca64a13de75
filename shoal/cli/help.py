"""The help of each command, and of the flags of a system: what matters first, everything with ``--help-all``."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.settings.run_options import Flag

SUMMARY = """\
shoal: distributed deep reinforcement learning in PyTorch

  shoal train SYSTEM --env ID    train; `shoal systems` lists the systems
  shoal train pbt --of SYSTEM    train a population, whose members copy the best
  shoal tune SYSTEM --env ID     search for hyperparameters, by Optuna
  shoal resume RUN               go on from a run's newest checkpoint
  shoal eval RUN                 play whole episodes with a run's policy, or film one
  shoal watch [RUN|DIRECTORY...] a live page of runs; --terminal: the panel of one
  shoal report RUN...            one HTML file with curves, program, settings and events
  shoal plot RUN...              learning curves
  shoal compare RUN...           final return, speed, time to a threshold, what differs
  shoal export RUN --to F        the policy without Shoal
  shoal profile RUN|SYSTEM       what takes the time
  shoal plan SYSTEM --env ID     how fast it would be with more actors or machines, and what would hold it back
  shoal record SOURCE --out SET  whole episodes into a data set
  shoal draw SYSTEM              the program, before anything runs
  shoal config SYSTEM            every setting, what it means and where its value came from
  shoal systems                  the systems there are
  shoal envs [WORD]              the environments that are installed, with kind and presets
  shoal runs [DIRECTORY]         the runs there are, with score and state
  shoal zoo [NAME]               trained policies that ship with Shoal: `shoal eval zoo:NAME`
  shoal cluster check [SYSTEM]   nodes, resources and versions of a Ray cluster
  shoal completion SHELL         completion for bash, zsh or fish
  shoal --version

`shoal COMMAND --help` shows the flags of a command, `shoal train SYSTEM --help` those of a system.
SYSTEM is a name of `shoal systems`, a module of your own, or a path to its .py file.
Exit codes: 0 done, 1 the run failed, 2 the command was wrong, 130, 143 and 129 ended by Ctrl-C, SIGTERM and SIGHUP
(a checkpoint is written first; a second signal ends the run at once, without one).
"""
TRUST = """\
      --trust                   the run is yours, or you trust it: import the system or environment that it names,
                                follow its links, connect to what it names (docs/security.md)
"""
JSON = """\
      --json                    as JSON
"""
COMMANDS: dict[str, str] = {
    "train": """\
shoal train SYSTEM --env ID: train a system; every field of its config is a flag (shoal train SYSTEM --help)

      --preset P                auto (default: by the kind of environment), none, or one of the system's
      --config FILE             values from a TOML or YAML file, or those of the run in a directory; flags win over it
      --seeds N N ...           a run with each seed, and a comparison at the end
{options}
      --watch                   a live page of the run, as `shoal watch` shows it, until it ends
      --alert COMMAND           call COMMAND 'a sentence' when the run ends, fails, stalls or loses a replica;
                                --alert-after S: without progress (default 300)
      --json                    how it ended, as JSON
      --trust                   with --config RUN: import the code that it names
""",
    "pbt": """\
shoal train pbt --of SYSTEM --mutate FIELD,FIELD=LOW:HIGH: population-based training

      --population N            members (default 8)
      --interval STEPS          between two turns; default a twentieth of --steps
      --exploit E               truncation, tournament or ttest: who copies whom
      --explore E               perturb or resample: how copied hyperparameters change
      --share, --gap, --warm-up share of the members that copies and is copied; how far apart; steps before the first
      --eval-episodes N         a member's score, instead of its training episodes; --eval-max-steps N: of an episode
      --slots N                 members at a time; default one per core in serial, one in local
      --runtime R               of members: serial (default) or local
      --watch, --alert COMMAND, --alert-after S
                                as of shoal train, for all members together
other flags are the system's (shoal train SYSTEM --help)
""",
    "tune": """\
shoal tune SYSTEM --env ID: search for hyperparameters, by Optuna (extra shoal[tune]); each trial is a run

      --trials N                finished trials of the study (default 40); one that was killed goes on
      --search FIELD=LOW:HIGH,...
                                what is searched (default: learning_rate, entropy_cost, gamma, gae_lambda, noise_std,
                                those that the system has, from a tenth to ten times of what it would be)
      --study DIR               where trials and best.toml, for --config, are written; default studies/SYSTEM
      --slots N                 trials at a time (default 1)
      --seed N, --seconds S, --runtime R, --quiet
                                of the search and its runs
      --watch, --alert COMMAND, --alert-after S
                                as of shoal train, for all trials together
other flags are the system's (shoal train SYSTEM --help); a trial that lags behind the median of the others is ended
""",
    "resume": """\
shoal resume RUN: go on from a run's newest checkpoint

      --steps N, --seconds S, --until-return R
                                new limits, counted from the run's beginning
      --runtime local|ray, --address A, --quiet
{resumable}
                                these, and any field of its config that changes no shape, such as --learning-rate X,
                                are changed from there on
      --watch, --alert COMMAND, --alert-after S
                                as of shoal train
"""
    + TRUST,
    "cluster": """\
shoal cluster check [SYSTEM]: nodes, resources and versions of a Ray cluster (--address A), and what of a program
                                fits where
""",
    "profile": """\
shoal profile RUN|SYSTEM: run for --seconds S (default 15), say what takes the time, and write trace.json
"""
    + JSON
    + TRUST,
    "plan": """\
shoal plan SYSTEM --env ID: measure what the roles cost here, in about 20 s, and simulate the system at other sizes

      --actors N,N,...          numbers of actors (default 1,2,4,8,16; "1,2,4,..." goes on)
      --learners, --envs N,N,...
                                numbers of learners, and of environments per actor
      --target STEPS            the smallest number of actors that makes so many steps per second
      --machine FILE            a TOML file of other machines (docs/scaling.md); --nodes N,N,...: how many of them
      --costs FILE              costs that were measured before, instead of measuring them
      --save-costs FILE         where measured costs are kept (default costs.json)
      --seconds S               of measuring (default 14, beside the starts of processes)
      --seed N                  of the simulation (default 0)
      --out FILE.svg            a picture: steps per second against actors, and what holds them back
"""
    + JSON
    + """\
other flags are the system's (shoal train SYSTEM --help)
""",
    "systems": "shoal systems: the systems there are, by kind\n" + JSON,
    "config": """\
shoal config SYSTEM: every value, what it means and where it came from; --toml prints a file for --config,
                                --json what a program reads;
                                other flags are the system's (shoal train SYSTEM --help)
""",
    "draw": """\
shoal draw SYSTEM: the program: --format text|mermaid|svg, --output FILE.txt|.mmd|.svg;
                                other flags are the system's (shoal train SYSTEM --help)
""",
    "eval": """\
shoal eval RUN: play whole episodes with a run's policy, or with a saved one (a file, zoo:NAME)

      --episodes N              default 20
      --sampled                 actions as in training; without, the greedy ones
      --best                    the best parameters by the run's own evaluations, instead of the last
      --seed N, --envs N        default 0; environments side by side, default 8
      --eval-max-steps N        of an episode; 0, the default: 27,000 or the run's own limit
      --video FILE.mp4          film an episode (extra shoal[video])
"""
    + JSON
    + TRUST,
    "watch": """\
shoal watch [RUN|DIRECTORY ...]: a live page of runs (default: those in runs/), which only reads their files

      --port N                  default: the first free one from 8787 on
      --host H                  default 127.0.0.1; another makes the page reachable from elsewhere, by its token alone
      --open                    open the page in a browser
      --terminal                instead, the panel of one run in this terminal
""",
    "report": """\
shoal report RUN...: one self-contained HTML file of runs: curves, program, settings, machine, events

      --out FILE                default report.html
""",
    "plot": """\
shoal plot RUN...: learning curves, runs that differ only by seed together; of a population: its lineage

      --out FILE                .png, .svg or .pdf (default curves.png)
      --x AXIS                  steps, seconds or both
"""
    + TRUST,
    "compare": """\
shoal compare RUN...: final return, speed, time to --threshold R, probability of improvement, configurations
"""
    + JSON
    + TRUST,
    "record": """\
shoal record SOURCE --out SET: play whole episodes into a Minari data set (an ID or a directory)

  SOURCE is a run (--sampled, --best), a saved policy (a file, zoo:NAME; --sampled), MODULE:FUNCTION that takes an
  observation, or `keyboard`, a person (--keys left=0 right=1, --noop N, --wait); the last two play in --env ID
      --episodes N, --seed N    default 20; default 0
      --list SET                its episodes; --show SET --episode N: every step of one
"""
    + TRUST,
    "export": """\
shoal export RUN --to F: the policy of a run, or a saved one (a file, zoo:NAME), without Shoal

      --to F                    onnx, torch-export, torchscript or safetensors
      --out DIR, --best         where to write; the best parameters instead of the last
"""
    + JSON
    + TRUST,
    "envs": """\
shoal envs [WORD]: the environments that are installed and whose names contain WORD, with their kind and the systems
                                that have a preset for it
shoal envs PACKAGE: those that an installed package registers, which is imported, as --env takes them
"""
    + JSON,
    "runs": "shoal runs [DIRECTORY]: the runs in a directory (default runs), newest first\n"
    "      --trust                   the runs are yours: follow links in them\n" + JSON,
    "zoo": """\
shoal zoo [NAME]: trained policies that ship with Shoal, with their scores; of one: all that is known of how it was made

  zoo:NAME stands where a saved policy may: shoal eval zoo:NAME, shoal record zoo:NAME --out SET,
  shoal export zoo:NAME --to F, shoal train SYSTEM --init-from zoo:NAME, shoal.load("zoo:NAME")
"""
    + JSON,
    "completion": """\
shoal completion bash|zsh|fish: a script that completes commands, systems, flags and presets

  bash    eval "$(shoal completion bash)"       in ~/.bashrc
  zsh     eval "$(shoal completion zsh)"        in ~/.zshrc, after compinit
  fish    shoal completion fish | source        in ~/.config/fish/config.fish
""",
}
GROUPS: dict[str, tuple[str, ...]] = {  # what is shown first, in this order
    "environment": ("env", "env_kwargs", "max_episode_steps", "reward_scale", "reward_clip"),
    "run": ("steps", "actors", "learners", "envs", "total_envs", "unroll", "device"),
    "learning": (
        "learning_rate", "gamma", "n_step", "batch", "epochs", "minibatches", "gae_lambda", "clip", "entropy_cost",
        "value_cost", "target_period", "epsilon_end", "epsilon_steps", "noise", "noise_std", "pairs", "optimiser",
        "max_grad_norm", "normalise_reward", "critic", "sequence", "burn_in",
    ),
    "network": ("hidden", "torso", "core", "core_size", "dueling", "activation", "normalise_obs", "layer_norm"),
    "replay": (
        "replay", "min_replay", "samples_per_insert", "prioritised", "replay_shards", "demonstrations", "demo_ratio",
    ),
    "pictures": ("frame_skip", "frame_stack", "life_loss", "sticky_actions"),
}  # fmt: skip
LEFT = 30  # columns of a flag's name and values
TEXT = 32  # column at which the text of a command's flag begins


def of_command(command: str) -> str:
    """Return the help of one command, with the run options of the table."""
    from shoal.settings.run_options import OptionTable, flags, resumable

    known, may_change = flags(OptionTable), resumable(OptionTable)
    text = COMMANDS[command].replace("{options}\n", of_flags(known.values()))
    return text.replace("{resumable}\n", of_flags(f for f in known.values() if f.option in may_change))


def of_flags(flags: Iterable[Flag]) -> str:
    """Return the help of run options: of each flag its name, its meaning and its default."""
    lines = []
    for flag in flags:
        default = f"{flag.default:g}" if isinstance(flag.default, (int, float)) else flag.default
        text = f"{flag.doc} (default {default})" if default and flag.type is not bool else flag.doc
        lines += textwrap.wrap(
            f"{f'      --{flag.name}{_value(flag.type)} ':<{TEXT}}{text}", 120, subsequent_indent=" " * TEXT
        )
    return "".join(f"{line}\n" for line in lines)


def _value(hint: Any) -> str:
    """Return what stands behind a flag whose words have this type."""
    plain = getattr(hint, "__origin__", hint)
    return {bool: "", int: " N", float: " X", list: " TEXT..."}.get(plain, " TEXT")


def of_system(
    title: str, values: Mapping[str, Any], hints: Mapping[str, Any], docs: Mapping[str, str], everything: bool
) -> str:
    """The flags of a system: one line each, in groups, the important ones; or all, with the whole of their texts.

    values: what each would be, by field; hints: its type; docs: its meaning.
    """
    from shoal.settings.config import show
    from shoal.settings.flags import describe, flag_name

    width = max(60, min(120, shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 100))

    def shown(name: str) -> list[str]:
        return _flag(flag_name(name), describe(hints[name]), docs.get(name, ""), show(values[name]), width, everything)

    lines, first = [title], {name for names in GROUPS.values() for name in names}
    for group, names in GROUPS.items():
        if held := [name for name in names if name in values]:
            lines += ["", f"{group}:", *(line for name in held for line in shown(name))]
    rest = [name for name in values if name not in first]
    if everything:
        lines += ["", "everything else:", *(line for name in rest for line in shown(name))]
    else:
        lines += ["", f"{len(rest)} more flags: --help-all. Those of the command itself: shoal train --help"]
    return "\n".join(lines) + "\n"


def _flag(flag: str, expected: str, doc: str, value: str, width: int, whole: bool) -> list[str]:
    """A flag's line or, with ``whole``, lines: its name, its meaning, the value that it would have."""
    head, value = f"  {flag}", f"[{value}]"
    if not whole:
        sentence = doc.partition("; ")[0].rstrip(".")
        room = width - LEFT - len(value) - 2
        return [f"{head:<{LEFT}}{textwrap.shorten(sentence, max(20, room), placeholder='...')} {value}"]
    text = f"{doc} ({expected}) {value}"
    begin = f"{head:<{LEFT}}" if len(head) < LEFT else f"{head}  "
    return textwrap.wrap(text, width, initial_indent=begin, subsequent_indent=" " * LEFT)
