"""Environments passed as a Python class or factory function. Such an environment has a description in place of a
name."""

from __future__ import annotations

import functools
import secrets
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from shoal.api import UsageError


class CallableEnv(str):
    """The value of the setting ``env`` for a class or factory function. As text it is a description (``<Thermostat of
    __main__>``), which is all that a file stores. token: distinguishes it from another one with the same description.
    It pickles with its factory."""

    factory: Callable[..., Any]
    token: str

    def __new__(cls, words: str, factory: Callable[..., Any], token: str) -> CallableEnv:
        out = super().__new__(cls, words)
        out.factory, out.token = factory, token
        return out

    def __reduce__(self) -> tuple[type[CallableEnv], tuple[str, Callable[..., Any], str]]:
        return CallableEnv, (str(self), self.factory, self.token)


def given(env: Any) -> str:
    """Return ``env`` as a configuration holds it: a name unchanged, a class or function (also one named by
    ``__main__:NAME``) as ``CallableEnv``. Raises UsageError for anything else."""
    if isinstance(env, str):
        module, _, name = env.rpartition(":")
        return given(_of_main(name)) if module == "__main__" else env
    expected = "env expects a name, or a class or function that makes an environment"
    if isinstance(env, (gym.Env, VectorEnv)):
        named = f": give its name, {env.spec.id!r}" if env.spec is not None else ""
        found = f"found one that is made ({type(env).__name__}), but every process makes its own"
        raise UsageError(f"{expected}; {found}{named}")
    if isinstance(env, EnvSpec):
        raise UsageError(f"{expected}; found an entry of Gymnasium's registry: give its id, {env.id!r}")
    if not callable(env):
        raise UsageError(f"{expected}, found {env!r}")
    return CallableEnv(_words(env), env, secrets.token_hex(8))


def _of_main(name: str) -> Any:
    """Return the object ``name`` of the running script, or the id that it registered under this name. Raises UsageError
    if there is neither."""
    found = getattr(sys.modules["__main__"], name, None)
    if found is None and name not in gym.registry:
        raise UsageError(f"the script that runs has no {name!r}, and it has registered no environment of that id")
    return name if found is None else found


def is_given(env: str) -> bool:
    """Return True if ``env`` is an environment passed as a Python object, or the description of one that a file
    stores."""
    return env.startswith("<") and env.endswith(">")


def require_again(env: str) -> None:
    """Raise UsageError if ``env`` is only the description of an environment that was passed as a Python object."""
    if is_given(env) and not isinstance(env, CallableEnv):
        raise UsageError(
            f"the environment {env} was given in Python and no file holds it: give it again, as in "
            "shoal.resume(RUN, env=...), shoal.evaluate(RUN, env=...) or shoal.load(FILE, env=...)"
        )


def _words(factory: Any) -> str:
    while isinstance(factory, functools.partial):
        factory = factory.func
    name = getattr(factory, "__qualname__", type(factory).__qualname__)
    module = getattr(factory, "__module__", None) or type(factory).__module__
    return f"<{name.replace('<locals>.', '').replace('<lambda>', 'lambda')} of {module}>"
