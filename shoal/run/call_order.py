"""What is said of a call of ``shoal.train`` whose arguments stand in another order: how it should have been written."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from shoal.errors import UsageError
from shoal.settings.kinds import AN_ENVIRONMENT
from shoal.settings.other_names import NAMES_A_SYSTEM, NAMES_AN_ENVIRONMENT
from shoal.systems import exists, is_known

P = ParamSpec("P")
R = TypeVar("R")
# Stable-Baselines3's second argument; networks are settings here
A_POLICY = re.compile(r"(Mlp|Cnn|MultiInput)\w*Policy")


def explains_order(function: Callable[P, R]) -> Callable[P, R]:
    """Return ``function``, which takes a system and an environment, with a UsageError for arguments that it cannot
    take as they stand; the error gives the right call. Others stay what they are."""
    signature = inspect.signature(function)

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            if (call := rewritten(args, kwargs)) is None:
                raise
            told = "shoal.train takes a system, an environment and keywords"
            raise UsageError(f"{told}, as in {call}") from None
        system, env = given.get("system"), given.get("env")
        swapped = isinstance(system, str) and (_is_system(env) or _is_environment(system)) and not exists(system)
        if swapped and (call := rewritten(args, kwargs)) is not None:
            raise UsageError(f"shoal.train expects the system first, found {system!r}: {call}")
        if _is_system(env) and isinstance(system, str) and exists(system):
            call = f"shoal.train({system!r}, env=...)"
            raise UsageError(f"shoal.train expects an environment, found {env!r}, which is a system: {call}")
        return function(*args, **kwargs)

    return called


def rewritten(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return the call with what is a system as the first argument, what is left of the texts as the environment and a
    whole number as the steps; None where there are several of a kind."""
    rest = dict(kwargs)
    systems = [rest.pop(name) for name in NAMES_A_SYSTEM if _is_system(rest.get(name))]
    envs = [rest.pop(name) for name in ("env", "system", *NAMES_AN_ENVIRONMENT) if name in rest]
    loose = [value for value in (*args, *envs) if not (isinstance(value, str) and A_POLICY.fullmatch(value))]
    systems += [value for value in loose if _is_system(value)]
    steps = [value for value in loose if type(value) is int]
    others = [value for value in loose if not _is_system(value) and type(value) is not int]
    if max(map(len, (systems, others, steps))) > 1:
        return None
    words = [repr(systems[0].lower()) if systems else "SYSTEM"]
    words += [f"env={value!r}" if isinstance(value, str) else "env=..." for value in others or [None]]
    words += [f"steps={value}" for value in steps if "steps" not in rest] + (["..."] if rest else [])
    return f"shoal.train({', '.join(words)})"


def _is_system(value: Any) -> bool:
    return isinstance(value, str) and is_known(value)


def _is_environment(value: str) -> bool:
    """Return True for what looks like an environment, or stands where Stable-Baselines3 has a policy."""
    return AN_ENVIRONMENT.fullmatch(value) is not None or A_POLICY.fullmatch(value) is not None
