"""Environments on a device as NumPy vector environments on the CPU, for actors and evaluations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from shoal.api import Action, Observation, Tensors
from shoal.on_device import DeviceEnvBatch

from .types import Info, Nested, Space


class ThroughNumPy(VectorEnv[Any, np.ndarray, np.ndarray]):
    """The ``DeviceEnvBatch`` that ``make(num_envs, "cpu", **given)`` returns, as a vector environment."""

    def __init__(self, make: Callable[..., DeviceEnvBatch], num_envs: int, **given: Any) -> None:
        self._device_envs = made = make(num_envs, "cpu", **given)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.num_envs = num_envs
        leaves, self._dtype = made.spec.observations, made.spec.action.dtype
        self._plain = next(iter(leaves)) if leaves.keys() == {"obs"} else ""
        spaces = {name.removeprefix("obs/"): _space(leaf) for name, leaf in leaves.items()}
        self.single_observation_space: Space = spaces["obs"] if self._plain else gs.Dict(spaces)
        self.single_action_space = _action_space(made.spec.action)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        return self._shown(self._device_envs.reset(int(self.np_random.integers(2**31)))), {}

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, Info]:
        step = self._device_envs.step(torch.from_numpy(np.asarray(actions, self._dtype)))
        infos = {"final_obs": self._shown(step.final_obs)}
        numbers = (step.reward.numpy(), step.terminated.numpy(), step.truncated.numpy())
        return self._shown(step.obs), *numbers, infos

    def _shown(self, obs: Tensors) -> Nested:
        if self._plain:
            return obs[self._plain].numpy()
        return {name.removeprefix("obs/"): tensor.numpy() for name, tensor in obs.items()}


def _space(leaf: Observation) -> Space:
    if leaf.kind == "image":
        return gs.Box(0, 255, leaf.shape, np.uint8)
    if leaf.kind == "one_hot":
        return gs.MultiDiscrete(np.array(leaf.size))
    if leaf.kind == "mask":
        return gs.MultiBinary(leaf.shape)
    return gs.Box(-np.inf, np.inf, leaf.shape, np.float32)


def _action_space(action: Action) -> Space:
    if action.kind == "discrete":
        return gs.Discrete(action.sizes[0])
    if action.kind == "multi_discrete":
        return gs.MultiDiscrete(list(action.sizes))
    return gs.Box(np.array(action.low, np.float32), np.array(action.high, np.float32), dtype=np.float32)
