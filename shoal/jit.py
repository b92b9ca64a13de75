"""``jit``: compile a function with numba, cached on disk, the interpreter lock released while it runs."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
# ``fastmath`` of functions with sums whose order does not matter: they then use the processor's vectors
SUMS = {"reassoc", "contract"}


def jit(function: F, **options: Any) -> F:
    """For functions that make no arrays; options: numba's. Numba then counts no references to those they are given,
    which it would do with an atomic operation at each access and call: most of the time of a short function."""
    return _njit(function, _nrt=False, **options)


def jit_allocating(function: F) -> F:
    """For functions that make arrays."""
    return _njit(function)


def jit_late(function: F, **options: Any) -> F:
    """As ``jit``, at the first call: for modules that are imported where nobody needs numba."""

    @functools.cache
    def compiled() -> F:
        return jit(function, **options)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return compiled()(*args)

    return cast(F, call)


def jit_sums(function: F) -> F:
    """As ``jit_late``, with ``SUMS``."""
    return jit_late(function, fastmath=SUMS)


def _njit(function: F, **options: Any) -> F:
    for name in ("NUMBA_CACHE_DIR", "NUMBA_CACHE_LOCATOR_CLASSES"):
        os.environ.setdefault(name, "")  # else a .numba_config.yaml in the working directory says whose code is loaded
    import numba

    njit: Any = numba.njit  # typed without ``_nrt``, which its own library uses
    options["error_model"] = "numpy"  # a check of each divisor would keep loops from being vectorised
    try:
        compiled = njit(nogil=True, cache=True, **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's can be written: each process compiles for itself
        return cast(F, njit(nogil=True, **options)(function))
    cache = compiled._cache  # what has been compiled is used, even where it cannot be saved
    cache.save_overload = functools.partial(_try, cache.save_overload)
    return cast(F, compiled)


def on_compile(beat: Callable[[], None]) -> None:
    """From now on, ``beat`` is called whenever this process begins or ends to compile a function."""
    from numba.core import event

    class Compiling(event.Listener):
        def on_start(self, event: Any) -> None:
            beat()

        def on_end(self, event: Any) -> None:
            beat()

    register: Any = event.register
    register("numba:compile", Compiling())


def _try(function: Callable[..., None], *args: Any) -> None:
    """Call ``function``; neither a disk (OSError) nor a library that numba cannot serialise (RuntimeError) matters."""
    with contextlib.suppress(OSError, RuntimeError):
        function(*args)
