"""Types of settings that hold only some of their type's values: ``envs: Count = 16``. And of which need others."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any


@dataclass(frozen=True)
class Range:
    """Which values of a type are meant: in words, as they stand after "expects", and as a test. No number that a test
    compares is NaN."""

    words: str
    holds: Callable[[Any], bool]


Count = Annotated[int, Range("an integer of at least 1", lambda n: n >= 1)]
Natural = Annotated[int, Range("an integer of at least 0", lambda n: n >= 0)]
Positive = Annotated[float, Range("a finite number above 0", lambda x: 0 < x < inf)]
Finite = Annotated[float, Range("a finite number", lambda x: -inf < x < inf)]
NonNegative = Annotated[float, Range("a finite number of at least 0", lambda x: 0 <= x < inf)]
Unbounded = Annotated[float, Range("a number of at least 0, or inf", lambda x: x >= 0)]
Replicas = Annotated[int, Range("an integer from 0 to 10000", lambda n: 0 <= n <= 10_000)]
Fraction = Annotated[float, Range("a number from 0 to 1", lambda x: 0 <= x <= 1)]
Device = Annotated[
    str, Range("auto, cpu, cuda or cuda:N", lambda s: re.fullmatch(r"auto|cpu|cuda(:\d+)?", s) is not None)
]
OnlyWith = Mapping[str, tuple[Any, ...]]  # see ``only_with``
