"""The deterministic policy gradient from replayed transitions: what Ape-X DPG and D4PG share.

Silver et al. 2014 (the gradient), Lillicrap et al. 2016 (DDPG), Horgan et al. 2018 (Ape-X DPG), Barth-Maron et al. 2018
(D4PG: the critic is a distribution of the return).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.api import Act, Arrays, Batch, Tensors, Update, observations
from shoal.learning.agent import NetworkAgent
from shoal.learning.learner import SGDLearner
from shoal.learning.off_policy import OffPolicy, OffPolicyConfig
from shoal.nets.dpg_network import DPGNetwork, Judgement
from shoal.ops import dpg_loss
from shoal.settings.ranges import Fraction, Natural, NonNegative, Positive
from shoal.settings.schedule import Scheduled
from shoal.types import State

EDGES = 0.05  # probability on the outermost atoms from which a user is told
CLIPPED = 0.01  # probability of targets beyond them, without which all is as it should be
FLAT = 0.99  # of half the box, beyond which tanh hardly moves
SETTLED = 1_000  # updates before that: a new critic's distribution is as wide as its range
log = logging.getLogger("shoal.dpg")


@dataclass(frozen=True, kw_only=True)
class DPGConfig(OffPolicyConfig):
    """The learning rule of Ape-X DPG and D4PG."""

    learning_rate: float = 1e-3
    optimiser_eps: Positive = 1e-8
    max_grad_norm: float | None = None
    noise: NonNegative = 0.3
    """Standard deviation of the Gaussian noise on actions, in units of half the action box."""
    random_steps: Natural = 0
    """Environment steps at the beginning, of all actors together, whose actions are drawn uniformly from the box."""
    action_gradient_clip: Scheduled[Positive] | None = None
    """Bound of each element of the critic's gradient by the action (in units of half the box); none: no bound."""
    importance_exponent: Scheduled[Fraction] = 0.4
    """Exponent β of the importance weights."""


class DPG(OffPolicy):
    """The loss of critic and policy, both at the same parameters (D4PG, algorithm 1). What a mixture's loss draws comes
    from ``seed``."""

    adds_up = True

    def __init__(self, cfg: DPGConfig, nets: DPGNetwork, seed: int = 0) -> None:
        super().__init__(nets, cfg.target_period, cfg.importance_exponent if cfg.prioritised else None, seed=seed)
        assert nets.returns is not None
        self.cfg, self.returns = cfg, nets.returns

    def prepare(self, batch: Batch) -> Batch:
        """Also draws the noise of the critic's loss."""
        batch = super().prepare(batch)
        reward = batch.items["reward"]
        assert self.generator is not None
        drawn = self.returns.noise(len(reward), self.generator)
        return batch._replace(items={**batch.items, **{k: v.to(reward.device) for k, v in drawn.items()}})

    def rows(self, items: Tensors) -> int:
        """Critic and policy each have a loss of every transition; by one encoder, from the same pass of it."""
        return super().rows(items) * (1 if self.nets.shared else 2)

    def select(self, items: Tensors, rows: Tensor) -> Tensors:
        """Of the critic's rows, which come first, and of the policy's."""
        if self.nets.shared:
            return super().select(items, rows)
        count, first = len(items["reward"]), int(rows[0]) if len(rows) else 0
        last, seen = first + len(rows), observations(items)
        acting = slice(max(first - count, 0), max(last - count, 0))
        return {k: v[first:last] for k, v in items.items()} | {f"policy/{k}": v[acting] for k, v in seen.items()}

    def loss(self, outputs: Judgement, batch: Batch) -> tuple[Tensor, Update]:
        """The critic's loss, with the policy's gradient beside it; priorities are the errors of the expected return."""
        items, target = batch.items, self.target
        with torch.no_grad():
            features = target.features(observations(items, "next/"))
            after = target.judge(features, target.act(features))
        loss = items["weight"].dot(self.returns.loss(outputs.critic, items, after))
        ascent = dpg_loss(outputs.action, outputs.by_action, self.cfg.action_gradient_clip).sum()
        return loss + self.scalars[0] * ascent, self.findings(outputs, items, after)

    @torch.no_grad()
    def findings(self, outputs: Judgement, items: Tensors, after: Tensor) -> Update:
        """Priorities, and every tenth time metrics; after: what the target networks say of the next observations."""
        if not (self.reports() or self.cfg.prioritised):
            return Update({})
        value, share = self.returns.mean(outputs.critic), self.scalars[0]
        error = (torch.addcmul(items["reward"], items["discount"], self.returns.mean(after)) - value).abs()
        metrics: dict[str, Tensor | float] = {}
        if self.reports():
            slope, edges = outputs.by_action.abs().mean(-1), self.returns.edge_mass(outputs.critic)
            metrics = {
                "q_mean": share * value.sum(), "td_error": share * error.sum(), "action_gradient": share * slope.sum(),
                "saturated": share * (outputs.action.abs() > FLAT).float().mean(-1).sum(),
            }  # fmt: skip
            clipped = self.returns.clipped_mass(items, after)
            if edges is not None and clipped is not None:
                metrics |= {
                    "edge_mass": share * edges.sum(), "top_edge_mass": share * edges[:, 1].sum(),
                    "clipped_mass": share * clipped.sum(),
                }  # fmt: skip
        return Update(metrics, error if self.cfg.prioritised else None)

    def params(self) -> Tensors:
        """Policy and encoder; the critic too where its values are the first priorities."""
        everything = self._live.tensors
        if self.cfg.prioritised:
            return everything
        return {k: v for k, v in everything.items() if k.startswith(("encoder.", "policy."))}


class RangeLearner(SGDLearner):
    """The learner of a critic with a range of returns. It says at its first update where that range came from
    (``message``), and once, if so, that it is too narrow: when the share of the probability on the outermost returns,
    an average over about a hundred looks, is above 5 % (``EDGES``), and targets lie beyond them (``CLIPPED``). Where
    the smallest return that is possible is also a common one, there are none."""

    message = ""
    edges = clipped = 0.0
    warned = False

    def update(self, batch: Batch) -> Update:
        if self.step == 0 and self.message:
            log.warning("%s", self.message)
        update = super().update(batch)
        if "edge_mass" in update.metrics:
            self.watch(*(float(update.metrics[f"{name}_mass"]) for name in ("edge", "top_edge", "clipped")))
        return update

    def watch(self, mass: float, top: float, clipped: float) -> None:
        """Take in one look at the outermost returns, of which ``top`` is the largest's, and at what lies beyond."""
        self.edges += 0.01 * (mass - self.edges)
        self.clipped += 0.01 * (clipped - self.clipped)
        if self.edges > EDGES and self.clipped > CLIPPED and self.step >= SETTLED and not self.warned:
            self.warned = True
            low, high = (float(x) for x in self.algorithm.nets.returns.atoms[[0, -1]])
            log.warning(
                "%.0f %% of the critic's probability lies on the outermost of its returns, %.4g and %.4g, the most on "
                "the %s: what is beyond cannot be told apart; begin another run with a %s",
                100 * self.edges, low, high, *(
                    ("largest", "higher --v-max") if 2 * top > mass else ("smallest", "lower --v-min")
                ),
            )  # fmt: skip

    def state_dict(self) -> State:
        return {**super().state_dict(), "edges": self.edges, "clipped": self.clipped, "warned": self.warned}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.edges, self.warned = state["edges"], state["warned"]
        self.clipped = state.get("clipped", 1.0)  # an earlier version has not looked


class DPGAgent(NetworkAgent[DPGNetwork, np.random.Generator]):
    """Acts by the policy, with Gaussian noise of standard deviation ``noise`` in units of half the action box, the same
    for every actor; actions are clipped to the box. While ``at_random()``, they are drawn uniformly from it instead. If
    its network has a critic, it also returns ``q_taken``, the value of the action as it was executed, and ``q_max``,
    that of the policy's own: the first priority of a transition."""

    def __init__(
        self, nets: DPGNetwork, noise: float, seed: int, at_random: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(nets, np.random.default_rng(seed))
        self.noise, self.at_random = noise, at_random

    @torch.no_grad()
    def act(self, obs: Arrays, first: np.ndarray, state: Tensors, greedy: bool = False) -> Act:
        nets = self.nets
        features = nets.features({k: torch.from_numpy(v) for k, v in obs.items()})
        best = nets.act(features)
        if greedy:
            chosen = best
        elif self.at_random():
            chosen = torch.from_numpy(self.rng.random(best.shape, np.float32)) * 2 - 1
        else:
            noise = torch.from_numpy(self.rng.standard_normal(best.shape, np.float32))
            chosen = (best + self.noise * noise).clamp(-1.0, 1.0)
        action = nets.clip(chosen)
        extras: Arrays = {}
        if nets.returns is not None:
            both = torch.cat((action, best))
            values = nets.returns.mean(nets.judge(features.repeat(2, 1), both)).numpy()
            extras = {"q_taken": values[: len(best)], "q_max": values[len(best) :]}
        return Act(action.numpy(), state, extras)
