"""The base class of optimisers: their step, their state, and how several processes divide it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from shoal import fast
from shoal.types import State, Values

Own = TypeVar("Own", bound="Optimiser")
Method = TypeVar("Method", bound=Callable[..., Any])


def plain(method: Method) -> Method:
    """A method of torch's optimisers without its wrapper for torch.compile, whose machinery the first call of any of
    them would import (benchmarks/results/notes-on-speed.md)."""
    return getattr(method, "__wrapped__", method) if fast.ENABLED else method


class Optimiser(torch.optim.Optimizer, ABC):
    """Base class of Shoal's optimisers.

    defaults: settings of every group of parameters. Where ``lr`` is a schedule, ``learning_rate`` is that, and the
    groups have its start, a plain number.
    """

    def __init__(self, params: ParamsT, defaults: Values) -> None:
        super().__init__(params, defaults)
        self.learning_rate: float = self.param_groups[0]["lr"]
        for settings in (self.defaults, *self.param_groups):
            settings["lr"] = float(settings["lr"])

    add_param_group = plain(torch.optim.Optimizer.add_param_group)
    state_dict = plain(torch.optim.Optimizer.state_dict)
    load_state_dict = plain(torch.optim.Optimizer.load_state_dict)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One update of every parameter that has a gradient; returns the closure's loss, if one is given."""
        loss: float | None = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params: list[Tensor] = [p for p in group["params"] if p.grad is not None]
            if params:
                self._update(params, [p.grad for p in params if p.grad is not None], group)
        return loss

    step.hooked = fast.ENABLED  # type: ignore[attr-defined]  # torch would put a span for its profiler around each step

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        for group in self.param_groups:
            for p in group["params"]:
                if set_to_none:
                    p.grad = None
                elif p.grad is not None:
                    p.grad.zero_()

    @torch.no_grad()
    def divided(self: Own, parts: int, memory: Callable[[Sequence[int]], Tensor]) -> list[Own]:
        """Optimisers that each move one of ``parts`` of this one's parameters (see ``divide``), in place.

        This one keeps the state, which moves to tensors of zeros that ``memory`` gives.
        """
        (group,) = self.param_groups
        params = group["params"]
        for name in self._slots():
            for p in params:
                old, new = self.state[p].get(name), memory(p.shape)
                self.state[p][name] = new if old is None else new.copy_(old)
        slots = {name: divide(self._slot(params, name), parts) for name in self._slots()}
        out = []
        for number, part in enumerate(divide([p.data for p in params], parts)):
            one = type(self)(part, **{name: group[name] for name in self.defaults if name in group})
            for i, p in enumerate(one.param_groups[0]["params"]):
                one.state[p] = {name: of[number][i] for name, of in slots.items()}
            out.append(one)
        return out

    @torch.no_grad()
    def descend(self, grads: list[Tensor], lr: float, divisor: float = 1.0, into: list[Tensor] | None = None) -> None:
        """One step of size ``lr`` along ``grads / divisor``, one for each parameter; they are divided in place.

        into: where the parameters are to lie from now on, one tensor for each: what they were stays where it is.
        """
        (group,) = self.param_groups
        group["lr"] = lr
        self._update(group["params"], grads, group, divisor, into)
        for p, place in zip(group["params"], into or (), strict=into is not None):
            p.data = place

    @abstractmethod
    def _slots(self) -> tuple[str, ...]:
        """Names of what is kept for each parameter, in its shape."""

    def _slot(self, params: list[Tensor], name: str) -> list[Tensor]:
        """Return what is kept for each parameter under ``name``, at first zeros of its shape."""
        for p in params:
            if name not in self.state[p]:
                self.state[p][name] = torch.zeros_like(p)
        return [self.state[p][name] for p in params]

    def _numbers(self, params: list[Tensor], name: str) -> Tensor:
        """One number of each parameter, at first 0: joined in memory, so that one operation changes all of them."""
        # A checkpoint of another device leaves them there: torch's load_state_dict moves all but these
        joined = torch.stack([self.state[p].get(name, p.new_zeros(())).to(p.device) for p in params])
        for p, number in zip(params, joined.unbind(), strict=True):
            self.state[p][name] = number
        return joined

    @abstractmethod
    def _update(
        self, params: list[Tensor], grads: list[Tensor], group: Values, divisor: float = 1.0,
        into: list[Tensor] | None = None,
    ) -> None:  # fmt: skip
        """One step along ``grads / divisor``, of which the result is written to ``into``; None: in place."""


def move(
    params: list[Tensor], grads: list[Tensor], roots: tuple[Tensor, ...] | list[Tensor], lr: float,
    into: list[Tensor] | None,
) -> None:  # fmt: skip
    """``into = params - lr * grads / roots``; None: in place."""
    if into is None:
        torch._foreach_addcdiv_(params, grads, roots, value=-lr)
        return
    for p, g, root, place in zip(params, grads, roots, into, strict=True):
        torch.addcdiv(p, g, root, value=-lr, out=place)


def divide(tensors: list[Tensor], parts: int) -> list[list[Tensor]]:
    """[parts][tensors]: each tensor's elements, flat, in equal parts (views; expects contiguous tensors)."""
    pieces = [t.view(-1).tensor_split(parts) for t in tensors]
    return [[of[i] for of in pieces] for i in range(parts)]


def load_optimiser(optimiser: torch.optim.Optimizer, state: State) -> None:
    """Take the averages of a saved optimiser, but not its settings: those are the configuration's. ValueError for what
    cannot be the averages of these parameters, of an optimiser of Shoal's (torch's check their own)."""
    own = [{k: v for k, v in group.items() if k != "params"} for group in optimiser.param_groups]
    optimiser.load_state_dict(state)
    for group, settings in zip(optimiser.param_groups, own, strict=True):
        group.update(settings)
        for p in group["params"]:
            for name, value in optimiser.state[p].items() if isinstance(optimiser, Optimiser) else ():
                if not isinstance(value, torch.Tensor) or value.shape not in (p.shape, ()):
                    raise ValueError(f"'{name}' of the optimiser is no tensor of the shape {list(p.shape)}")


def set_learning_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all groups of parameters."""
    for group in optimiser.param_groups:
        group["lr"] = rate
