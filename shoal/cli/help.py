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

  shoal train SYSTEM --env ID    train a system; `shoal systems` lists them
  shoal train pbt --of SYSTEM    train a population whose worse members copy the better ones
  shoal tune SYSTEM --env ID     search for hyperparameters with Optuna
  shoal resume RUN               continue a run from its newest checkpoint
  shoal eval RUN                 play whole episodes with a run's policy, or film one
  shoal watch [RUN|DIRECTORY...] serve a live page of runs; --terminal: show one run's panel in the terminal
  shoal report RUN...            write one HTML file with curves, program, settings and events
  shoal plot RUN...              draw learning curves
  shoal compare RUN...           compare final returns, speed, time to a threshold and settings
  shoal export RUN --to F        write the policy in a format that needs no Shoal
  shoal profile RUN|SYSTEM       show how each role spends its time
  shoal plan SYSTEM --env ID     predict the speed with more actors or machines, and the bottleneck
  shoal record SOURCE --out SET  record whole episodes into a data set
  shoal draw SYSTEM              draw the program, without running it
  shoal config SYSTEM            show every setting, its meaning and the source of its value
  shoal systems                  list the systems
  shoal envs [WORD]              list the installed environments, with kind and presets
  shoal runs [DIRECTORY]         list the runs in a directory, with score and state
  shoal zoo [NAME]               list the trained policies that ship with Shoal: `shoal eval zoo:NAME`
  shoal cluster check [SYSTEM]   show nodes, resources and versions of a Ray cluster
  shoal completion SHELL         print completion for bash, zsh or fish
  shoal --version

`shoal COMMAND --help` shows the flags of a command, `shoal train SYSTEM --help` those of a system.
SYSTEM is a name that `shoal systems` lists, your own module, or a path to its .py file.
Exit codes: 0: done; 1: the run failed; 2: the command was wrong; 130, 143, 129: ended by Ctrl-C, SIGTERM, SIGHUP.
A run that is ended by a signal first writes a checkpoint. A second signal ends it at once, without one.
"""
TRUST = """\
      --trust                   trust the run: import the system or environment that it names, follow its links, and
                                connect to the services that it names (docs/security.md)
"""
JSON = """\
      --json                    print JSON
"""
COMMANDS: dict[str, str] = {
    "train": """\
shoal train SYSTEM --env ID: train a system; every field of its config is a flag (shoal train SYSTEM --help)

      --preset P                auto (the default: chosen by the kind of environment), none, or a preset of the system
      --config FILE             take values from a TOML or YAML file, or from a run's directory; flags override them
      --seeds N N ...           train one run with each seed, and compare them at the end
{options}
      --watch                   serve a live page of the run until it ends, as `shoal watch` does
      --alert COMMAND           call COMMAND 'a sentence' when the run ends, fails, stalls or loses a replica
      --alert-after S           seconds without progress after which a run counts as stalled (default 300)
      --json                    print how the run ended, as JSON
      --trust                   with --config RUN: import the code that the run names
""",
    "pbt": """\
shoal train pbt --of SYSTEM --mutate FIELD,FIELD=LOW:HIGH: population-based training

      --population N            members (default 8)
      --interval STEPS          environment steps between two turns (default a twentieth of --steps)
      --exploit E               how members copy others: truncation, tournament or ttest
      --explore E               how copied hyperparameters change: perturb or resample
      --share X                 share of the members that copies, and share that is copied
      --gap X                   smallest difference of scores for a copy
      --warm-up STEPS           environment steps before the first copy
      --eval-episodes N         score a member by N evaluation episodes instead of its training episodes
      --eval-max-steps N        agent steps after which such an episode ends
      --slots N                 members that train at the same time (default one per core in serial, one in local)
      --runtime R               runtime of the members: serial (default) or local
      --watch, --alert COMMAND, --alert-after S
                                as in shoal train, for all members together
other flags are the system's (shoal train SYSTEM --help)
""",
    "tune": """\
shoal tune SYSTEM --env ID: search for hyperparameters with Optuna (extra shoal[tune]); each trial is a run

      --trials N                finished trials of the study (default 40); a trial that was killed is continued
      --search FIELD=LOW:HIGH,...
                                fields to search and their ranges (default: learning_rate, entropy_cost, gamma,
                                gae_lambda and noise_std, if the system has them, from a tenth to ten times their value)
      --study DIR               directory of the trials and of best.toml, a file for --config (default studies/SYSTEM)
      --slots N                 trials that run at the same time (default 1)
      --seed N, --seconds S, --runtime R, --quiet
                                as in shoal train, for the search and its runs
      --watch, --alert COMMAND, --alert-after S
                                as in shoal train, for all trials together
other flags are the system's (shoal train SYSTEM --help); a trial that is behind the median of the others is ended
""",
    "resume": """\
shoal resume RUN: continue a run from its newest checkpoint

      --steps N, --seconds S, --until-return R
                                new limits, counted from the beginning of the run
      --runtime local|ray, --address A, --quiet
{resumable}
                                these and any field of the config that changes no shape, such as --learning-rate X,
                                may change; the new value counts from the checkpoint on
      --watch, --alert COMMAND, --alert-after S
                                as in shoal train
"""
    + TRUST,
    "cluster": """\
shoal cluster check [SYSTEM]: show nodes, resources and versions of a Ray cluster (--address A), and on which node each
                                role of a program would run
""",
    "profile": """\
shoal profile RUN|SYSTEM: run for --seconds S (default 15), show how each role spends its time, and write trace.json
"""
    + JSON
    + TRUST,
    "plan": """\
shoal plan SYSTEM --env ID: measure the time of each role here, in about 20 s, and simulate the system at other sizes

      --actors N,N,...          numbers of actors (default 1,2,4,8,16; "1,2,4,..." continues the series)
      --learners, --envs N,N,...
                                numbers of learners, and of environments per actor
      --target STEPS            find the smallest number of actors that makes this many steps per second
      --machine FILE            a TOML file that describes other machines (docs/scaling.md)
      --nodes N,N,...           numbers of nodes of that file
      --costs FILE              read costs that were measured before, instead of measuring
      --save-costs FILE         file for measured costs (default costs.json)
      --seconds S               seconds of measuring, without the start of processes (default 14)
      --seed N                  seed of the simulation (default 0)
      --out FILE.svg            draw steps per second against actors, with the bottleneck
"""
    + JSON
    + """\
other flags are the system's (shoal train SYSTEM --help)
""",
    "systems": "shoal systems: list the systems by kind\n" + JSON,
    "config": """\
shoal config SYSTEM: show every setting, its meaning and the source of its value

      --toml                    print a file for --config
      --json                    print JSON
other flags are the system's (shoal train SYSTEM --help)
""",
    "draw": """\
shoal draw SYSTEM: draw the program, without running it

      --format F                text, mermaid or svg
      --output FILE             file to write: .txt, .mmd or .svg
other flags are the system's (shoal train SYSTEM --help)
""",
    "eval": """\
shoal eval RUN: play whole episodes with a run's policy, or with a saved one (a file, zoo:NAME)

      --episodes N              number of episodes (default 20)
      --sampled                 draw actions as in training, instead of the greedy ones
      --best                    use the best parameters of the run's own evaluations, instead of the last
      --seed N                  seed of environments and actions (default 0)
      --envs N                  environments that are stepped together (default 8)
      --eval-max-steps N        agent steps after which an episode ends; 0 (default): 27,000 or the run's own limit
      --video FILE.mp4          film an episode (extra shoal[video])
"""
    + JSON
    + TRUST,
    "watch": """\
shoal watch [RUN|DIRECTORY ...]: serve a live page of runs (default: those in runs/); it only reads their files

      --port N                  port of the page (default: the first free port from 8787 on)
      --host H                  address to listen on (default 127.0.0.1); with another, everyone who has the page's
                                token can reach it
      --open                    open the page in a browser
      --terminal                show the panel of one run in this terminal, instead of a page
""",
    "report": """\
shoal report RUN...: write one self-contained HTML file with curves, program, settings, machine and events

      --out FILE                file to write (default report.html)
""",
    "plot": """\
shoal plot RUN...: draw learning curves, with one band for runs that differ only by seed; of a population, its lineage

      --out FILE                file to write: .png, .svg or .pdf (default curves.png)
      --x AXIS                  horizontal axis: steps, seconds or both
"""
    + TRUST,
    "compare": """\
shoal compare RUN...: compare final returns, speed, time to --threshold R, probability of improvement and settings
"""
    + JSON
    + TRUST,
    "record": """\
shoal record SOURCE --out SET: play whole episodes into a Minari data set (an ID or a directory)

  SOURCE is one of:
      RUN                       a run's policy (--sampled, --best)
      FILE, zoo:NAME            a saved policy (--sampled)
      MODULE:FUNCTION           a function from an observation to an action, in --env ID
      keyboard                  a person, in --env ID (--keys left=0 right=1, --noop N, --wait)
  flags:
      --episodes N              number of episodes (default 20)
      --seed N                  seed of environments and actions (default 0)
      --list SET                list the episodes of a data set
      --show SET --episode N    show every step of an episode
"""
    + TRUST,
    "export": """\
shoal export RUN --to F: write the policy of a run, or a saved one (a file, zoo:NAME), in a format that needs no Shoal

      --to F                    format: onnx, torch-export, torchscript or safetensors
      --out DIR                 directory to write to
      --best                    use the best parameters of the run's own evaluations, instead of the last
"""
    + JSON
    + TRUST,
    "envs": """\
shoal envs [WORD]: list the installed environments whose names contain WORD, or whose kind it is, with the systems that
                                have a preset for that kind
shoal envs PACKAGE: list those that an installed package registers, as --env takes them (imports the package)
"""
    + JSON,
    "runs": "shoal runs [DIRECTORY]: list the runs in a directory (default runs), newest first\n"
    "      --trust                   trust the runs: follow links in them\n" + JSON,
    "zoo": """\
shoal zoo [NAME]: list the trained policies that ship with Shoal, with their scores; with NAME: show how one was made

  zoo:NAME may be given wherever a saved policy may: shoal eval zoo:NAME, shoal record zoo:NAME --out SET,
  shoal export zoo:NAME --to F, shoal train SYSTEM --init-from zoo:NAME, shoal.load("zoo:NAME")
"""
    + JSON,
    "completion": """\
shoal completion bash|zsh|fish: print a script that completes commands, systems, flags and presets

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
