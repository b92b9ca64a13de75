"""Looking at an environment before a run: done where the front door says, so that nothing that somebody else's
constructor starts (threads, processes, a window) is left in a process that never steps it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

import numpy as np

from shoal import own_code
from shoal.api import EnvBatch

from .given import Given
from .options import EnvOptions
from .registration import Registration, registration
from .registry import foreign

T = TypeVar("T")
Key = tuple[str, str, tuple[str, ...]]
Call = Callable[[Callable[[], Any]], Any]  # calls a function, in this process or in another
_call: ContextVar[Call | None] = ContextVar("call", default=None)
_timing: ContextVar[bool] = ContextVar("timing", default=False)
MAX_TIMED = 8  # steps
TIMED_SECONDS = 1.0  # after which no further step is timed


def known_as(env: str, options: EnvOptions) -> Key:
    """Tells an environment under these options from every other: two that were given in the same words too, and one
    of a file from what it was before the file was edited."""
    which = env.token if isinstance(env, Given) else own_code.version(env.rpartition(":")[0])
    return str(env), which, options.env_key()


def pace(made: EnvBatch) -> float:
    """Return the steps a second of a batch of one environment: by the fastest of a few, as the first may compile."""
    action, fastest, begun = made.spec.action, float("inf"), time.perf_counter()
    made.reset(0)
    for _ in range(MAX_TIMED):
        before = time.perf_counter()
        made.step(np.zeros((1, *action.shape), action.dtype))
        after = time.perf_counter()
        fastest = min(fastest, after - before)
        if after - begun > TIMED_SECONDS:
            break
    return 1.0 / fastest


@contextmanager
def looking(call: Call, timing: bool = False) -> Iterator[None]:
    """Within this context, ``look`` leaves it to ``call`` to make environments that are not Shoal's or Gymnasium's.
    timing: their steps are timed as well."""
    token, timed = _call.set(call), _timing.set(timing)
    try:
        yield
    finally:
        _timing.reset(timed)
        _call.reset(token)


def look(
    env: str,
    options: EnvOptions,
    function: Callable[[str, EnvOptions], T],
    timed: Callable[[str, EnvOptions], T] | None = None,
) -> T:
    """``function(env, options)``, which makes ``env`` and closes it, and what it returns; ``timed`` in its place where
    steps are to be timed. UsageError for a name that there is not."""
    call = _call.get()
    if call is None or not foreign(env, options):
        return function(env, options)
    function = timed if timed is not None and _timing.get() else function
    found: T = call(partial(_there, registration(env), function, env, options))
    return found


def _there(
    registered: Registration | None, function: Callable[[str, EnvOptions], T], env: str, options: EnvOptions
) -> T:
    """``function(env, options)``, in a process that may not have run what registered ``env``."""
    if registered is not None:
        registered.enter()
    return function(env, options)
