"""R2D2: Ape-X with an LSTM. Actors send streams with their recurrent states; a prioritised replay keeps overlapping
sequences; the learner burns the stored state in before it learns.

Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from shoal import fast, transfer
from shoal.api import Act, Arrays, Batch, Context, Learner, Spec, Tensors, Update, UsageError, observations
from shoal.fast import sequence_td as compiled
from shoal.learning.agent import NetworkAgent
from shoal.learning.off_policy import OffPolicy, QLearningConfig
from shoal.nets.batched_agent import BatchedAgent, Draws
from shoal.nets.recurrent_q_network import RecurrentQNetwork
from shoal.ops import check, masked_mean, random_actions
from shoal.ops.rescaled import rescaled_n_step_targets
from shoal.ops.sampling import sequence_priority
from shoal.ops.value import huber, select, signed_hyperbolic_inverse
from shoal.program import Program
from shoal.replay import Ratio, SequenceSpec
from shoal.settings.ranges import Count, Fraction, Natural, NonNegative, OnlyWith, Positive, Repeats, Replicas
from shoal.settings.schedule import Scheduled, linear
from shoal.topology.channels import Q_VALUES, replay, stream
from shoal.topology.config import Preset, Presets, require_actions
from shoal.topology.exploration import LadderConfig, ladder
from shoal.topology.replayed import ReplayConfig, SequenceSampler, descent
from shoal.topology.roles import actors_and_learner


@dataclass(frozen=True, kw_only=True)
class RecurrentQConfig(QLearningConfig):
    """Settings of the learning rule of R2D2."""

    fixed_at_start: ClassVar[tuple[str, ...]] = ("rescale",)
    only_with: ClassVar[OnlyWith] = {"core_size": ("core", "lstm", "gru"), "priority_mix": ("prioritised",)}

    gamma: Fraction = 0.997
    n_step: Repeats = 5
    """Steps of reward before the bootstrap (agent steps)."""
    dueling: bool = True
    """Separate value and advantage streams of 512 units."""
    prioritised: bool = True
    """Sample in proportion to priorities; false: uniformly."""
    td_clip: Scheduled[Positive] | None = None
    """Clip of the TD error in the gradient (Huber loss); none: squared error, as in the paper."""
    reduction: Literal["mean", "sum"] = "mean"
    """Mean or sum of the loss over sequences; over a sequence's steps it is summed."""
    core: Literal["lstm", "gru", "none"] = "lstm"
    """Recurrent core after the torso; none: a feed-forward network."""
    core_size: Count = 128
    """Units of the core."""
    burn_in: Natural = 40
    """Steps before the learned part of a sequence that only update the recurrent state."""
    start_state: Literal["stored", "zero"] = "stored"
    """Recurrent state at a sequence's start: the actor's, or zero."""
    rescale: NonNegative | None = 1e-3
    """Epsilon of the value rescaling h(x) = sgn(x)(sqrt(|x| + 1) - 1) + epsilon x; none: no rescaling."""
    priority_mix: Fraction = 0.9
    """Weight η of the largest TD error in a sequence's priority; the mean has weight 1 - η."""


@dataclass(frozen=True, kw_only=True)
class Config(RecurrentQConfig, ReplayConfig, LadderConfig):
    """R2D2. The replay holds sequences; the ladder of epsilons spans all environments of all actors."""

    has_server: ClassVar[bool] = True
    items_are_steps: ClassVar[bool] = False  # a short episode is a sequence too
    shares_gradient: ClassVar[bool] = False
    leaves_core: ClassVar[bool] = True

    actors: Replicas = 0
    """Actor processes; 0: one fewer than there are cores, at least one."""
    unroll: Count = 20
    last_action_reward: bool = True
    sequence: Count = 80
    """Steps of each sequence that are learned from (m in the paper)."""
    overlap: Natural = 40
    """Steps that a sequence shares with the one before it."""
    staleness: bool = True
    """Measure the staleness ΔQ of stored recurrent states; the replay then keeps three states per sequence."""
    sampler: SequenceSampler = "proportional"
    """How a prioritised replay is sampled: in proportion to the priorities, by rank, or by a class, MODULE:CLASS."""
    priority_exponent: NonNegative = 0.9
    importance_exponent: float = 0.6
    optimiser_eps: Positive = 1e-3
    max_grad_norm: float | None = 40.0
    batch: Count = 64
    """Sequences in each update."""
    samples_per_insert: NonNegative = 4.0
    """Steps learned from per environment step; 0: acting and learning never wait for each other."""
    replay: Count = 5_000
    """Capacity of the replay (sequences)."""
    min_replay: Count = 100
    """Sequences in the replay before the first update."""
    target_period: Count = 400

    def stride(self) -> int:
        """Steps between the starts of two sequences."""
        if self.overlap >= self.sequence:
            raise UsageError(f"overlap ({self.overlap}) must be less than sequence ({self.sequence}), both in steps")
        return self.sequence - self.overlap

    def progress(self, update: int) -> float:
        return super().progress(update * self.sequence)

    def ratio(self) -> Ratio:
        """In sequences, each of which brings ``stride`` new steps."""
        if not self.samples_per_insert:
            return Ratio(self.min_replay)
        each = self.samples_per_insert * self.stride() / self.sequence
        message = each * self.sequences().items_per_insert(sent(self))
        return Ratio(self.min_replay, each, slack=2 * max(message, self.batch))

    def sequences(self) -> SequenceSpec:
        """The replay table."""
        env = self.env_spec()
        return SequenceSpec(
            capacity=self.replay, length=self.sequence, stride=self.stride(), burn_in=self.burn_in, n_step=self.n_step,
            gamma=self.gamma, eta=self.priority_mix, rescale=self.rescale, stack=env.stack, pad=env.pad,
            sampler=self.sampler if self.prioritised else "uniform", alpha=self.priority_exponent,
            probes=self.staleness and self.core != "none",
        )  # fmt: skip


PAPER: Preset = dict(  # section 2.3 and table 2; 10 G frames of Atari
    actors=256, envs=1, unroll=40, steps=2_500_000_000, core_size=512, hidden=(), sequence=80, overlap=40, burn_in=40,
    n_step=5, gamma=0.997, batch=64, learning_rate=1e-4, optimiser_eps=1e-3, max_grad_norm=40.0, target_period=2_500,
    replay=100_000, min_replay=625, samples_per_insert=0.0, full_action_space=True, torso="nature", precision="fp32",
)  # fmt: skip
CLASSIC: Preset = dict(
    steps=500_000, total_envs=16, hidden=(64,), core_size=64, dueling=False, sequence=20, overlap=10, burn_in=10,
    gamma=0.99, batch=32, samples_per_insert=16.0, replay=10_000, target_period=200,
    learning_rate=linear(1e-3, 0.0), optimiser_eps=1e-5, max_grad_norm=10.0,
)  # fmt: skip
VECTOR: Preset = {**CLASSIC, "novelty": 0.5, "novelty_steps": 15_000}
STATES: Preset = {**CLASSIC, "episode_bound": 500}
# Optimiser and n: table 2; network and gamma: Young and Tian 2019; short sequences, dueling streams left out: CLASSIC
MINATAR: Preset = dict(
    CLASSIC, steps=1_000_000, torso="minatar", hidden=(), core_size=128, n_step=5, samples_per_insert=8.0,
    learning_rate=1e-4, optimiser_eps=1e-3, max_grad_norm=40.0,
)  # fmt: skip
PRESETS: Presets = {"paper": PAPER, "classic": CLASSIC, "minatar": MINATAR, "states": STATES, "vector": VECTOR}


def sequence_td_loss(
    q: Tensor, target_q: Tensor, actions: Tensor, rewards: Tensor, discounts: Tensor, valid: Tensor, weight: Tensor, *,
    double: bool = True, n: int = 5, eps: float | None = 1e-3, clip: float | None = None, eta: float = 0.9,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """``sum_b w_b sum_t huber(delta[t, b])`` over real steps, with ``delta = q[t][a] - rescaled_n_step_targets[t]``.

    Args: q (of the network that learns), target_q (target network): float ``[T + 1, B, A]``, of the steps and of the
    observation after them; actions: int64 ``[T, B]``; rewards, discounts: float ``[T, B]``; valid: bool ``[T + 1, B]``,
    which steps are real; weight: float ``[B]``; double: the network that learns selects the action whose value is the
    bootstrap; n: steps; eps: of the rescaling, None: none; clip: of the error in the gradient (Huber's loss), None: the
    loss is ``delta^2 / 2``; eta: of ``sequence_priority``.
    Returns: the loss, differentiable by ``q`` alone; the absolute errors ``[T, B]``, 0 where no step is real; and the
    sequences' priorities ``[B]``.
    Raises: IndexError or RuntimeError for an action outside of [0, A).
    Source: Kapturowski et al. (2019), R2D2, section 2.3.
    On a CPU its compiled twin is used, ``fast.sequence_td.sequence_td_loss``.
    """
    check.same_shape("sequence_td_loss", actions=actions, rewards=rewards, discounts=discounts)
    check.same_shape("sequence_td_loss", q=q, target_q=target_q)
    check.values("sequence_td_loss", "q", q[1:], rewards)
    check.shape("sequence_td_loss", "valid", valid, q.shape[:2])
    check.shape("sequence_td_loss", "weight", weight, q.shape[1:2])
    check.in_range("sequence_td_loss", "eta", eta, 0.0, 1.0)
    bound = math.inf if clip is None else clip
    if fast.ENABLED and q.device.type == "cpu":
        return compiled.sequence_td_loss(
            q, target_q, actions, rewards, discounts, valid, weight, double, n, eps, bound, eta
        )
    return plain_sequence_td_loss(q, target_q, actions, rewards, discounts, valid, weight, double, n, eps, bound, eta)


def plain_sequence_td_loss(
    q: Tensor, target_q: Tensor, actions: Tensor, rewards: Tensor, discounts: Tensor, valid: Tensor, weight: Tensor,
    double: bool, n: int, eps: float | None, bound: float, eta: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """``sequence_td_loss`` in plain PyTorch, on any device."""
    selector_q, real = (q.detach() if double else target_q), valid[:-1]
    targets = rescaled_n_step_targets(rewards, discounts, target_q[1:], selector_q[1:], ~valid[1:], n, eps)
    delta = torch.where(real, select(q[:-1], actions) - targets, 0.0)
    loss = huber(delta, bound).sum(0).dot(weight)
    error = delta.detach().abs()
    return loss, error, sequence_priority(error, eta, real)


class RecurrentQLearning(OffPolicy):
    """The loss on sequences. ``beta`` is the exponent of the importance weights of prioritised replay, constant or a
    schedule."""

    cfg: RecurrentQConfig

    def __init__(self, cfg: RecurrentQConfig, nets: RecurrentQNetwork, beta: float) -> None:
        super().__init__(nets, cfg.target_period, beta if cfg.prioritised else None, cfg.reduction)
        self.cfg = cfg

    def loss(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Update]:
        """The squared or Huber loss of the TD errors, summed over a sequence's steps, weighted by importance; outputs:
        the values [m + 1, B, A] of the m steps that are learned from and of the observation after them."""
        cfg, begin = self.cfg, self.cfg.burn_in
        action, reward, terminated = (batch.items[k][begin:-1] for k in ("action", "reward", "terminated"))
        valid, discounts = batch.items["valid"][begin:], cfg.gamma * (~terminated).float()
        with torch.no_grad():
            target_q = self.target(batch.items)
        loss, error, priorities = sequence_td_loss(
            outputs, target_q, action, reward, discounts, valid, batch.items["weight"],
            double=cfg.double, n=cfg.n_step, eps=cfg.rescale, clip=cfg.td_clip, eta=cfg.priority_mix,
        )  # fmt: skip
        metrics: Tensors = {}
        if self.reports():
            real, q = valid[:-1], select(outputs.detach()[:-1], action)
            returns = q if cfg.rescale is None else signed_hyperbolic_inverse(q, cfg.rescale)
            steps = real.sum()
            metrics = {"q_mean": torch.where(real, returns, 0.0).sum() / steps, "td_error": error.sum() / steps}
            metrics |= self.staleness(outputs.detach(), batch.items)
        return loss, Update(metrics, priorities if cfg.prioritised else None)

    @torch.no_grad()
    def staleness(self, values: Tensor, items: Tensors) -> Tensors:
        """Return Delta Q: how far the stored recurrent states are from those that the network computes now, at the
        first and at the last step that is learned from, as the distance of the values that follow from them over the
        sequence's largest value (section 3). Empty where the replay keeps no states to compare with."""
        begin, out = self.cfg.burn_in, {}
        last = len(values) - 2
        valid = items["valid"][begin:]
        largest = values.amax(-1).masked_fill(~_shown(valid), -torch.inf).amax(0).abs().clamp(min=1e-6)
        for name, row in (("first", 0), ("last", last)):
            state = {k: items[f"probe/{name}/{k}"] for k in self.nets.core.keys if f"probe/{name}/{k}" in items}
            if not state:
                continue
            obs = {k: v[begin + row] for k, v in observations(items).items()}
            q, _ = self.nets.step(obs, items["first"][begin + row], state)
            moved = (values[row] - q).nan_to_num(0.0)  # of actions that are forbidden there is no value
            distance = torch.linalg.vector_norm(moved, dim=-1) / largest
            if transfer.on_host(real := valid[row]).any():
                on_cpu = real.device.type == "cpu"
                out[f"delta_q_{name}"] = distance[real].mean() if on_cpu else masked_mean(distance, real)
        return out


def _shown(valid: Tensor) -> Tensor:
    """Rows of the steps, and of the observation after the last: valid [T, B]."""
    return valid | torch.cat((valid[:1], valid[:-1]))


class RecurrentQAgent(NetworkAgent[RecurrentQNetwork, np.random.Generator], BatchedAgent):
    """Epsilon-greedy agent with a recurrent state. ``epsilon``: the exploration rate of each environment, or one for
    all. It stores ``q_taken`` and ``q_max``, from which the replay computes initial priorities without another forward
    pass."""

    def __init__(self, nets: RecurrentQNetwork, epsilon: float | np.ndarray, seed: int) -> None:
        super().__init__(nets, np.random.default_rng(seed))
        self.epsilon = epsilon

    def initial_state(self, envs: int) -> Tensors:
        return self.nets.initial_state(envs)

    def draw(self, obs: Arrays, first: np.ndarray) -> Draws:
        explore = self.rng.random(len(first)) < self.epsilon
        return explore, random_actions(obs, self.nets.actions, self.rng)

    @torch.inference_mode()
    def respond(self, obs: Arrays, first: np.ndarray, state: Tensors, drawn: Draws) -> Act:
        q, state = self.nets.step(self.tensors(obs), self.tensor(first), self.placed(state))
        values = self.array(q)
        action = values.argmax(-1)
        if drawn:
            action = np.where(drawn[0], drawn[1], action)
        extras = {"q_taken": values[np.arange(len(action)), action], "q_max": values.max(-1)}
        return Act(action, state, extras)


def network(cfg: Config, device: str = "cpu") -> RecurrentQNetwork:
    """Action values of observations and a recurrent state."""
    env = cfg.env_spec()
    require_actions(cfg.system(), env, "discrete")
    return RecurrentQNetwork(
        env, torso=cfg.torso, hidden=cfg.hidden, dueling=cfg.dueling, core=cfg.core, core_size=cfg.core_size,
        burn_in=cfg.burn_in, stored_state=cfg.start_state == "stored", precision=cfg.precision, device=device,
    )  # fmt: skip


def agent(cfg: Config, seed: int = 0, ctx: Context | None = None) -> RecurrentQAgent:
    """Explores as its place on the ladder of epsilons says."""
    return RecurrentQAgent(network(cfg), cfg.eval_epsilon if ctx is None else ladder(cfg, ctx), seed)


def sent(cfg: Config) -> Spec:
    """Return what actors send: steps, with values for the first priorities and, where used, recurrent states."""
    return stream(cfg, Q_VALUES, network if cfg.start_state == "stored" or cfg.staleness else None)


def learn(cfg: Config, nets: RecurrentQNetwork, ctx: Context) -> Learner:
    """The learner."""
    return descent(cfg, ctx, RecurrentQLearning(cfg, nets, cfg.importance_exponent))


def program(cfg: Config) -> Program:
    """Actors, one replay of sequences, one learner."""
    sequences = replay("sequences", sent(cfg), cfg.sequences(), cfg.ratio())
    return actors_and_learner(
        "r2d2", cfg, sequences, network, agent, lambda nets, ctx: learn(cfg, nets, ctx), count=cfg.batch
    )
