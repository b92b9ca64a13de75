"""Inspection of environments before a run, in the process chosen by the caller, so that threads, processes or windows
of a user's constructor do not remain in a process that never steps the environment."""

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

from .from_callable import CallableEnv
from .options import EnvOptions
from .registration import Registration, registration
from .registry import foreign

T = TypeVar("T")
Key = tuple[str, str, tuple[str, ...]]
Call = Callable[[Callable[[], Any]], Any]  # calls a function in this process or in another
_call: ContextVar[Call | None] = ContextVar("call", default=None)
_timing: ContextVar[bool] = ContextVar("timing", default=False)
MAX_TIMED = 8  # steps that are timed at most
TIMED_SECONDS = 1.0  # seconds after which no further step is timed


def known_as(env: str, options: EnvOptions) -> Key:
    """Return a key that identifies an environment under these options. It distinguishes environments with the same
    description, and versions of a file before and after an edit."""
    which = env.token if isinstance(env, CallableEnv) else own_code.version(env.rpartition(":")[0])
    return str(env), which, options.env_key()


def pace(made: EnvBatch) -> float:
    """Return the steps per second of a batch of one environment: the fastest of a few steps, because the first may
    compile."""
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
    """Within this context, ``look`` uses ``call`` for environments that are neither Shoal's nor Gymnasium's. timing:
    time their steps as well."""
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
    """Return the result of ``function(env, options)``, which makes and closes ``env``, or of ``timed`` if steps are to
    be timed. Raises UsageError for an unknown name."""
    call = _call.get()
    if call is None or not foreign(env, options):
        return function(env, options)
    function = timed if timed is not None and _timing.get() else function
    found: T = call(partial(_there, registration(env), function, env, options))
    return found


def _there(
    registered: Registration | None, function: Callable[[str, EnvOptions], T], env: str, options: EnvOptions
) -> T:
    """Return the result of ``function(env, options)`` in a process that may not have run the registration of
    ``env``."""
    if registered is not None:
        registered.enter()
    return function(env, options)
