"""Asynchronous one-step SARSA: asynchronous Q-learning towards the value of the action that is taken next.

Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning", section 4.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal.api import Batch, Context, State, Tensors
from shoal.learning.actor_critic import boundaries
from shoal.learning.segment_learner import interrupted
from shoal.ops import n_step_returns, select
from shoal.program import Program
from shoal.systems import async_q
from shoal.systems.async_q import SegmentQ, SegmentQAgent
from shoal.topology.config import Presets

PRESETS: Presets = {
    "paper": async_q.PAPER, "classic": async_q.CLASSIC, "minatar": async_q.MINATAR, "states": async_q.STATES,
    "vector": async_q.VECTOR,
}  # fmt: skip


class Config(async_q.Config):
    """Asynchronous SARSA. A worker's step learns from ``envs`` segments of ``unroll`` agent steps."""


class OneStepSarsa(SegmentQ):
    """``y = r + gamma Q(s', a'; theta^-)``, where a' is the action taken in s'.

    The last action of a segment is followed by one of the next segment: its step is learned from with that one.
    """

    def __init__(self, nets: Any, gamma: float) -> None:
        super().__init__(nets, gamma)
        self.held: Tensors = {}  # the last step of the segment before, [1, B] each

    def prepare(self, batch: Batch) -> Batch:
        items, steps = batch.items, len(batch.items["reward"])
        held = self.held or {k: v[:1] for k, v in items.items()}
        first, last = items["first"][0], {k: v[0] for k, v in held.items()}
        broken = interrupted(last, first) if self.held else torch.ones_like(first)
        joined = {k: torch.cat((held[k], v)) for k, v in items.items()}
        joined["valid"][0] &= ~broken
        self.held = {k: v[steps - 1 : steps].clone() for k, v in items.items()}
        states = ("obs", "first", "action")  # one more of these than of the steps between them
        rows = {k: steps + k.startswith(states) for k in joined}
        return super().prepare(batch._replace(items={k: v[: rows[k]] for k, v in joined.items()}))

    def returns(self, items: Tensors, values: Tensor) -> Tensor:
        discounts, next_values, cut = boundaries(items, select(values, items["action"]), self.gamma)
        return n_step_returns(items["reward"], discounts, next_values, cut, 1)

    def state_dict(self) -> State:
        return {"held": self.held}

    def load_state_dict(self, state: State) -> None:
        self.held = dict(state["held"])


def agent(cfg: Config, seed: int = 0, ctx: Context | None = None) -> SegmentQAgent:
    """Epsilon-greedy; see ``async_q.agent``."""
    return async_q.agent(cfg, seed, ctx, "q_taken")


def program(cfg: Config) -> Program:
    """Workers, the parameters and the target network that they share."""
    return async_q.workers("async-sarsa", cfg, OneStepSarsa, "q_taken")
