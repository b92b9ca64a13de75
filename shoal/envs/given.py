"""Environments given in Python: a class, or a function that makes one. Such a one has a name in words, and no file."""

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


class Given(str):
    """What a configuration holds of such an environment: as text its words (``<Thermostat of __main__>``), which is
    all that a file gets of it. ``token`` tells it from another one in the same words. Pickles with its factory."""

    factory: Callable[..., Any]
    token: str

    def __new__(cls, words: str, factory: Callable[..., Any], token: str) -> Given:
        out = super().__new__(cls, words)
        out.factory, out.token = factory, token
        return out

    def __reduce__(self) -> tuple[type[Given], tuple[str, Callable[..., Any], str]]:
        return Given, (str(self), self.factory, self.token)


def given(env: Any) -> str:
    """``env`` as a configuration holds it: a name as it is, a class or function of the user's as ``Given``, as is one
    that is named by ``__main__:NAME``. UsageError for anything else."""
    if isinstance(env, str):
        module, _, name = env.rpartition(":")
        return given(_of_main(name)) if module == "__main__" else env
    expected = "env expects a name, or a class or function that makes an environment"
    if isinstance(env, (gym.Env, VectorEnv)):
        raise UsageError(f"{expected}; found one that is made ({type(env).__name__}), but every process makes its own")
    if isinstance(env, EnvSpec):
        raise UsageError(f"{expected}; found an entry of Gymnasium's registry: give its id, {env.id!r}")
    if not callable(env):
        raise UsageError(f"{expected}, found {env!r}")
    return Given(_words(env), env, secrets.token_hex(8))


def _of_main(name: str) -> Any:
    """Return what ``name`` is in the script that runs, or the id that it registered by this name."""
    found = getattr(sys.modules["__main__"], name, None)
    if found is None and name not in gym.registry:
        raise UsageError(f"the script that runs has no {name!r}, and it has registered no environment of that id")
    return name if found is None else found


def is_given(env: str) -> bool:
    """Return whether this is what a file says of an environment that was given in Python, or is one."""
    return env.startswith("<") and env.endswith(">")


def require_again(env: str) -> None:
    """UsageError for what is only the words of an environment that was given in Python."""
    if is_given(env) and not isinstance(env, Given):
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
