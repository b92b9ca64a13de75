"""Q-learning from a worker's own segments, with a target network that all workers share.

Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning", algorithms 1 and 2.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from shoal.api import Act, Arrays, Batch, Tensors, Update, observations
from shoal.fast.live import LiveTensors
from shoal.fast.rounded import inferring
from shoal.learning.algorithm import Algorithm
from shoal.learning.q_learning import QAgent
from shoal.learning.segment_learner import SegmentLearner
from shoal.nets.q_network import QNetwork
from shoal.ops import select

Last = Literal["q_max", "q_taken"]


class SegmentQ(Algorithm):
    """The squared error of ``Q(s, a)``, summed over a segment. A system says what it is compared with: ``returns``."""

    def __init__(self, nets: QNetwork, gamma: float) -> None:
        super().__init__(nets)
        self.gamma = gamma
        self.target: Any = inferring(copy.deepcopy(nets))
        self.frozen = (self.target,)

    def returns(self, items: Tensors, values: Tensor) -> Tensor:
        """The targets [T, B] of a segment's steps; values [T + 1, B, A]: the target network's."""
        raise NotImplementedError

    def prepare(self, batch: Batch) -> Batch:
        """A segment, [T, B] with T + 1 observations, as rows [T B] that each have a ``target``; ``weight``: 1, or 0
        where the action was ignored."""
        items = batch.items
        steps, obs = len(items["reward"]), observations(items)
        with torch.no_grad():
            values = self.target({k: v.flatten(0, 1) for k, v in obs.items()})
            target = self.returns(items, values.view(*items["first"].shape, -1))
        rows = {k: v[:steps] for k, v in obs.items()}
        rows |= {"action": items["action"][:steps], "target": target, "weight": items["valid"].float()}
        return batch._replace(items={k: v.flatten(0, 1) for k, v in rows.items()})

    def loss(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Update]:
        """outputs: the values [T B, A]."""
        items, weight = batch.items, batch.items["weight"]
        q = select(outputs, items["action"])
        error = items["target"] - q
        with torch.no_grad():
            count = weight.sum().clamp(min=1.0)
            metrics = {"q_mean": (q * weight).sum() / count, "td_error": (error.abs() * weight).sum() / count}
        return (error.square() * weight).sum(), Update(metrics)


class SegmentQLearner(SegmentLearner):
    """Its target network is loaded, not copied: it is the same for all workers."""

    def __init__(self, algorithm: SegmentQ, max_norm: float | None) -> None:
        super().__init__(algorithm, max_norm)
        self._target = LiveTensors(algorithm.target)

    def load_target(self, params: Tensors) -> None:
        self._target.load(params)


class SegmentQAgent(QAgent):
    """Epsilon-greedy; ``value``: what an episode that the time limit has ended is worth at its last observation, where
    the environment resets within the step (by the acting network). last: of the best action or of the one chosen."""

    def __init__(self, nets: QNetwork, epsilon: Any, seed: int, last: Last) -> None:
        super().__init__(nets, epsilon, seed, with_values=True)
        self.last = last

    def act(self, obs: Arrays, first: np.ndarray, state: Tensors, greedy: bool = False) -> Act:
        act = super().act(obs, first, state, greedy)
        return act._replace(extras={"value": act.extras[self.last]})
