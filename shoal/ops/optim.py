"""The optimisers: Adam, AdaGrad, SGD, and RMSProp as the papers use it, with epsilon inside the square root."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from shoal import fast
from shoal.fast import rmsprop
from shoal.ops.optimiser import Optimiser, move
from shoal.types import State, Values

__all__ = ["SGD", "AdaGrad", "Adam", "RMSProp"]


class _Averages(NamedTuple):
    """Adam's state of the parameters that had gradients at the last step of their group."""

    params: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]
    taken: Tensor  # steps, one number per parameter
    steps: list[Tensor]  # the same numbers, each by itself


class Adam(Optimiser):
    """Adam (Kingma and Ba 2015, algorithm 1), by torch's fused kernel; its state is that of ``torch.optim.Adam``.

    Args: params: parameters or groups; lr: step size; betas: factors of the averages of g and g^2; eps: outside the
    root.
    """

    def __init__(
        self, params: ParamsT, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        if lr < 0.0:
            raise ValueError(f"Adam: expected lr >= 0, found {lr}")
        if not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"Adam: expected betas in [0, 1), found {betas}")
        if eps < 0.0:
            raise ValueError(f"Adam: expected eps >= 0, found {eps}")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})
        self._known: dict[int, _Averages] = {}  # by group: the state, looked up once

    def _update(
        self, params: list[Tensor], grads: list[Tensor], group: Values, divisor: float = 1.0,
        into: list[Tensor] | None = None,
    ) -> None:  # fmt: skip
        known = self._known.get(id(group))
        if known is None or len(known.params) != len(params) or not all(map(is_, known.params, params)):
            taken = self._numbers(params, "step")
            means, squares = self._slot(params, "exp_avg"), self._slot(params, "exp_avg_sq")
            known = self._known[id(group)] = _Averages(params, means, squares, taken, list(taken.unbind()))
        known.taken.add_(1.0)
        # The kernel pairs numbers by their place in memory: a gradient with its channels last is one of other weights.
        ordered = [
            g if g.stride() == p.stride() else torch.empty_like(p).copy_(g) for p, g in zip(params, grads, strict=True)
        ]
        if into is not None:
            torch._foreach_copy_(into, params)
            params = into
        if not fast.ENABLED:
            self._plain_update(params, ordered, known, group, divisor)
            return
        torch._fused_adam_(
            params, ordered, known.means, known.squares, [], known.steps, lr=group["lr"], beta1=group["betas"][0],
            beta2=group["betas"][1], weight_decay=0.0, eps=group["eps"], amsgrad=False, maximize=False,
            grad_scale=None if divisor == 1.0 else torch.tensor(divisor),
        )  # fmt: skip

    @staticmethod
    def _plain_update(
        params: list[Tensor], grads: list[Tensor], known: _Averages, group: Values, divisor: float
    ) -> None:
        """The same by torch's operations, one parameter after the other."""
        (beta1, beta2), eps = group["betas"], group["eps"]
        for p, gradient, mean, square, step in zip(params, grads, known.means, known.squares, known.steps, strict=True):
            g, t = gradient.div_(divisor), float(step)
            mean.lerp_(g, 1.0 - beta1)
            square.mul_(beta2).addcmul_(g, g, value=1.0 - beta2)
            root = (square / (1.0 - beta2**t)).sqrt_().add_(eps)
            p.addcdiv_(mean, root, value=-group["lr"] / (1.0 - beta1**t))

    def divided(self, parts: int, memory: Callable[[Sequence[int]], Tensor]) -> list[Adam]:
        """All of them count their steps in this one's state, so at most one of them may step in one process."""
        params = self.param_groups[0]["params"]
        taken = self._numbers(params, "step")
        self._known = {}
        out = super().divided(parts, memory)
        for one in out:
            (group,) = one.param_groups
            means, squares = (one._slot(group["params"], name) for name in one._slots())
            one._known[id(group)] = _Averages(group["params"], means, squares, taken, list(taken.unbind()))
        return out

    def _slots(self) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"

    def __setstate__(self, state: State) -> None:  # of a copy, and of load_state_dict
        super().__setstate__(state)
        self._known = {}


class AdaGrad(Optimiser):
    """AdaGrad: ``s = s + g^2``, ``theta = theta - lr * g / (sqrt(s) + eps)``, element by element; ``s`` starts at 0.

    Args: params: parameters or groups; lr: step size; eps: outside the root; Dean et al. have none, and divide by 0
    where every gradient so far was 0.
    Source: Duchi, Hazan and Singer (2011), figure 1, diagonal; Dean et al. (2012), section 4.1 (Downpour SGD).
    """

    def __init__(self, params: ParamsT, lr: float = 1e-2, eps: float = 1e-10) -> None:
        if lr < 0.0:
            raise ValueError(f"AdaGrad: expected lr >= 0, found {lr}")
        if eps <= 0.0:
            raise ValueError(f"AdaGrad: expected eps > 0, found {eps}")
        super().__init__(params, {"lr": lr, "eps": eps})

    def _update(
        self, params: list[Tensor], grads: list[Tensor], group: Values, divisor: float = 1.0,
        into: list[Tensor] | None = None,
    ) -> None:  # fmt: skip
        if divisor != 1.0:
            torch._foreach_div_(grads, divisor)
        sums = self._slot(params, "sum")
        torch._foreach_addcmul_(sums, grads, grads)
        roots = torch._foreach_sqrt(sums)
        torch._foreach_add_(roots, group["eps"])
        move(params, grads, roots, group["lr"], into)

    def _slots(self) -> tuple[str, ...]:
        return ("sum",)


class SGD(Optimiser):
    """Gradient descent with momentum: ``b = m b + g + decay * theta``, ``theta = theta - lr * b``; ``b`` starts at 0.

    Args: params: parameters or groups; lr: step size; momentum: m, in [0, 1]; weight_decay: times theta is the gradient
    of an L2 cost.
    Source: Polyak (1964); as in ``torch.optim.SGD``.
    """

    def __init__(self, params: ParamsT, lr: float = 1e-3, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        if lr < 0.0:
            raise ValueError(f"SGD: expected lr >= 0, found {lr}")
        if not 0.0 <= momentum <= 1.0:
            raise ValueError(f"SGD: expected momentum in [0, 1], found {momentum}")
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def _update(
        self, params: list[Tensor], grads: list[Tensor], group: Values, divisor: float = 1.0,
        into: list[Tensor] | None = None,
    ) -> None:  # fmt: skip
        if divisor != 1.0:
            torch._foreach_div_(grads, divisor)
        sums = self._slot(params, "momentum_buffer")
        torch._foreach_mul_(sums, group["momentum"])
        torch._foreach_add_(sums, grads)
        if group["weight_decay"]:
            torch._foreach_add_(sums, params, alpha=group["weight_decay"])
        if into is not None:
            torch._foreach_copy_(into, params)
        torch._foreach_add_(params if into is None else into, sums, alpha=-group["lr"])

    def _slots(self) -> tuple[str, ...]:
        return ("momentum_buffer",)


class RMSProp(Optimiser):
    """RMSProp with ``g / sqrt(E[g^2] - E[g]^2 + eps)`` if centred, else ``g / sqrt(E[g^2] + eps)``.

    ``torch.optim.RMSprop`` adds eps outside the root, which with the large eps of the papers is another
    algorithm. ``E[.]`` are averages with factor ``decay`` that start at 0. With ``momentum`` m the step is
    ``b = m b + lr * g / root``, ``theta = theta - b``. The centred variance is clamped at 0, because rounding
    can make it less than -eps.

    Args: params: parameters or groups; lr: step size; decay: of the averages (papers: rho, alpha); eps: inside
    the root; centred: subtract the squared mean; momentum: in [0, 1).
    Source: Tieleman and Hinton (2012), lecture 6.5; A3C (Mnih et al. 2016), section 4, Optimization (not
    centred); Graves (2013), eqs. 38 to 45, and deepmind/dqn NeuralQLearner.lua (centred).
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 2.5e-4,
        decay: float = 0.95,
        eps: float = 0.01,
        centred: bool = False,
        momentum: float = 0.0,
    ) -> None:
        if lr < 0.0:
            raise ValueError(f"RMSProp: expected lr >= 0, found {lr}")
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"RMSProp: expected decay in [0, 1), found {decay}")
        if eps <= 0.0:
            raise ValueError(f"RMSProp: expected eps > 0, found {eps}")
        if not 0.0 <= momentum < 1.0:
            raise ValueError(f"RMSProp: expected momentum in [0, 1), found {momentum}")
        defaults = {"lr": lr, "decay": decay, "eps": eps, "centred": centred, "momentum": momentum}
        super().__init__(params, defaults)

    def _update(
        self, params: list[Tensor], grads: list[Tensor], group: Values, divisor: float = 1.0,
        into: list[Tensor] | None = None,
    ) -> None:  # fmt: skip
        if any(g.is_sparse for g in grads):
            raise ValueError("RMSProp: expected dense gradients, found a sparse one")
        if divisor != 1.0:
            torch._foreach_div_(grads, divisor)
        decay: float = group["decay"]
        squares = self._slot(params, "square_avg")
        moved = params if into is None else into
        if rmsprop.moves(moved) and not group["centred"] and not group["momentum"]:
            if into is not None:
                torch._foreach_copy_(into, params)
            rmsprop.descend(moved, squares, grads, group["lr"], decay, group["eps"])
            return
        torch._foreach_mul_(squares, decay)
        torch._foreach_addcmul_(squares, grads, grads, value=1.0 - decay)
        if group["centred"]:
            means = self._slot(params, "grad_avg")
            torch._foreach_mul_(means, decay)
            torch._foreach_add_(means, grads, alpha=1.0 - decay)
            roots = torch._foreach_addcmul(squares, means, means, value=-1.0)
            torch._foreach_clamp_min_(roots, 0.0)
            torch._foreach_add_(roots, group["eps"])
        else:
            roots = torch._foreach_add(squares, group["eps"])
        torch._foreach_sqrt_(roots)
        if group["momentum"] > 0.0:
            steps = self._slot(params, "momentum_buffer")
            torch._foreach_mul_(steps, group["momentum"])
            torch._foreach_addcdiv_(steps, grads, roots, value=group["lr"])
            if into is not None:
                torch._foreach_copy_(into, params)
            torch._foreach_sub_(moved, steps)
        else:
            move(params, grads, roots, group["lr"], into)

    def _slots(self) -> tuple[str, ...]:
        group = self.param_groups[0]
        kept = {"square_avg": True, "grad_avg": group["centred"], "momentum_buffer": group["momentum"] > 0.0}
        return tuple(name for name, wanted in kept.items() if wanted)
