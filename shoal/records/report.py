"""Report: how a run ended, as a runtime returns it and as ``report.json`` stores it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.api import Tensors
from shoal.metering.aggregator import Aggregator, Snapshot
from shoal.records.metric_files import finite
from shoal.types import Values
from shoal.untrusted import MAX_COUNTER, brief, number


@dataclass
class Report:
    """How a run ended.

    reason: the limit that was reached (a field of ``runtime.launch.Stop``); ``interrupted`` and ``terminated`` after
        SIGINT and SIGTERM; ``stopped`` if a role asked for the end.
    steps: agent steps of all actors; updates: of all learners; seconds: of training, over all launches of the run.
    episode_return: mean raw return of the last 100 episodes, nan before the first; episodes: how many ended.
    params: channel -> the parameters published last, of each params channel that has any.
    restarts: how often a replica failed and was started again.
    error: the error that ended the run, if the reason is ``failed``.
    evaluation: the last row of ``evaluations.csv``, by its columns (``unfinished``: episodes that did not end, if there
        were any); {} for a run that was not evaluated.
    """

    reason: str
    steps: int
    updates: int
    seconds: float
    episode_return: float
    episodes: int
    params: dict[str, Tensors] = field(default_factory=dict, repr=False)
    restarts: int = 0
    error: str = ""
    evaluation: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, reason: str, run: Aggregator | Snapshot, params: Mapping[str, Tensors] | None = None) -> Report:
        """Return the report of a run that ended for ``reason``, from its counters."""
        return cls(
            reason, run.steps, run.updates, run.seconds, run.episode_return, run.episodes, dict(params or {}),
            run.restarts,
        )  # fmt: skip

    def to_json(self) -> Values:
        """Return the report as ``report.json`` stores it, without the parameters."""
        facts = {
            "reason": self.reason,
            "steps": self.steps,
            "updates": self.updates,
            "seconds": round(self.seconds, 3),
            "episode_return": finite(self.episode_return),
            "episodes": self.episodes,
            "restarts": self.restarts,
        }
        evaluation = {name: finite(value) for name, value in self.evaluation.items()}
        more = {"error": self.error, "evaluation": evaluation}
        return facts | {name: value for name, value in more.items() if value}

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Report:
        """Return the report that ``report.json`` stores. Raises TypeError or LookupError if its contents are
        invalid."""
        kinds = {"reason": str, "steps": int, "updates": int, "seconds": float, "episode_return": float,
                 "episodes": int, "restarts": int, "error": str, "evaluation": dict}  # fmt: skip
        values = {"restarts": 0, "error": "", "evaluation": {}, **facts}
        if values["episode_return"] is None:
            values["episode_return"] = math.nan
        for name, kind in kinds.items():
            value, counts = values[name], kind is int or name == "seconds"
            fits = isinstance(value, (int, float) if kind is float else kind)
            if not fits or (counts and not 0 <= value <= MAX_COUNTER):
                raise TypeError(f"'{name}' is {brief(value)}")
        scores = {name: math.nan if value is None else number(value) for name, value in values["evaluation"].items()}
        values["evaluation"] = scores
        return cls(**{name: values[name] for name in kinds})
