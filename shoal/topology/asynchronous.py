"""Configuration and channels of asynchronous workers, which all update the same parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from shoal.api import UsageError
from shoal.learning.optimiser import OptimiserConfig
from shoal.learning.segment_learner import parameters_spec
from shoal.nets.normaliser import running_of
from shoal.ops import SharedRMSProp
from shoal.program import Channel
from shoal.settings.ranges import Count, Envs, Positive, Replicas
from shoal.settings.schedule import linear
from shoal.topology.channels import shapes
from shoal.topology.config import SystemConfig


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(SystemConfig, OptimiserConfig):
    """Settings of asynchronous workers. In each step, a worker learns from ``envs`` segments of ``unroll`` agent
    steps."""

    for_more_updates: ClassVar[str] = "smaller values of unroll, envs or total_envs"

    actors: Replicas = 0
    """Workers, each with environments and gradients of its own; 0: one per core."""
    envs: Envs = 1
    """Environments of each worker (the paper's have one)."""
    unroll: Count = 5
    """Agent steps of a segment (the paper's t_max, or I_AsyncUpdate)."""
    learning_rate: float = linear(7e-4, 0.0)
    optimiser: Literal["rmsprop"] = "rmsprop"
    """Optimiser: rmsprop, whose average of squared gradients all workers share."""
    optimiser_eps: Positive = 0.1
    max_grad_norm: float | None = 40.0

    def updates(self) -> float | None:
        return self.steps / (self.envs * self.unroll)


def shared_parameters(system: str, cfg: OptimiserConfig, network: Callable[[], nn.Module]) -> Channel:
    """Return the channel of the parameters of ``network()``, which workers update by shared RMSProp. The network is
    built without allocating memory. Raises UsageError for another optimiser."""
    if cfg.optimiser != "rmsprop":
        raise UsageError(f"optimiser is {cfg.optimiser}, but {system} shares the statistics of rmsprop")
    if cfg.rmsprop_centred:
        raise UsageError(f"rmsprop_centred is true, but {system} shares one average, that of the squared gradients")
    nets = shapes(network)
    rule = SharedRMSProp(cfg.rmsprop_decay, cfg.optimiser_eps, tuple(running_of(nets)))
    return Channel("params", "shared", parameters_spec(nets), rule=rule)
