"""The table of run options, from which ``shoal.train``, ``shoal.resume``, flags, config.json and help derive theirs.

A new option is one line of ``OptionTable``, with its meaning underneath. Its type says what it may be, ``Option`` what
else is known of it.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from shoal.errors import UsageError
from shoal.settings.field_docs import field_docs
from shoal.settings.flags import expect, ranged
from shoal.settings.ranges import Episodes, Natural, NonNegative, Positive, Range, Seed


class _Default(int):
    """A number that can be told from the same number when somebody gives it."""


EPISODES = _Default(10)
MAX_PARALLEL_ENVS = 256  # that an evaluation steps together


@dataclass(frozen=True)
class Evaluation:
    """How a run evaluates its newest parameters during training. Raises UsageError for a value outside its range."""

    every: Natural = 0
    """Environment steps between two evaluations, which run in a separate process; 0: never."""
    episodes: Episodes = EPISODES
    """Episodes in each evaluation."""
    sampled: bool = False
    """Draw actions from the policy instead of taking the best."""
    video: bool = False
    """Also film an episode of each evaluation, in `videos/`."""
    max_steps: Natural = 0
    """Agent steps after which an episode is ended, and counts with its return so far; 0: 27,000, or the run's own limit
    if that is more."""

    def __post_init__(self) -> None:
        for name, hint in ranged(Evaluation).items():
            typed = expect(hint, value := getattr(self, name), f"'{name}' of an Evaluation")
            object.__setattr__(self, name, value if value is EPISODES else typed)
        given = {name: value for name, value in vars(self).items() if name != "every" and value != DEFAULTS[name]}
        if not self.every and (given or self.episodes is not EPISODES):
            said = ", ".join(f"{name}={value}" for name, value in (given or {"episodes": self.episodes}).items())
            raise UsageError(f"Evaluation({said}) expects every=N beside it: without, nothing is evaluated")

    @property
    def envs(self) -> int:
        """Environments that an evaluation steps together."""
        return min(self.episodes, MAX_PARALLEL_ENVS)


DEFAULTS = {each.name: each.default for each in fields(Evaluation)}
GIVEN_EVALUATION = Range("shoal.Evaluation(every=N)", lambda how: isinstance(how, Evaluation))


@dataclass(frozen=True)
class Option:
    """What is known of a run option beside its type. json: its place in config.json, ``KEY`` or ``OBJECT.KEY``; "": a
    key of its own name; None: not written, as it is of one command alone. required: a config.json without it is
    damaged; without another, the default counts. resumable: whether it may change when the run goes on. flags: what the
    names of its flags begin with, of one that has a flag for each of its fields."""

    json: str | None = ""
    required: bool = False
    resumable: bool = False
    flags: str = ""

    def place(self, name: str) -> tuple[str, str]:
        """Return (object, key) of the option called ``name`` in config.json; object "": at the top."""
        folder, _, key = (self.json or name).rpartition(".")
        return folder, key


@dataclass(frozen=True, kw_only=True)
class OptionTable:
    """Options of a run, besides the configuration of its system."""

    runtime: Annotated[str, Option(required=True)] = "local"
    """`local`: processes that share memory; `serial`: one process, deterministic; `ray`: processes on a cluster;
    `torchrun`: each process is a rank (the default in `torchrun --nproc-per-node N -m shoal train SYSTEM ...`);
    `MODULE:CLASS` or `FILE.py:CLASS`: your own."""
    address: str | None = None
    """Address of the Ray cluster: `auto`, `HOST:PORT` or `ray://HOST:PORT`; none: start an
    instance of Ray for this run."""
    run_dir: Annotated[str | Path | None, Option(json=None)] = None
    """New directory for the files of the run; none: `runs/SYSTEM-ENV-TIME-SEED`."""
    seed: Annotated[Seed, Option(required=True)] = 0
    """Seed of the run, from which the seeds of networks, environments and samplers follow."""
    seconds: Annotated[Positive | None, Option("stop.seconds", required=True)] = None
    """Seconds of training after which the run ends; none: no limit."""
    until_return: Annotated[float | None, Option("stop.episode_return", required=True)] = None
    """Mean raw return of the last 100 episodes at which the run ends; none: no limit."""
    hang_timeout: Annotated[NonNegative, Option(required=True, resumable=True)] = 60.0
    """Seconds without progress after which a process is replaced or the run ends; 0: never. Not in `serial`."""
    evaluation: Annotated[Evaluation, GIVEN_EVALUATION, Option(required=True, resumable=True, flags="eval")] = field(
        default_factory=Evaluation
    )
    """How the run evaluates its newest parameters during training, and keeps the best."""
    checkpoint_every: Annotated[NonNegative, Option("checkpoint.every", required=True, resumable=True)] = 300.0
    """Seconds between two checkpoints; 0: only at the end."""
    checkpoint_replay_gb: Annotated[NonNegative, Option("checkpoint.replay_gb", required=True, resumable=True)] = 8.0
    """Size in gigabytes (10**9 bytes) above which a replay is left out of checkpoints."""
    init_from: str | Path | None = None
    """Initial parameters and statistics of normalisers: a run's directory, a file that `Policy.save` wrote, or
    `zoo:NAME`. Optimiser, counters and replay start anew. none: random parameters."""
    log: Annotated[tuple[str, ...], Option(resumable=True)] = ()
    """Back ends that receive the metrics, besides the files: `tensorboard`, `wandb`, `mlflow` (extras of these names),
    or your own, `MODULE:CLASS` or `FILE.py:CLASS`."""
    log_args: Annotated[dict[str, Any], Option(resumable=True)] = field(default_factory=dict)
    """Arguments of wandb.init, mlflow.start_run or SummaryWriter, such as `wandb.group=NAME`."""
    quiet: Annotated[bool | None, Option(json=None)] = None
    """Print nothing; none: show progress in a terminal or notebook, and print one line elsewhere."""


@dataclass(frozen=True)
class Flag:
    """A flag of the command line, without dashes. type: for ``settings.flags.options``; doc and default: for the help.
    option: the run option that it gives; part: the field of that, of one that has a flag for each."""

    name: str
    type: Any
    doc: str
    default: Any
    option: str
    part: str = ""


def about(table: type[OptionTable]) -> dict[str, Option]:
    """Return what is known of each option of a table, by name."""
    return {
        name: next((each for each in get_args(hint) if isinstance(each, Option)), Option())
        for name, hint in ranged(table).items()
    }


def flags(table: type[OptionTable]) -> dict[str, Flag]:
    """Return the flags of a table's options, by name."""
    return {flag.name: flag for flag in _flags(table)}


def resumable(table: type[OptionTable]) -> list[str]:
    """Return the options that may change when a run goes on."""
    return [name for name, option in about(table).items() if option.resumable]


def required_keys(table: type[OptionTable]) -> tuple[str, ...]:
    """Return the keys that every config.json has for a table's options, at its top."""
    places = (option.place(name) for name, option in about(table).items() if option.required)
    return tuple(dict.fromkeys(folder or key for folder, key in places))


def _flags(table: type[OptionTable]) -> Iterator[Flag]:
    docs, known, hints, defaults = field_docs(table), about(table), ranged(table), table()
    for name, hint in hints.items():
        prefix, default = known[name].flags, getattr(defaults, name)
        if not prefix:
            yield Flag(name.replace("_", "-"), _of_words(hint), docs[name], default, name)
            continue
        of_fields = field_docs(type(default))
        for part, typed in ranged(type(default)).items():
            flag = f"{prefix}-{part}".replace("_", "-")
            yield Flag(flag, _of_words(typed), of_fields[part], getattr(default, part), name, part)


def _of_words(hint: Any) -> Any:
    """Return the type of a flag's words: list of a tuple or a dict, str of what may be a text, else that of a value
    that is not None."""
    bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    ranges = [each for each in get_args(hint)[1:] if isinstance(each, Range)] if bare is not hint else []
    if get_origin(bare) in (Union, types.UnionType):
        arms = [arm for arm in get_args(bare) if arm is not type(None)]
        return str if str in arms else _of_words(arms[0])
    if get_origin(bare) in (tuple, dict):
        return list
    return Annotated[bare, ranges[0]] if ranges else bare
