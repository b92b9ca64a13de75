"""Types of settings that hold only some of their type's values: ``envs: Count = 16``. And of which need others.

Whatever its type says, an integer has 64 bits, and a number is one that float32 holds: finite, at most ``FLOAT32_MAX``,
and 0 or at least ``SMALLEST`` (``number``). Settings of which so many Python objects are made, or which multiply the
time that a step takes, have a range that ends where nobody has a use for more: they could neither be counted nor waited
for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from numbers import Integral, Real
from typing import Annotated, Any

from shoal.settings.nearest import did_you_mean
from shoal.settings.schedule import Linear

FLOAT32_MAX = 3.4028234663852886e38  # what float32 holds
SMALLEST = 1.1754943508222875e-38  # above 0, with all its digits
FACTORS = {"k": 10**3, "K": 10**3, "m": 10**6, "M": 10**6, "G": 10**9, "B": 10**9}  # of whole numbers: 10k, 2M
INTEGERS = 2**63  # which 64 bits do not hold
MAX_VALUES = 1_000  # of one setting, such as the layers of a network


@dataclass(frozen=True)
class Range:
    """Which values of a type are meant: in words, as they stand after "expects", and as a test. No number that a test
    compares is NaN. infinite: whether it may be inf."""

    words: str
    holds: Callable[[Any], bool]
    infinite: bool = False


def _integers(low: int, high: int) -> Range:
    return Range(f"an integer from {low} to {high}", lambda n: low <= n <= high)


def _named(names: tuple[str, ...]) -> Callable[[Any], bool]:
    """Return a test of one of ``names`` or of a class by ``MODULE:CLASS``; ValueError with the nearest name."""

    def holds(name: Any) -> bool:
        near = did_you_mean(name, names)
        if name not in names and ":" not in name and near:
            raise ValueError(near.removeprefix("; "))
        return name in names or ":" in name

    return holds


def _device(name: str) -> bool:
    """Test for the name of a device; ValueError with the one that another name of it means, or that serves instead."""
    if re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", name):
        return True
    plain = name.strip().lower()
    if plain in ("mps", "metal", "xla", "tpu", "xpu", "npu", "opencl", "vulkan", "dml", "directml"):
        raise ValueError("Shoal computes on CPUs and on GPUs with CUDA; did you mean 'cpu'?")
    if plain in ("-1", "none"):  # what other libraries call the CPU
        raise ValueError("did you mean 'cpu'?")
    if plain and (found := re.fullmatch(r"(?:(?:device:)?(?:gpu|cuda|nvidia|rocm|hip)[:_-]?)?([0-9]{0,3})", plain)):
        raise ValueError(f"did you mean 'cuda{':' if found[1] else ''}{found[1]}'?")
    if near := did_you_mean(plain, ("auto", "cpu", "cuda")):
        raise ValueError(near.removeprefix("; "))
    return False


def class_name(*names: str) -> Range:
    """Return the range of the names of Shoal's own classes and of the user's."""
    return Range(f"one of {', '.join(names)}, or MODULE:CLASS or FILE.py:CLASS of your own", _named(names))


Count = Annotated[int, Range("an integer of at least 1", lambda n: n >= 1)]
Natural = Annotated[int, Range("an integer of at least 0", lambda n: n >= 0)]
Seed = Annotated[int, Range("an integer of at least 0", lambda n: n >= 0, infinite=True)]  # of any length
Positive = Annotated[float, Range("a finite number above 0", lambda x: SMALLEST <= x < inf)]
Finite = Annotated[float, Range("a finite number", lambda x: -inf < x < inf)]
NonNegative = Annotated[float, Range("a finite number of at least 0", lambda x: 0 <= x < inf)]
Unbounded = Annotated[float, Range("a number of at least 0, or inf", lambda x: x >= 0, infinite=True)]
Replicas = Annotated[int, _integers(0, 10_000)]
Parts = Annotated[int, _integers(1, 10_000)]  # of something, each an object of its own
Envs = Annotated[int, _integers(1, 4_095)]  # whose seeds are one life's (``runtime.seeds``)
Port = Annotated[int, _integers(0, 65_535)]  # 0: any that is free
Threads = Annotated[int, _integers(0, 1_024)]
Repeats = Annotated[int, _integers(1, 100_000)]  # of the work of one step
Noops = Annotated[int, _integers(0, 100_000)]
Layers = Annotated[int, _integers(1, 1_000)]
Episodes = Annotated[int, _integers(1, 1_000_000)]
EpisodesOrNone = Annotated[int, _integers(0, 1_000_000)]
Fraction = Annotated[float, Range("a number from 0 to 1", lambda x: 0 <= x <= 1)]
UpToHalf = Annotated[float, Range("a number above 0 and at most 0.5", lambda x: SMALLEST <= x <= 0.5)]
UpToAnHour = Annotated[float, Range("a number of seconds above 0 and at most 3600", lambda x: SMALLEST <= x <= 3_600)]
Decay = Annotated[float, Range("a number of at least 0 and below 1", lambda x: 0 <= x < 1)]  # of a running average
Device = Annotated[str, Range("auto, cpu, cuda or cuda:N", _device)]
OnlyWith = Mapping[str, tuple[Any, ...]]  # see ``only_with``


def number(hint: type, value: Any, infinite: bool = False) -> int | float:
    """``value`` as an integer of 64 bits (``hint`` is int) or as a number that float32 holds (float); of any length,
    and inf, if that is meant (``infinite``). ValueError for anything else, with a reason for one that is too large."""
    if isinstance(value, (bool, Linear)) or not isinstance(value, (Real, str)):
        raise ValueError
    found: int | float
    factor = 1
    if isinstance(value, str) and hint is int and value[-1:] in FACTORS:
        value, factor = value[:-1], FACTORS[value[-1]]
    try:
        found = factor * (int(value) if isinstance(value, (Integral, str)) else float(value))
    except ValueError:
        try:
            found = round(factor * float(value), 6) if factor != 1 else float(value)  # 1.1M; 1e-3
        except ValueError:
            raise ValueError from None
    if found != found:
        raise ValueError
    vanished = found == 0 and isinstance(value, str) and set(value.lower().partition("e")[0]) & set("123456789")
    if hint is float:
        if abs(found) > FLOAT32_MAX and not (infinite and abs(found) == inf):
            raise ValueError(f"numbers are finite, and go up to {FLOAT32_MAX:.2g} (float32)")
        if vanished or 0 < abs(found) < SMALLEST:  # it would be 0 there (1e-400 even in float64), or lose digits
            raise ValueError(f"numbers are 0, or at least {SMALLEST:.2g} (float32)")
        return float(found)
    if vanished or found != found // 1:
        raise ValueError
    if not -INTEGERS <= found < INTEGERS and not (infinite and isinstance(found, int)):
        raise ValueError("integers go up to 2**63 - 1")
    return int(found)
