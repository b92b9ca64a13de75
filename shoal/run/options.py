"""How a configuration is run: what ``shoal.train``, the command line and config.json say of it, in one place."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_args

from shoal.api import UsageError
from shoal.records import loggers
from shoal.run.evaluation import Evaluation
from shoal.run.progress import watched
from shoal.run.runtimes import check_runtime, meant, runtime_to_resume
from shoal.runtime.launch import Stop
from shoal.settings.entries import read_entries
from shoal.settings.flags import expect, ranged
from shoal.settings.ranges import Count, Episodes, Natural, NonNegative, Positive, Range, Seed
from shoal.types import Values
from shoal.zoo import is_zoo

WHOLE = Range("shoal.Evaluation(every=N)", lambda how: isinstance(how, Evaluation))


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What a run is told beside its system's configuration. UsageError for a value that is not in its range."""

    runtime: str = "local"
    """`local`: processes that share memory; `serial`: one process, deterministic; `ray`: processes on a cluster;
    `torchrun`: each process that torchrun has started is a rank (the default in such a process)."""
    address: str | None = None
    """Address of the Ray cluster: `auto`, `HOST:PORT` or `ray://HOST:PORT`; none: an instance of Ray of its own."""
    run_dir: str | Path | None = None
    """A new directory for what the run writes; none: `runs/SYSTEM-ENV-TIME-SEED`."""
    seed: Seed = 0
    """Seed of the run: the seeds of networks, environments and samplers follow from it."""
    seconds: Positive | None = None
    """Seconds of training after which the run ends; none: no such limit."""
    until_return: float | None = None
    """Mean raw return of 100 episodes at which the run ends; none: no such limit."""
    hang_timeout: NonNegative = 60.0
    """Seconds without progress after which a process is replaced or the run ends; 0: never. Not in `serial`."""
    evaluation: Annotated[Evaluation, WHOLE] = field(default_factory=Evaluation)
    """How the run evaluates its newest parameters as it goes on."""
    checkpoint_every: NonNegative = 300.0
    """Seconds between two checkpoints; 0: only at the end."""
    checkpoint_replay_gb: NonNegative = 8.0
    """Size in 10**9 bytes beyond which a replay is left out of checkpoints."""
    init_from: str | Path | None = None
    """A run's directory, a file that `Policy.save` wrote or `zoo:NAME`, whose parameters the run begins with; none:
    drawn."""
    log: tuple[str, ...] = ()
    """Back ends that metrics go to besides the files: `tensorboard`, `wandb`, `mlflow`."""
    log_args: dict[str, Any] = field(default_factory=dict)
    """Arguments of these back ends, such as `wandb.group=NAME`: of wandb.init, mlflow.start_run, SummaryWriter."""
    quiet: bool | None = None
    """Show nothing of the run; none: its progress where a person looks (a terminal, a notebook), elsewhere one line."""

    def __post_init__(self) -> None:
        for name, hint in TYPES.items():
            object.__setattr__(self, name, expect(hint, getattr(self, name), f"'{name}'"))
        object.__setattr__(self, "runtime", meant(self.runtime))
        check_runtime(self.runtime, self.address)
        object.__setattr__(self, "log_args", loggers.arguments(self.log_args, self.log))

    def stop(self, steps: int) -> Stop:
        """Return the limits that end a run whose configuration has so many ``steps``."""
        return Stop(steps=steps, seconds=self.seconds, episode_return=self.until_return)

    # -------------------------------------------------------------------------------- config.json
    def to_json(self, steps: int) -> Values:
        """Return the options as config.json holds them, for ``from_json``."""
        special = {
            "evaluation": dataclasses.asdict(self.evaluation),
            "init_from": self._initial(),
            "log": list(self.log),
        }
        out: Values = {"stop": {name: limit for name, limit in vars(self.stop(steps)).items() if name != "asked"}}
        for name in TYPES:
            *folder, key = JSON_PLACES.get(name, (name,))
            if folder:
                out.setdefault(folder[0], {})[key] = getattr(self, name)
            elif name not in UNRECORDED:
                out[key] = special.get(name, getattr(self, name))
        return out

    def _initial(self) -> str | None:
        source = self.init_from
        return None if source is None else str(source if is_zoo(source) else Path(source).resolve())

    @classmethod
    def from_json(cls, facts: Mapping[str, Any], **anew: Any) -> RunOptions:
        """Those of an earlier run by its config.json (``JSON_KEYS`` at least), but for those given ``anew``."""
        others = facts["evaluation"].keys() - {f.name for f in dataclasses.fields(Evaluation)}
        if others:
            raise UsageError(
                f"the run's config.json has the option '{min(others)}' of its evaluation, which this version of Shoal "
                "does not know: it was written by another"
            )
        kept: Values = {}
        for name in TYPES.keys() - UNRECORDED:
            *folder, key = JSON_PLACES.get(name, (name,))
            group = facts[folder[0]] if folder else facts
            if folder or name in JSON_KEYS or key in group:  # others keep their default: an older version wrote none
                kept[name] = group[key]
        kept["runtime"] = runtime_to_resume(facts["runtime"])
        kept["evaluation"] = Evaluation(**facts["evaluation"]) if facts["evaluation"]["every"] else Evaluation()
        given = {**kept, **anew}
        if "log" in anew and "log_args" not in anew:  # those of back ends that are no longer told anything
            given["log_args"] = {name: args for name, args in kept.get("log_args", {}).items() if name in anew["log"]}
        return cls(**given)

    # ------------------------------------------------------------------------------- command line
    @classmethod
    def from_flags(cls, flags: Mapping[str, Any], **defaults: Any) -> RunOptions:
        """Those that a command was given, parsed by the types in ``FLAGS``; ``defaults`` are the command's own."""
        given = given_by(flags)
        if "evaluation" in given:
            if "every" not in given["evaluation"]:
                flag = "--eval-" + next(iter(given["evaluation"]))
                raise UsageError(f"{flag} expects --eval-every N beside it: without, nothing is evaluated")
            given["evaluation"] = Evaluation(**given["evaluation"])
        return cls(**{"quiet": False, **defaults, **given})

    @property
    def shows(self) -> bool:
        """Whether progress is shown."""
        return watched() if self.quiet is None else not self.quiet


def given_by(flags: Mapping[str, Any]) -> Values:
    """The options, by their names, that a command's flags give: of the ``evaluation`` a dict of what they say of it."""
    out = {name.replace("-", "_"): value for name, value in flags.items() if name in FLAGS}
    if "log_args" in out:
        out["log_args"] = read_entries("--log-args", out["log_args"])
    of_evaluation = {name[5:]: out.pop(name) for name in [*out] if name.startswith("eval_")}
    return {**out, "evaluation": of_evaluation} if of_evaluation else out


def back_ends(log: Any) -> tuple[str, ...]:
    """The names in the option ``log``, which may be one alone."""
    names: tuple[str, ...] = expect(TYPES["log"], [log] if isinstance(log, str) else log, "'log'")
    return names


def _given(hint: Any) -> Any:
    """The type of a value that is not None."""
    rest = [arm for arm in get_args(hint) if arm is not type(None)]
    return rest[0] if type(None) in get_args(hint) and len(rest) == 1 else hint


TYPES: Values = ranged(RunOptions)
UNRECORDED = {"run_dir", "quiet"}  # options that config.json does not hold: they are of one command alone
JSON_PLACES = {  # option -> its object and key in config.json, where that is not its own name at the top
    "seconds": ("stop", "seconds"),
    "until_return": ("stop", "episode_return"),
    "checkpoint_every": ("checkpoint", "every"),
    "checkpoint_replay_gb": ("checkpoint", "replay_gb"),
}
JSON_KEYS = ("seed", "runtime", "stop", "hang_timeout", "evaluation", "checkpoint")
FLAGS: Values = {  # flag -> its type for ``settings.flags.options``
    **{name.replace("_", "-"): _given(hint) for name, hint in TYPES.items() if name != "evaluation"},
    "run-dir": str, "init-from": str, "log": list, "log-args": list, "eval-every": Natural, "eval-episodes": Episodes,
    "eval-sampled": bool, "eval-video": bool, "eval-max-steps": Natural,
}  # fmt: skip
RESUMABLE = (  # may change on resume
    "hang_timeout", "checkpoint_every", "checkpoint_replay_gb", "log", "log_args", "evaluation",
)  # fmt: skip
RESUMABLE_FLAGS = [flag for flag in FLAGS if flag.replace("-", "_") in RESUMABLE or flag.startswith("eval-")]
LIMITS: Values = {"steps": Count, "seconds": FLAGS["seconds"], "until_return": FLAGS["until-return"]}


def check_limits(**limits: Any) -> None:
    """UsageError for one of ``LIMITS`` that is not in its range; None is no limit."""
    for name, value in limits.items():
        if value is not None:
            expect(LIMITS[name], value, f"'{name}'")
