"""``jit``: compile a function with numba, cached on disk, the interpreter lock released while it runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """For functions that make no arrays. Numba then counts no references to those they are given, which it would do
    with an atomic operation at each access and call: most of the time of a short function."""
    return _njit(function, _nrt=False)


def jit_allocating(function: F) -> F:
    """For functions that make arrays."""
    return _njit(function)


def jit_late(function: F) -> F:
    """As ``jit``, at the first call: for modules that are imported where nobody needs numba."""

    @functools.cache
    def compiled() -> F:
        return jit(function)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return compiled()(*args)

    return cast(F, call)


def _njit(function: F, **options: bool) -> F:
    import numba

    njit: Any = numba.njit  # typed without ``_nrt``, which its own library uses
    return cast(F, njit(nogil=True, cache=True, **options)(function))
