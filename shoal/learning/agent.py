"""An agent that acts by a network: its parameters, its random numbers, and the state of both."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
import torch
from torch import nn

from shoal.api import Tensors
from shoal.nets.live import LiveTensors
from shoal.nets.precision import inferring
from shoal.types import State

Network = TypeVar("Network", bound=nn.Module)
Random = TypeVar("Random", np.random.Generator, torch.Generator)


class NetworkAgent(Generic[Network, Random]):
    """An agent but for ``act``: ``nets``, which only infers from now on, and ``rng``, of which alone it draws."""

    def __init__(self, nets: Network, rng: Random) -> None:
        self.nets: Network = inferring(nets)
        self.rng: Random = rng
        self._live = LiveTensors(nets)

    def initial_state(self, envs: int) -> Tensors:
        """The recurrent state before the first step of so many environments; here none."""
        return {}

    def load(self, params: Tensors, version: int) -> None:
        """Act by a copy of these parameters from now on."""
        self._live.load(params)

    def adopt(self, params: Tensors) -> None:
        """Act by these tensors from now on, whatever they hold."""
        self._live.adopt(params)

    def state_dict(self) -> State:
        rng = self.rng.bit_generator.state if isinstance(self.rng, np.random.Generator) else self.rng.get_state()
        return {"nets": self.nets.state_dict(), "rng": rng}

    def load_state_dict(self, state: State) -> None:
        self.nets.load_state_dict(state["nets"])
        if isinstance(self.rng, np.random.Generator):
            self.rng.bit_generator.state = state["rng"]
        else:
            self.rng.set_state(state["rng"])
