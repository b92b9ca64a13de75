"""Ape-X DPG: many actors with the same Gaussian noise feed one prioritised replay; one learner moves a critic and,
along the critic's gradient by the action, a deterministic policy.

Horgan et al. 2018, "Distributed Prioritized Experience Replay", section 3 and appendix D.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from shoal import transfer
from shoal.api import Act, Arrays, Batch, Context, Learner, Tensors, Update, observations
from shoal.learning.agent import NetworkAgent
from shoal.learning.off_policy import OffPolicy, OffPolicyConfig
from shoal.nets.batched_agent import BatchedAgent, Draws
from shoal.nets.dpg_network import CriticOutputs, DPGNetwork, Returns
from shoal.ops import check
from shoal.program import Program
from shoal.replay import TableSpec
from shoal.settings.ranges import (
    Count,
    Envs,
    Finite,
    Fraction,
    Natural,
    NonNegative,
    OnlyWith,
    Positive,
    Repeats,
    Replicas,
)
from shoal.settings.schedule import Scheduled
from shoal.topology.channels import Q_VALUES, stream
from shoal.topology.config import Preset, Presets, require_box
from shoal.topology.exploration import LastingNoise
from shoal.topology.replayed import TransitionConfig, descent, replay_program
from shoal.types import State

# weights times rows: what takes a process some 2 ms, of which meeting another costs a tenth or two
WORK_PER_PROCESS = 2**24
FLAT = 0.99  # of half the box, beyond which tanh hardly moves


@dataclass(frozen=True, kw_only=True)
class DPGConfig(OffPolicyConfig):
    """The learning rule of Ape-X DPG and D4PG."""

    only_with: ClassVar[OnlyWith] = {"noise_correlation": ("noise",)}

    learning_rate: float = 1e-3
    optimiser_eps: Positive = 1e-8
    max_grad_norm: float | None = None
    noise: NonNegative = 0.3
    """Standard deviation of the Gaussian noise on actions, in units of half the action box."""
    noise_correlation: Fraction = 0.0
    """Correlation of the noise between consecutive steps of an episode: 0.85 in DDPG (Lillicrap et al. 2016); 0:
    independent noise."""
    random_steps: Natural = 0
    """Environment steps at the beginning, of all actors together, whose actions are drawn uniformly from the box."""
    action_gradient_clip: Scheduled[Positive] | None = None
    """Bound of each element of the critic's gradient by the action (in units of half the box); none: no bound."""
    importance_exponent: Scheduled[Fraction] = 0.4
    """Exponent β of the importance weights."""


@dataclass(frozen=True, kw_only=True)
class Config(DPGConfig, TransitionConfig):  # in this order, for the defaults of the first win
    """Ape-X DPG."""

    has_server: ClassVar[bool] = True
    fixed_at_start: ClassVar[tuple[str, ...]] = ("hidden", "policy_hidden", "late_action", "layer_norm", "activation")
    only_with: ClassVar[OnlyWith] = {
        "evict": ("prioritised",), "evict_exponent": ("evict", "proportional"),
        "late_action": ("hidden",),
    }  # fmt: skip
    hidden_heads: ClassVar[bool] = True
    leaves_core: ClassVar[bool] = True

    env: str = "Pendulum-v1"
    actors: Replicas = 0
    """Actor processes; 0: one fewer than there are cores, at least one."""
    envs: Envs = 4
    unroll: Count = 16
    steps: Count = 200_000
    hidden: tuple[Count, ...] = (256, 256)
    """Units of each layer of the critic, and of the policy."""
    policy_hidden: tuple[Count, ...] = ()
    """Units of each layer of the policy, if not those of `hidden`."""
    activation: Literal["relu", "tanh"] = "relu"
    """Activation after each hidden layer."""
    late_action: bool = False
    """Join the action at the critic's second layer; false: with the observation."""
    layer_norm: bool = False
    """Normalise each hidden layer before its activation."""
    action_gradient_clip: float | None = 1.0
    n_step: Repeats = 5
    batch: Count = 256
    samples_per_insert: NonNegative = 256.0
    prioritised: bool = True
    evict: Literal["proportional", "fifo"] = "proportional"
    """Which transitions are removed from a full prioritised replay: drawn by priority, or the oldest."""
    evict_exponent: Finite = -0.4
    """Exponent of the priority in the probability of removing a surplus transition."""
    evict_every: Count = 1_000
    """Transitions inserted between two removals of the replay's surplus."""

    def idle(self) -> dict[str, str]:
        """Return the idle settings, those of the layers among them if neither network has one."""
        layers = self.hidden or self.policy_hidden
        return super().idle() | ({} if layers else dict.fromkeys(("activation", "layer_norm"), "hidden is empty"))

    def shares(self) -> int:
        """Return the shares of a batch, also of vectors, whose critic and policy learn apart, where a share's products
        are many."""
        if self.has_images():
            return super().shares()
        seen = sum(math.prod(o.shape) for o in self.env_spec().observations.values())
        layers = (seen, *self.hidden), (seen, *(self.policy_hidden or self.hidden))
        return self.batch * sum(a * b for widths in layers for a, b in pairwise(widths)) // WORK_PER_PROCESS

    def returns(self) -> Returns:
        """Return how the critic describes a return: by its mean."""
        return Expected()


PAPER: Preset = dict(  # section 4.2 and appendix D
    actors=64, envs=1, unroll=50, steps=500_000_000, hidden=(400, 300), policy_hidden=(300, 200), activation="tanh",
    late_action=True, noise=0.3, action_gradient_clip=1.0, n_step=5, learning_rate=1e-4, batch=256,
    samples_per_insert=0.0, replay=1_000_000, min_replay=10_000, target_period=100,
    evict_every=80_000,  # about what 64 actors send in 100 updates, at 1,000 steps a second each
)  # fmt: skip
CLASSIC: Preset = dict(
    steps=20_000, total_envs=2, unroll=8, hidden=(128, 128), batch=128, samples_per_insert=128.0,
)  # fmt: skip
# Chosen on MountainCarContinuous: noise drawn anew at each step pushes nowhere, DDPG's lasts (its theta, and the
# deviation that it comes to: Lillicrap et al. 2016, section 7); layer norm and learning rate as for the control suite
VECTOR_CONTINUOUS: Preset = {
    **CLASSIC, "steps": 100_000, "noise": 0.38, "noise_correlation": 0.85, "layer_norm": True, "learning_rate": 3e-4,
    "novelty": 0.5, "novelty_steps": 25_000,
}  # fmt: skip
MUJOCO: Preset = dict(
    steps=300_000, total_envs=2, unroll=8, replay=300_000, min_replay=5_000, random_steps=10_000, noise=0.1, n_step=1,
)  # fmt: skip
MUJOCO_UPRIGHT: Preset = {**MUJOCO, "n_step": 5}  # as D4PG's
DM_CONTROL: Preset = dict(  # without layer norm the policy ends where tanh is flat on some seeds (docs/results.md)
    steps=500_000, total_envs=2, unroll=8, replay=500_000, min_replay=5_000, random_steps=5_000, learning_rate=3e-4,
    layer_norm=True,
)  # fmt: skip
PRESETS: Presets = {
    "paper": PAPER, "classic": CLASSIC, "mujoco": MUJOCO, "mujoco_upright": MUJOCO_UPRIGHT, "dm_control": DM_CONTROL,
    "vector_continuous": VECTOR_CONTINUOUS,
}  # fmt: skip


class Expected(Returns):
    """The mean alone: half the squared error (DDPG; Ape-X DPG, Horgan et al. 2018, section 3)."""

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.squeeze(-1)

    def loss(self, outputs: Tensor, items: Tensors, after: Tensor) -> Tensor:
        target = torch.addcmul(items["reward"], items["discount"], self.mean(after))
        return 0.5 * (self.mean(outputs) - target).square()


def dpg_loss(actions: Tensor, value_gradients: Tensor, clip: float | None = None) -> Tensor:
    """``-sum_j a_j * g_j`` with ``g = clip(dq/da, -clip, clip)`` held constant, plus a constant that makes it 0: its
    gradient by the actions is ``-g``, so that descending it ascends the value.

    Args: actions: float ``[..., A]``, of the policy that learns; value_gradients: float ``[..., A]``, of the critic's
    value by these actions; clip: bound of each element of it (None: no bound). Returns: ``[...]``.
    Source: Silver et al. (2014), Deterministic Policy Gradient Algorithms, eq. 9; the clip: Ape-X (Horgan et al.
    2018), appendix D.
    """
    check.same_shape("dpg_loss", actions=actions, value_gradients=value_gradients)
    gradients = value_gradients.detach()
    if clip is not None:
        if clip <= 0.0:
            raise ValueError(f"dpg_loss: expected clip > 0, found {clip}")
        gradients = gradients.clamp(-clip, clip)
    return ((actions.detach() - actions) * gradients).sum(-1)


class DPG(OffPolicy):
    """The loss of critic and policy, both at the same parameters (D4PG, algorithm 1). What a mixture's loss draws comes
    from ``seed``."""

    adds_up = True
    capturable = True

    def __init__(self, cfg: DPGConfig, nets: DPGNetwork, seed: int = 0) -> None:
        super().__init__(nets, cfg.target_period, cfg.importance_exponent if cfg.prioritised else None, seed=seed)
        assert nets.returns is not None
        self.cfg, self.returns = cfg, nets.returns

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch with weights and with the noise that the critic's loss draws."""
        batch = super().prepare(batch)
        reward = batch.items["reward"]
        assert self.generator is not None
        drawn = self.returns.noise(len(reward), self.generator)
        return batch._replace(items={**batch.items, **{k: transfer.send(v, reward.device) for k, v in drawn.items()}})

    def rows(self, items: Tensors) -> int:
        """Critic and policy each have a loss of every transition; by one encoder, from the same pass of it."""
        return super().rows(items) * (1 if self.nets.shared else 2)

    def select(self, items: Tensors, rows: Tensor) -> Tensors:
        """Return some of the critic's rows, which come first, and of the policy's."""
        if self.nets.shared:
            return super().select(items, rows)
        count, first = len(items["reward"]), int(rows[0]) if len(rows) else 0
        last, seen = first + len(rows), observations(items)
        acting = slice(max(first - count, 0), max(last - count, 0))
        return {k: v[first:last] for k, v in items.items()} | {f"policy/{k}": v[acting] for k, v in seen.items()}

    def loss(self, outputs: CriticOutputs, batch: Batch) -> tuple[Tensor, Update]:
        """The critic's loss, with the policy's gradient beside it; priorities are the errors of the expected return."""
        items, target = batch.items, self.target
        with torch.no_grad():
            features = target.features(observations(items, "next/"))
            after = target.critic_outputs(features, target.act(features))
        loss = items["weight"].dot(self.returns.loss(outputs.critic, items, after))
        ascent = dpg_loss(outputs.action, outputs.by_action, self.cfg.action_gradient_clip).sum()
        return loss + self.scalars[0] * ascent, self.findings(outputs, items, after)

    @torch.no_grad()
    def findings(self, outputs: CriticOutputs, items: Tensors, after: Tensor) -> Update:
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


class DPGAgent(NetworkAgent[DPGNetwork, np.random.Generator], BatchedAgent):
    """Acts by the policy, with Gaussian noise of standard deviation ``noise`` in units of half the action box, the same
    for every actor (``correlation``: see ``LastingNoise``); actions are clipped to the box. While ``at_random()``, they
    are drawn uniformly from it instead. If its network has a critic, it also returns ``q_taken``, the value of the
    action as it was executed, and ``q_max``, that of the policy's own: the first priority of a transition."""

    def __init__(
        self, nets: DPGNetwork, noise: float, seed: int, at_random: Callable[[], bool] = lambda: False,
        correlation: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(nets, np.random.default_rng(seed))
        self.noise, self.at_random = noise, at_random
        self.lasting = LastingNoise(correlation, self.rng)

    def draw(self, obs: Arrays, first: np.ndarray) -> Draws:
        """What is added to the policy's action, [E, actions], and the share of that action: 0 (at random) or 1."""
        envs, actions = len(first), self.nets.actions
        if self.at_random():
            return self.rng.random((envs, actions), np.float32) * 2 - 1, np.zeros((envs, 1), np.float32)
        return self.noise * self.lasting(first, actions), np.ones((envs, 1), np.float32)

    @torch.no_grad()
    def respond(self, obs: Arrays, first: np.ndarray, state: Tensors, drawn: Draws) -> Act:
        nets = self.nets
        features = nets.features(self.tensors(obs))
        best = chosen = nets.act(features)
        if drawn:
            noise, share = map(self.tensor, drawn)
            chosen = torch.addcmul(noise, best, share).clamp_(-1.0, 1.0)
        action = nets.clip(chosen)
        extras: Arrays = {}
        if nets.returns is not None:
            both = torch.cat((action, best))
            values = self.array(nets.returns.mean(nets.critic_outputs(features.repeat(2, 1), both)))
            extras = {"q_taken": values[: len(best)], "q_max": values[len(best) :]}
        return Act(self.array(action), state, extras)

    def state_dict(self) -> State:
        return {**super().state_dict(), "noise": self.lasting.last}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.lasting.last = state.get("noise")


def network(cfg: Config, device: str | None = None) -> DPGNetwork:
    """With a device the learner's; without, what actors hold, which has a critic only where its values are the first
    priorities."""
    return DPGNetwork(
        cfg.env_spec(), cfg.returns() if device or cfg.prioritised else None, torso=cfg.torso, hidden=cfg.hidden,
        policy_hidden=cfg.policy_hidden, activation=cfg.activation, late_action=cfg.late_action,
        layer_norm=cfg.layer_norm, precision=cfg.precision, device=device or "cpu",
    )  # fmt: skip


def agent(cfg: Config, seed: int = 0, ctx: Context | None = None) -> DPGAgent:
    """The policy, with the same noise for every actor, after ``random_steps``."""
    if ctx is None or not cfg.random_steps:
        return DPGAgent(network(cfg), cfg.noise, seed, correlation=cfg.noise_correlation)
    steps = ctx.steps
    return DPGAgent(network(cfg), cfg.noise, seed, lambda: steps() < cfg.random_steps, cfg.noise_correlation)


def table(cfg: Config) -> TableSpec:
    """Prioritised: with first priorities from the actors' values."""
    if not cfg.prioritised:
        return cfg.table(evict_every=cfg.evict_every)
    return cfg.table(
        initial="given", evict=cfg.evict, alpha_evict=cfg.evict_exponent, evict_every=cfg.evict_every
    )  # fmt: skip


def wired(name: str, cfg: Config, learn: Any) -> Program:
    """Actors, one replay, one learner; actors send values only where the replay is prioritised."""
    sent = stream(cfg, Q_VALUES if cfg.prioritised else None)
    return replay_program(name, cfg, sent, table(cfg), network, agent, learn)


def program(cfg: Config) -> Program:
    """Actors, one prioritised replay, one learner."""
    require_box(cfg)

    def learn(nets: DPGNetwork, ctx: Context) -> Learner:
        return descent(cfg, ctx, DPG(cfg, nets, ctx.seed))

    return wired("apex-dpg", cfg, learn)
