"""An agent that acts by a network: its parameters, its random numbers, and the state of both."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
import torch
from torch import nn

from shoal.api import Act, Arrays, Tensors
from shoal.fast.rounded import unrounded
from shoal.nets.live import LiveTensors
from shoal.nets.precision import Precision, inferring, resolve
from shoal.types import State

Network = TypeVar("Network", bound=nn.Module)
Random = TypeVar("Random", np.random.Generator, torch.Generator)
Draws = tuple[np.ndarray, ...]  # random numbers, a row [E, ...] for each observation; none: act greedily


class NetworkAgent(Generic[Network, Random]):
    """An agent but for ``act``: ``nets``, which only infers from now on, and ``rng``, of which alone it draws."""

    def __init__(self, nets: Network, rng: Random) -> None:
        self.rng: Random = rng
        self._hold(inferring(nets))

    def _hold(self, nets: Network) -> None:
        """Act by ``nets``, and what follows from it."""
        self.nets: Network = nets
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


class RowwiseAgent(NetworkAgent[Network, Random]):
    """An agent whose choice has two parts: ``draw`` takes random numbers, and ``respond`` is what follows from them and
    the observations. A row of a response depends on that row alone, so that several agents may share a pass of one
    network.

    device: where the network lies. What an agent is given and returns lies on the host, but for recurrent states."""

    device = torch.device("cpu")

    def move(self, device: str, precision: Precision = "auto") -> None:
        """Act on another device, in what ``precision`` means there."""
        self.device = torch.device(device)
        nets = unrounded(self.nets).to(self.device)
        if hasattr(nets, "precision"):
            nets.device, nets.precision = device, resolve(precision, device, nets)  # type: ignore[assignment]
        self._hold(inferring(nets))

    def share(self, other: RowwiseAgent[Network, Random]) -> None:
        """Act by the network of ``other`` from now on, in place of its own: by whatever ``other`` loads."""
        self.device = other.device
        self._hold(other.nets)

    def act(self, obs: Arrays, first: np.ndarray, state: Tensors, greedy: bool = False) -> Act:
        return self.respond(obs, first, state, () if greedy else self.draw(obs))

    def draw(self, obs: Arrays) -> Draws:
        """Return the random numbers that the choice for observations ``[E, ...]`` is made of."""
        raise NotImplementedError

    def respond(self, obs: Arrays, first: np.ndarray, state: Tensors, drawn: Draws) -> Act:
        """Return the choice for observations ``[E, ...]``, given what was drawn for them; nothing: the best guess."""
        raise NotImplementedError

    def tensors(self, arrays: Arrays) -> Tensors:
        """The arrays as tensors on the network's device."""
        return {name: self.tensor(array) for name, array in arrays.items()}

    def tensor(self, array: np.ndarray) -> torch.Tensor:
        """The array as a tensor on the network's device, which on a CPU shares its memory."""
        made = torch.from_numpy(array)
        return made if self.device.type == "cpu" else made.to(self.device)

    def placed(self, state: Tensors) -> Tensors:
        """A recurrent state on the network's device."""
        return state if self.device.type == "cpu" else {name: v.to(self.device) for name, v in state.items()}
