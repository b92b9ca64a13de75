"""Environments whose arrays are tensors on a device, by name."""

from __future__ import annotations

from typing import Any

from shoal import own_code
from shoal.on_device import DeviceEnvBatch
from shoal.types import Values

from .device_cartpole import ON_DEVICE
from .given import Given, require_again
from .options import EnvOptions
from .own_device import OwnDeviceEnvs, on_any_device
from .registry import is_factory


def device_envs(env: str, options: EnvOptions, num: int, device: str) -> DeviceEnvBatch:
    """Make ``num`` environments on a ``device``, of those that live on one (``on_device``)."""
    given: Values = dict(options.env_kwargs)
    if env in ON_DEVICE:
        if options.max_episode_steps is not None:
            given["max_episode_steps"] = options.max_episode_steps
        return ON_DEVICE[env](num, device, **given)
    return OwnDeviceEnvs(env, _callable(env), num, device, **given)


def on_device(env: str) -> bool:
    """Return whether the arrays of an environment are tensors on a device: one of Shoal's own, or of a
    class of the user's that takes ``num_envs`` and ``device``."""
    require_again(env)
    if env in ON_DEVICE or not is_factory(env):
        return env in ON_DEVICE
    return on_any_device(_callable(env))


def _callable(env: str) -> Any:
    """What makes an environment of the user's; None where its name is an id that its module registers."""
    if isinstance(env, Given):
        return env.factory
    module, _, name = env.rpartition(":")
    return getattr(own_code.load(module, f"environment {env!r}", kind="env"), name, None)
