"""What an environment turns out to be that a function or class of the user's makes, for its preset."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from shoal.envs import EnvOptions, plays
from shoal.run.runtimes import looking_under
from shoal.types import Values

OPTIONS = [field.name for field in dataclasses.fields(EnvOptions)]


def playing(runtime: str) -> Callable[[Values], str]:
    """Return a function from the values of a config to the id of their environment (``envs.plays``). One that code of
    the user's makes is made where ``runtime`` would make it."""

    def found(values: Values) -> str:
        with looking_under(runtime):
            return plays(values["env"], EnvOptions(**{name: values[name] for name in OPTIONS}))

    return found
