"""An agent that acts by a network: its parameters, its random numbers, and the state of both."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import nn

from shoal.api import Tensors
from shoal.nets.named_tensors import NamedTensors
from shoal.nets.precision import inferring
from shoal.types import State

Network = TypeVar("Network", bound=nn.Module)
Random = TypeVar("Random", np.random.Generator, torch.Generator)


class NetworkAgent(Generic[Network, Random]):
    """Base class of agents with a network, ``nets``; all random numbers come from ``rng``. A subclass adds ``act``."""

    def __init__(self, nets: Network, rng: Random) -> None:
        self.rng: Random = rng
        self._hold(inferring(nets))

    def _hold(self, nets: Network) -> None:
        """Set the network to act with."""
        self.nets: Network = nets
        self._live = NamedTensors(nets)

    def initial_state(self, envs: int) -> Tensors:
        """Return the recurrent state before the first step of ``envs`` environments; here there is none."""
        return {}

    def load(self, params: Tensors, version: int) -> None:
        """Act with a copy of these parameters from now on."""
        self._live.load(params)

    def adopt(self, params: Tensors) -> None:
        """Act with these tensors from now on, without a copy: later changes of them count."""
        self._live.adopt(params)

    def state_dict(self) -> State:
        return {"nets": self.nets.state_dict(), "rng": _generator_state(self.rng)}

    def load_state_dict(self, state: State) -> None:
        self.nets.load_state_dict(state["nets"])
        _restore_generator(self.rng, state["rng"])


def _generator_state(rng: np.random.Generator | torch.Generator) -> Any:
    """Return the state of a random generator, for ``_restore_generator``."""
    return rng.bit_generator.state if isinstance(rng, np.random.Generator) else rng.get_state()


def _restore_generator(rng: np.random.Generator | torch.Generator, state: Any) -> None:
    """Set a random generator to a state that ``_generator_state`` returned."""
    if isinstance(rng, np.random.Generator):
        rng.bit_generator.state = state
    else:
        rng.set_state(state)
