"""Asynchronous n-step Q-learning: asynchronous Q-learning towards the longest return that a segment has of each step.

Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning", algorithm 2 (supplementary section 6).
"""

from __future__ import annotations

from torch import Tensor

from shoal.api import Context, Tensors
from shoal.learning.actor_critic import boundaries
from shoal.ops import lambda_returns
from shoal.program import Program
from shoal.systems import async_q
from shoal.systems.async_q import SegmentQ, SegmentQAgent
from shoal.topology.config import Presets


class Config(async_q.Config):
    """Asynchronous n-step Q-learning. A worker's step learns from ``envs`` segments of ``unroll`` agent steps."""


PRESETS: Presets = {
    "paper": async_q.PAPER, "classic": async_q.CLASSIC, "minatar": async_q.MINATAR, "states": async_q.STATES,
    "vector": async_q.VECTOR,
}  # fmt: skip


class NStepQ(SegmentQ):
    """``R = max_a Q(s_T, a; theta^-)``, and backwards ``R = r_t + gamma R``."""

    def returns(self, items: Tensors, values: Tensor) -> Tensor:
        discounts, next_values, cut = boundaries(items, values.amax(-1), self.gamma)
        return lambda_returns(items["reward"], discounts, next_values, cut, 1.0)


def agent(cfg: Config, seed: int = 0, ctx: Context | None = None) -> SegmentQAgent:
    """Epsilon-greedy; see ``async_q.agent``."""
    return async_q.agent(cfg, seed, ctx)


def program(cfg: Config) -> Program:
    """Workers, the parameters and the target network that they share."""
    return async_q.workers("async-nstep-q", cfg, NStepQ)
