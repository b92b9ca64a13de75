"""``jit``: compile a function with numba, cached on disk, the interpreter lock released while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    return cast(F, numba.njit(nogil=True, cache=True)(function))
