"""Settings that change over a run: ``learning_rate=linear(1e-3, 0)``."""

from __future__ import annotations

import dataclasses
import math
import re
from numbers import Real
from typing import Annotated, Any, TypeVar, cast

from shoal.errors import UsageError
from shoal.types import Values
from shoal.untrusted import excerpt

T = TypeVar("T")


class Linear(float):
    """Number that changes linearly from ``start`` to ``end`` over the steps of the run. Used as a float it equals
    ``start``; ``at`` returns its current value."""

    end: float

    def __new__(cls, start: float, end: float) -> Linear:
        if not (math.isfinite(start) and math.isfinite(end)):
            raise ValueError(f"a schedule goes from one finite number to another, found {start} and {end}")
        made = super().__new__(cls, start)
        made.end = float(end)
        return made

    @property
    def start(self) -> float:
        return float(self)

    def at(self, fraction: float) -> float:
        """Return the value when this share of the run is done; constant before 0 and after 1."""
        if fraction >= 1.0:
            return self.end
        done = max(fraction, 0.0)
        return self.start * (1.0 - done) + self.end * done

    def __repr__(self) -> str:
        return f"linear({_short(self.start)}, {_short(self.end)})"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Linear) and (self.start, self.end) == (other.start, other.end)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self.start, self.end))

    def __reduce__(self) -> tuple[Any, ...]:
        return Linear, (self.start, self.end)


def linear(start: float, end: float) -> Linear:
    """Schedule of a setting that changes linearly from ``start`` to ``end`` over the run's ``steps``. Only settings
    that a learner reads at each update accept it (docs/schedules.md). Raises UsageError unless both are numbers, and
    ValueError unless both are finite."""
    for value in (start, end):
        if isinstance(value, bool) or not isinstance(value, Real):
            raise UsageError(f"shoal.linear goes from one number to another, found {excerpt(repr(value))}")
    return Linear(start, end)


SCHEDULED = "scheduled"  # marks the type of a setting that may be a schedule
Scheduled = Annotated[T, SCHEDULED]  # as in ``learning_rate: Scheduled[NonNegative]``

_TEXT = re.compile(r"\s*linear\s*\(([^,]*),([^,]*)\)\s*")


def is_schedule(value: object) -> bool:
    """Return whether the value is a schedule, or text that is meant to be one."""
    return isinstance(value, Linear) or (isinstance(value, str) and value.lstrip().startswith("linear"))


def read(value: object) -> Linear:
    """A schedule, or the text ``linear(a, b)``, as a schedule. ValueError for anything else."""
    if isinstance(value, Linear):
        return value
    found = _TEXT.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError
    try:
        ends = float(found[1]), float(found[2])
    except ValueError:
        raise ValueError from None
    return Linear(*ends)


def at(value: float, fraction: float) -> float:
    """Return the value of a setting, constant or schedule, when this share of the run is done."""
    return value.at(fraction) if isinstance(value, Linear) else value


def schedules(cfg: Any) -> dict[str, Linear]:
    """The settings of a configuration that are schedules; none of what is no dataclass."""
    if not dataclasses.is_dataclass(cfg):
        return {}
    values = {f.name: getattr(cfg, f.name) for f in dataclasses.fields(cfg)}
    return {name: value for name, value in values.items() if isinstance(value, Linear)}


def plain(values: Values) -> Values:
    """Settings as a file holds them: a tuple as a list, a schedule as its text."""
    return {name: cast(Any, _plain(value)) for name, value in values.items()}


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Linear) else value


def _short(x: float) -> str:
    text = f"{x:g}"
    return text if float(text) == x else repr(x)
