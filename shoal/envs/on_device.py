"""Environments whose arrays are tensors on a device, by name."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from shoal import own_code
from shoal.on_device import DeviceEnvBatch
from shoal.types import Values

from .device_cartpole import ON_DEVICE
from .from_callable import CallableEnv, require_again
from .options import EnvOptions
from .own_device import OwnDeviceEnvs, on_any_device
from .registry import is_factory

# Options that change observations or rewards, which environments on a device do not support, with values that have no
# effect
UNCHANGED = {"reward_clip": "none", "reward_scale": 1.0, "novelty": 0.0, "last_action_reward": False}


def device_envs(env: str, options: EnvOptions, num: int, device: str) -> DeviceEnvBatch:
    """Make ``num`` environments on ``device`` by the name of an environment whose arrays are on a device."""
    given: Values = dict(options.env_kwargs)
    if env in ON_DEVICE:
        if options.max_episode_steps is not None:
            given["max_episode_steps"] = options.max_episode_steps
        return ON_DEVICE[env](num, device, **given)
    return OwnDeviceEnvs(env, _callable(env), num, device, **given)


def on_device(env: str) -> bool:
    """Return True if the arrays of an environment are tensors on a device: one of Shoal's own, or one of a class of the
    user's that takes ``num_envs`` and ``device``."""
    require_again(env)
    if env in ON_DEVICE or not is_factory(env):
        return env in ON_DEVICE
    return on_any_device(_callable(env))


def left_off(values: Values, free: Collection[str]) -> tuple[Values, str]:
    """Return values without effect for those of ``UNCHANGED`` that have an effect in ``values`` and that the user has
    not set (``free``), and a sentence about them, if the environment is on a device; else {} and ""."""
    found = {name: plain for name, plain in UNCHANGED.items() if name in free and values[name] != plain}
    if not found or not on_device(values["env"]):
        return {}, ""
    told = ", ".join(f"{name} {plain} (not {values[name]})" for name, plain in found.items())
    return found, f"{told}: {values['env']} lives on the learner's device"


def _callable(env: str) -> Any:
    """Return the object that makes a user's environment, or None if the name is an id that its module registers."""
    if isinstance(env, CallableEnv):
        return env.factory
    module, _, name = env.rpartition(":")
    return getattr(own_code.load(module, f"environment {env!r}", kind="env"), name, None)
