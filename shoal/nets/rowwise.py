"""Acting by a network in two parts, so that several agents may share a pass of it, on a device of its own."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from shoal.api import Act, Arrays, Tensors
from shoal.fast.rounded import unrounded
from shoal.nets.precision import Precision, inferring, resolve

M = TypeVar("M", bound=nn.Module)
Draws = tuple[np.ndarray | torch.Tensor, ...]  # random numbers, a row [E, ...] for each observation; none: act greedily


def moved(nets: M, device: str, precision: Precision) -> M:
    """``nets``, which only infers, changed: it lies on ``device``, and computes in what ``precision`` means there."""
    nets = unrounded(nets).to(device)
    if hasattr(nets, "precision"):
        nets.device, nets.precision = device, resolve(precision, device, nets)  # type: ignore[assignment]
    return inferring(nets)


class Rowwise:
    """The choice of an agent with a network ``nets``: ``draw`` takes random numbers, and ``respond`` is what follows
    from them and the observations. A row of a response depends on that row alone, so that several agents may share a
    pass of one network. What an agent is given and returns lies on the host, but for recurrent states."""

    nets: Any
    device = torch.device("cpu")
    on_host = True  # whether that is the CPU

    def move(self, device: str, precision: Precision = "auto") -> None:
        """Act on another device, in what ``precision`` means there."""
        self.device = torch.device(device)
        self.on_host = self.device.type == "cpu"
        self._hold(moved(self.nets, device, precision))

    def share(self, other: Rowwise) -> None:
        """Act by the network of ``other`` from now on, in place of its own: by whatever ``other`` loads."""
        self.device, self.on_host = other.device, other.on_host
        self._hold(other.nets)

    def _hold(self, nets: Any) -> None:
        raise NotImplementedError

    def act(self, obs: Arrays, first: np.ndarray, state: Tensors, greedy: bool = False) -> Act:
        return self.respond(obs, first, state, () if greedy else self.draw(obs, first))

    def draw(self, obs: Arrays, first: np.ndarray) -> Draws:
        """Return the random numbers for choosing actions for observations ``[E, ...]``. first: where an episode starts,
        bool [E]."""
        raise NotImplementedError

    def respond(self, obs: Arrays, first: np.ndarray, state: Tensors, drawn: Draws) -> Act:
        """Return actions for observations ``[E, ...]`` from the random numbers of ``draw``, which are overwritten;
        without them, the greedy actions."""
        raise NotImplementedError

    def tensors(self, arrays: Arrays) -> Tensors:
        """The arrays as tensors on the network's device."""
        if self.on_host:
            return {name: torch.from_numpy(array) for name, array in arrays.items()}
        return {name: self.tensor(array) for name, array in arrays.items()}

    def tensor(self, array: np.ndarray | torch.Tensor) -> torch.Tensor:
        """The array as a tensor on the network's device, which on a CPU shares its memory."""
        made = array if isinstance(array, torch.Tensor) else torch.from_numpy(array)
        return made if self.on_host else made.to(self.device)

    def array(self, tensor: torch.Tensor) -> np.ndarray:
        """The tensor, of which no gradient is asked, as an array on the host, which on a CPU shares its memory."""
        made: np.ndarray = tensor.numpy() if self.on_host else tensor.cpu().numpy()
        return made

    def placed(self, state: Tensors) -> Tensors:
        """A recurrent state on the network's device."""
        return state if self.on_host else {name: v.to(self.device) for name, v in state.items()}
