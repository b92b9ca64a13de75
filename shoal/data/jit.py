"""``jit``: compile a function with numba, cached on disk, the interpreter lock released while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

_njit: Any = numba.njit  # typed without ``_nrt``, which its own library uses


def jit(function: F) -> F:
    """For functions that make no arrays. Numba then counts no references to those they are given, which it would do
    with an atomic operation at each access and call: most of the time of a short function."""
    return cast(F, _njit(nogil=True, cache=True, _nrt=False)(function))


def jit_allocating(function: F) -> F:
    """For functions that make arrays."""
    return cast(F, _njit(nogil=True, cache=True)(function))
