"""Environments whose arrays are torch tensors on one device: what a step returns, and what a batch of them offers."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from shoal.api import EnvSpec, State, Tensors


class DeviceStep(NamedTuple):
    """Result of one step of ``E`` environments, all of it on their device. An episode that ends begins anew within the
    step (``same_step``), so every action counts."""

    obs: Tensors  # each [E, ...], which the next action answers
    reward: Tensor  # float32 [E]
    terminated: Tensor  # bool [E]
    truncated: Tensor  # bool [E]
    final_obs: Tensors  # each [E, ...]: the true next observation, before an episode began anew


class DeviceEnvBatch(Protocol):
    """``num_envs`` environments stepped together on ``device``. ``spec.autoreset`` is ``same_step``. The tensors that
    it returns stay as they are: a later step returns others."""

    spec: EnvSpec
    num_envs: int
    device: torch.device

    def reset(self, seed: int) -> Tensors: ...
    def step(self, action: Tensor) -> DeviceStep: ...
    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...


def go_on_drawing(rng: torch.Generator, state: Tensor) -> None:
    """Draw on as saved, where the generator is of a device of the same kind; leave it as it is where it is not."""
    if len(state) == len(rng.get_state()):
        rng.set_state(state.cpu())
