"""RunOptions: the options of ``settings.run_options``, read from flags or keywords, checked, and written to
config.json."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.api import UsageError
from shoal.own_code import absolute
from shoal.records import loggers
from shoal.registry import is_own
from shoal.run.evaluation import Evaluation
from shoal.run.progress import watched
from shoal.run.runtimes import check_runtime, meant, runtime_to_resume
from shoal.runtime.launch import Stop
from shoal.settings.entries import read_entries
from shoal.settings.flags import expect, ranged
from shoal.settings.ranges import Count
from shoal.settings.run_options import OptionTable, about, flags, required_keys, resumable
from shoal.types import Values
from shoal.zoo import is_zoo


@dataclass(frozen=True, kw_only=True)
class RunOptions(OptionTable):
    """The options of one run. Raises UsageError for a value out of range."""

    def __post_init__(self) -> None:
        for name, hint in ranged(type(self)).items():
            object.__setattr__(self, name, expect(hint, getattr(self, name), f"'{name}'"))
        object.__setattr__(self, "runtime", meant(self.runtime))
        check_runtime(self.runtime, self.address)
        object.__setattr__(self, "log_args", loggers.arguments(self.log_args, self.log))
        object.__setattr__(self, "runtime", absolute(self.runtime))
        object.__setattr__(self, "log", tuple(map(absolute, self.log)))

    @classmethod
    def divide(cls, given: Mapping[str, Any], whole: bool = True) -> tuple[Values, Values]:
        """Split the keyword arguments of a Python call into options, as this class takes them, and settings. ``log``
        may be a single name, ``evaluation`` may be None, and its parts have the names of the flags too
        (``eval_every``): a ``whole`` one is made of these, else they stay a dict of what changes."""
        known = about(cls)
        options = {name: value for name, value in given.items() if name in known}
        if isinstance(options.get("log"), str):
            options["log"] = (options["log"],)
        if "evaluation" in options and options["evaluation"] is None:
            del options["evaluation"]
        settings = {name: value for name, value in given.items() if name not in known}
        parts: dict[str, Values] = {}
        for flag in flags(cls).values():
            if flag.part and (name := flag.name.replace("-", "_")) in settings:
                if flag.option in options:
                    raise UsageError(f"'{name}' is a part of '{flag.option}', which is given as well")
                parts.setdefault(flag.option, {})[flag.part] = settings.pop(name)
        made = {option: type(getattr(cls(), option))(**values) for option, values in parts.items()} if whole else parts
        return options | made, settings

    def named(self) -> list[str]:
        """Return the option values that name code of the user's."""
        return [name for name in (self.runtime, *self.log) if is_own(name)]

    def stop(self, steps: int) -> Stop:
        """Return the limits that end a run of a configuration with ``steps`` steps."""
        return Stop(steps=steps, seconds=self.seconds, episode_return=self.until_return)

    # -------------------------------------------------------------------------------- config.json
    def to_json(self, steps: int) -> Values:
        """Return the options as config.json stores them, for ``from_json``."""
        special = {
            "evaluation": dataclasses.asdict(self.evaluation),
            "init_from": self.initial(),
            "log": list(self.log),
        }
        out: Values = {"stop": {name: limit for name, limit in vars(self.stop(steps)).items() if name != "asked"}}
        for name, option in about(type(self)).items():
            if option.json is not None:
                folder, key = option.place(name)
                (out.setdefault(folder, {}) if folder else out)[key] = special.get(name, getattr(self, name))
        return out

    def initial(self) -> str | None:
        """Return the source of the run's initial parameters as an absolute path or ``zoo:NAME``, or None if they are
        drawn."""
        source = self.init_from
        return None if source is None else str(source if is_zoo(source) else Path(source).resolve())

    @classmethod
    def from_json(cls, facts: Mapping[str, Any], **anew: Any) -> RunOptions:
        """Load the options stored in an earlier run's config.json (``REQUIRED_KEYS`` at least); ``anew`` overrides
        them."""
        others = facts["evaluation"].keys() - {f.name for f in dataclasses.fields(Evaluation)}
        if others:
            raise UsageError(
                f"the run's config.json has the option '{min(others)}' of its evaluation, which this version of Shoal "
                "does not know: it was written by another"
            )
        kept: Values = {}
        for name, option in about(cls).items():
            folder, key = option.place(name)
            group = facts.get(folder, {}) if folder else facts
            if option.json is not None and (option.required or key in group):
                kept[name] = group[key]
        kept["runtime"] = runtime_to_resume(facts["runtime"])
        kept["evaluation"] = Evaluation(**facts["evaluation"]) if facts["evaluation"]["every"] else Evaluation()
        given = {**kept, **anew}
        if "log" in anew and "log_args" not in anew:  # without the arguments of back ends that are no longer used
            given["log_args"] = {name: args for name, args in kept.get("log_args", {}).items() if name in anew["log"]}
        return cls(**given)

    # ------------------------------------------------------------------------------- command line
    @classmethod
    def from_flags(cls, flags: Mapping[str, Any], **defaults: Any) -> RunOptions:
        """Return the options given by a command's flags, which are parsed by the types in ``FLAGS``; ``defaults`` are
        the command's own."""
        given = given_by(flags)
        if "evaluation" in given:
            if "every" not in given["evaluation"]:
                flag = "--eval-" + next(iter(given["evaluation"]))
                raise UsageError(f"{flag} expects --eval-every N beside it: without, nothing is evaluated")
            given["evaluation"] = Evaluation(**given["evaluation"])
        return cls(**{"quiet": False, **defaults, **given})

    @property
    def shows(self) -> bool:
        """Return True if progress is shown."""
        return watched() if self.quiet is None else not self.quiet


def given_by(words: Mapping[str, Any]) -> Values:
    """Return the options that a command's flags set, by name; for ``evaluation``, a dict of its parts."""
    out: Values = {}
    for name, value in words.items():
        flag = BY_FLAG.get(name)
        if flag is not None and flag.part:
            out.setdefault(flag.option, {})[flag.part] = value
        elif flag is not None:
            out[flag.option] = read_entries("--log-args", value) if flag.option == "log_args" else value
    return out


BY_FLAG = flags(RunOptions)
FLAGS: Values = {name: flag.type for name, flag in BY_FLAG.items()}  # for ``settings.flags.options``
REQUIRED_KEYS = required_keys(RunOptions)  # of a config.json
RESUMABLE = resumable(RunOptions)  # options that may change on resume
RESUMABLE_FLAGS = [name for name, flag in BY_FLAG.items() if flag.option in RESUMABLE]
LIMITS: Values = {"steps": Count, "seconds": FLAGS["seconds"], "until_return": FLAGS["until-return"]}


def check_limits(**limits: Any) -> None:
    """Raise UsageError for one of ``LIMITS`` that is out of range. None means no limit."""
    for name, value in limits.items():
        if value is not None:
            expect(LIMITS[name], value, f"'{name}'")
