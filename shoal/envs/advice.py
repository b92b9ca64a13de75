"""Error messages for environments that are not found or cannot be made."""

from __future__ import annotations

import inspect
import re
from types import ModuleType

import gymnasium as gym
from gymnasium.vector import VectorEnv

from shoal import own_code
from shoal.api import UsageError

from .unknown import latest


class constructing:
    """A context that turns errors of an environment's constructor, often a wrong keyword or a missing package, into a
    UsageError of one sentence."""

    def __init__(self, env: str):
        self.env = env

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (Exception, SystemExit)) and not isinstance(error, UsageError):
            said = f"environment {self.env!r} cannot be made: {own_code.told(error)}{_arguments(error)}"
            newest = latest(self.env, list(gym.registry)) if isinstance(error, ImportError) else ""
            if newest not in ("", self.env):
                said = f"{said.rstrip('.')}; its latest version is {newest!r}"
            raise UsageError(said) from error


def _arguments(error: BaseException) -> str:
    """Return how arguments are given that a constructor misses, as the end of a sentence; else ""."""
    found = re.search(r"missing \d+ required [\w-]+ arguments?: (.+?)(?: was raised|$)", str(error))
    if not isinstance(error, TypeError) or found is None:
        return ""
    given = " ".join(f"--env-kwargs.{name} VALUE" for name in re.findall(r"'(\w+)'", found[1]))
    give = "give them" if "VALUE --" in given else "gives it"
    return f"; {given} {give}, or FILE.py:NAME names a function that makes it"


def offered(module: ModuleType) -> list[str]:
    """Return names in a user's module that may be environments: ids that it registered, its environment classes and its
    functions."""
    ids = [id for id, spec in gym.registry.items() if str(spec.entry_point).startswith(f"{module.__name__}:")]
    makers = [
        name for name, found in vars(module).items()
        if not name.startswith("_")
        and (issubclass(found, (gym.Env, VectorEnv)) if inspect.isclass(found) else callable(found))
    ]  # fmt: skip
    return ids + makers


def no_env(made: object) -> str:
    """Return a description of a factory's result that is no environment, with advice."""
    kind = type(made)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(made, VectorEnv):
        return (
            f"{name}, which is a vector environment: return one environment, of which each actor makes as many as "
            "'envs' says, or take num_envs and return a vector environment of so many"
        )
    if all(callable(getattr(made, method, None)) for method in ("reset", "step")):
        return (
            f"{name}, which is not a gymnasium.Env: an environment of the time before Gymnasium is wrapped in one "
            "(shimmy has GymV21CompatibilityV0 and GymV26CompatibilityV0), any other derives from gymnasium.Env"
        )
    return f"{name}, not a gymnasium.Env"
