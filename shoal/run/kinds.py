"""The kind of an environment that the user's function or class makes, for the choice of a preset."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from shoal.envs import EnvOptions, plays
from shoal.run.runtimes import looking_under
from shoal.types import Values

OPTIONS = [field.name for field in dataclasses.fields(EnvOptions)]


def playing(runtime: str) -> Callable[[Values], str]:
    """Return a function from the values of a config to the id of their environment (``envs.plays``). The user's
    environments are made where ``runtime`` would make them."""

    def found(values: Values) -> str:
        with looking_under(runtime):
            return plays(values["env"], EnvOptions(**{name: values[name] for name in OPTIONS}))

    return found
