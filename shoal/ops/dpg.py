"""The deterministic policy gradient."""

from __future__ import annotations

from torch import Tensor

from shoal.ops import _check

__all__ = ["dpg_loss"]


def dpg_loss(actions: Tensor, value_gradients: Tensor, clip: float | None = None) -> Tensor:
    """``-sum_j a_j * g_j`` with ``g = clip(dq/da, -clip, clip)`` held constant, plus a constant that makes it 0: its
    gradient by the actions is ``-g``, so that descending it ascends the value.

    Args: actions: float ``[..., A]``, of the policy that learns; value_gradients: float ``[..., A]``, of the critic's
    value by these actions; clip: bound of each element of it (None: no bound). Returns: ``[...]``.
    Source: Silver et al. (2014), Deterministic Policy Gradient Algorithms, eq. 9; the clip: Ape-X (Horgan et al.
    2018), appendix D.
    """
    _check.same_shape("dpg_loss", actions=actions, value_gradients=value_gradients)
    gradients = value_gradients.detach()
    if clip is not None:
        if clip <= 0.0:
            raise ValueError(f"dpg_loss: expected clip > 0, found {clip}")
        gradients = gradients.clamp(-clip, clip)
    return ((actions.detach() - actions) * gradients).sum(-1)
