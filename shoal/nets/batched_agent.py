"""Action selection in two parts (random draws, network pass), so that several agents can share one pass of a network,
possibly on another device."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from shoal.api import Act, Arrays, Tensors
from shoal.fast.rounded import unrounded
from shoal.nets.precision import Precision, inferring, resolve

M = TypeVar("M", bound=nn.Module)
# random numbers, one row [E, ...] for each observation; empty: act greedily
Draws = tuple[np.ndarray | torch.Tensor, ...]


def moved(nets: M, device: str, precision: Precision) -> M:
    """Move ``nets``, which is used for inference only, to ``device``, set what ``precision`` means there, and return
    it."""
    nets = unrounded(nets).to(device)
    if hasattr(nets, "precision"):
        nets.device, nets.precision = device, resolve(precision, device, nets)  # type: ignore[assignment]
    return inferring(nets)


class BatchedAgent:
    """Action selection of an agent with a network ``nets``: ``draw`` takes random numbers, and ``respond`` computes
    actions from them and the observations.

    Each row of a response depends on that row alone, so several agents can share one pass. Arguments and results are in
    host memory, except recurrent states.
    """

    nets: Any
    device = torch.device("cpu")
    on_host = True  # whether the device is the CPU

    def move(self, device: str, precision: Precision = "auto") -> None:
        """Act on another device, in what ``precision`` means there."""
        self.device = torch.device(device)
        self.on_host = self.device.type == "cpu"
        self._hold(moved(self.nets, device, precision))

    def share(self, other: BatchedAgent) -> None:
        """Act by the network of ``other`` from now on, with whatever parameters ``other`` loads."""
        self.device, self.on_host = other.device, other.on_host
        self._hold(other.nets)

    def _hold(self, nets: Any) -> None:
        raise NotImplementedError

    def act(self, obs: Arrays, first: np.ndarray, state: Tensors, greedy: bool = False) -> Act:
        return self.respond(obs, first, state, () if greedy else self.draw(obs, first))

    def draw(self, obs: Arrays, first: np.ndarray) -> Draws:
        """Return the random numbers for choosing actions for observations ``[E, ...]``. first: bool [E], True where an
        episode starts."""
        raise NotImplementedError

    def respond(self, obs: Arrays, first: np.ndarray, state: Tensors, drawn: Draws) -> Act:
        """Return actions for observations ``[E, ...]`` from the random numbers of ``draw``, which are overwritten, or
        greedy actions if there are none."""
        raise NotImplementedError

    def tensors(self, arrays: Arrays) -> Tensors:
        """Return the arrays as tensors on the network's device."""
        if self.on_host:
            return {name: torch.from_numpy(array) for name, array in arrays.items()}
        return {name: self.tensor(array) for name, array in arrays.items()}

    def tensor(self, array: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Return the array as a tensor on the network's device. On a CPU it shares memory."""
        made = array if isinstance(array, torch.Tensor) else torch.from_numpy(array)
        return made if self.on_host else made.to(self.device)

    def array(self, tensor: torch.Tensor) -> np.ndarray:
        """Return the tensor, which must not require a gradient, as an array on the host. On a CPU it shares memory."""
        made: np.ndarray = tensor.numpy() if self.on_host else tensor.cpu().numpy()
        return made

    def placed(self, state: Tensors) -> Tensors:
        """Return a recurrent state on the network's device."""
        return state if self.on_host else {name: v.to(self.device) for name, v in state.items()}
