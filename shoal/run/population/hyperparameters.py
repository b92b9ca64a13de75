"""The hyperparameters that a population searches: their ranges, priors and perturbations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any, TypeAlias

import numpy as np

from shoal.api import UsageError
from shoal.settings.flags import coerce, describe
from shoal.types import Values
from shoal.untrusted import brief

FACTORS = (1.2, 0.8)  # Jaderberg et al. 2017, section 4.1.1
FLOAT32_GAP = 2.0**-24  # relative difference below which two numbers are equal in float32
DEFAULT_SEARCH_FACTOR = 10.0  # default interval: the configured value divided and multiplied by this


@dataclass(frozen=True)
class Interval:
    """Numbers from ``low`` to ``high``, drawn uniformly or, with ``log``, uniformly in their logarithm. ``integer``
    rounds them. With ``one_minus``, 1 - x is drawn and perturbed, as for discounts."""

    low: float
    high: float
    log: bool = False
    integer: bool = False
    one_minus: bool = False

    def __post_init__(self) -> None:
        for end in (self.low, self.high):
            if isinstance(end, bool) or not isinstance(end, Real):
                raise UsageError(f"an Interval has numbers as its ends, found {brief(end)}: a Choice takes any values")
        if not self.low < self.high or not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise UsageError(
                f"a hyperparameter lies between two different numbers, the lower first; found {self.low}:{self.high}"
            )
        if not self.integer and self.high - self.low < FLOAT32_GAP * max(abs(self.low), abs(self.high)):
            raise UsageError(f"the ends of {self.low}:{self.high} are the same number in float32")
        if self.log and self._ends()[0] <= 0:
            raise UsageError(f"a logarithmic interval lies above 0; found {self.low}:{self.high}")

    def draw(self, generator: np.random.Generator) -> float:
        """Draw a value from the prior."""
        low, high = self._ends()
        x = math.exp(generator.uniform(math.log(low), math.log(high))) if self.log else generator.uniform(low, high)
        return self._within(x)

    def perturb(self, value: float, generator: np.random.Generator, factors: Sequence[float] = FACTORS) -> float:
        """Multiply ``value`` (or 1 - ``value``) by one of ``factors`` and clip it to the interval. An integer changes
        by at least 1."""
        factor = float(generator.choice(factors))
        x = (1.0 - value if self.one_minus else value) * factor
        if self.integer and round(x) == round(value):
            x = value + (1 if factor > 1 else -1)
        return self._within(x)

    def _ends(self) -> tuple[float, float]:
        return (1.0 - self.high, 1.0 - self.low) if self.one_minus else (self.low, self.high)

    def _within(self, x: float) -> float:
        value = min(max(1.0 - x if self.one_minus else x, self.low), self.high)
        return round(value) if self.integer else value


@dataclass(frozen=True)
class Choice:
    """One of the ordered ``values``. A perturbation moves to a neighbouring value."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.values, Sequence) or isinstance(self.values, str):
            raise UsageError(f"a Choice takes its values as one list or tuple, found {brief(self.values)}")
        if not self.values:
            raise UsageError("a choice needs at least one value")

    def draw(self, generator: np.random.Generator) -> Any:
        return self.values[int(generator.integers(len(self.values)))]

    def perturb(self, value: Any, generator: np.random.Generator, factors: Sequence[float] = FACTORS) -> Any:
        at = self.values.index(value) + (1 if generator.choice(factors) > 1 else -1)
        return self.values[min(max(at, 0), len(self.values) - 1)]


def interval_of(
    name: str, value: Any, low: float | None = None, high: float | None = None, hint: Any = float,
    flag: str = "--mutate",
) -> Values:  # fmt: skip
    """Return the interval of a field whose configured value is ``value``, as arguments of ``Interval``. A discount is
    searched by its distance from 1, other fields in their logarithm. By default it spans a tenth to ten times the
    value, up to 1 for fields that cannot be larger. hint: the field's type. flag: where it was given. Raises UsageError
    for a field that is no number, and for impossible ends."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError(f"{flag} takes numbers, and {name} is {brief(value)}")
    discount = name in ("gamma", "gae_lambda", "trace_lambda") and 0 < value < 1
    size = 1.0 - value if discount else float(value)
    integer = isinstance(value, int)
    if (low is None or high is None) and size <= 0:
        raise UsageError(f"{name} is {brief(value)}: give its interval, as in {flag} {name}=0.001:0.1")
    if low is None or high is None:
        ends = size / DEFAULT_SEARCH_FACTOR, min(size * DEFAULT_SEARCH_FACTOR, 0.999 if discount else float("inf"))
        low, high = (1.0 - ends[1], 1.0 - ends[0]) if discount else ends
        if not _refusal(hint, 1.0) and _refusal(hint, high):  # a share, or a probability
            high = 1.0
        low = max(1.0, low) if integer else low
    if integer and math.isfinite(low) and math.isfinite(high):
        low, high = round(low), round(high)
    if why := _refusal(hint, low) or _refusal(hint, high):
        raise UsageError(
            f"{name} {why}, found the interval {low:g}:{high:g}: give another, as in {flag} {name}=LOW:HIGH"
        )
    log_scale = (1.0 - high if discount else low) > 0
    return asdict(Interval(low, high, log=log_scale, integer=integer, one_minus=discount))


def _refusal(hint: Any, value: float) -> str:
    """Return what a field of this type expects if ``value`` is invalid, else ""."""
    try:
        coerce(hint, value)
    except ValueError as error:
        return f"expects {describe(hint)} ({error})" if error.args else f"expects {describe(hint)}"
    return ""


Space: TypeAlias = Mapping[str, Interval | Choice]


def draw(space: Space, generator: np.random.Generator) -> Values:
    """Return a value drawn from the prior for each hyperparameter."""
    return {name: one.draw(generator) for name, one in space.items()}


def perturb(
    space: Space,
    values: Mapping[str, Any],
    generator: np.random.Generator,
    factors: Sequence[float] = FACTORS,
    probability: float = 1.0,
    resample: float = 0.0,
) -> Values:
    """Return the hyperparameters, each changed with ``probability``: drawn again with probability ``resample``, else
    multiplied by one of ``factors``. Values that are not in the space are kept.

    Source: Jaderberg et al. (2017), section 3 (explore: perturb, resample); factors 1.2 and 1 / 1.2 with probability
    0.33: Espeholt et al. (2018), appendix F.
    """
    out = dict(values)
    for name, one in space.items():
        if generator.random() < probability:
            fresh = generator.random() < resample
            out[name] = one.draw(generator) if fresh else one.perturb(values[name], generator, factors)
    return out
