"""DQN: one actor, a replay, a learner; double, dueling, n-step and prioritised replay as switches.

Mnih et al. 2015, "Human-level control through deep reinforcement learning"; van Hasselt et al. 2016;
Wang et al. 2016; Schaul et al. 2016.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from shoal import fast
from shoal.api import Act, Arrays, Batch, Context, Learner, Spec, Tensors, Update, observations
from shoal.fast import td as compiled
from shoal.learning.agent import NetworkAgent
from shoal.learning.off_policy import OffPolicy, QLearningConfig
from shoal.nets.batched_agent import BatchedAgent, Draws
from shoal.nets.q_network import QNetwork
from shoal.ops import check
from shoal.ops.masks import random_actions
from shoal.ops.value import (
    double_q_target,
    huber,
    select,
)  # fmt: skip
from shoal.program import Program
from shoal.replay import TableSpec
from shoal.settings.ranges import Count, Decay, Envs, Fraction, Natural, OnlyWith, Replicas
from shoal.settings.schedule import linear as schedule
from shoal.topology.channels import Q_VALUES, stream
from shoal.topology.config import Preset, Presets, require_actions
from shoal.topology.exploration import LadderConfig, ladder
from shoal.topology.replayed import ReplayConfig, descent, replay_program
from shoal.types import State


@dataclass(frozen=True, kw_only=True)
class Config(ReplayConfig, LadderConfig):
    """DQN."""

    has_server: ClassVar[bool] = True
    only_with: ClassVar[OnlyWith] = {
        "epsilon_base": ("epsilon_ladder",), "epsilon_alpha": ("epsilon_ladder",),
        "epsilon_end": ("epsilon_ladder", False), "actor_priorities": ("prioritised",),
    }  # fmt: skip

    actors: Replicas = 1
    """Actor processes (the paper's system has one)."""
    envs: Envs = 8
    unroll: Count = 8
    steps: Count = 200_000
    hidden: tuple[Count, ...] = (128, 128)
    max_grad_norm: float | None = 10.0
    rmsprop_decay: Decay = 0.95
    rmsprop_centred: bool = True
    epsilon_start: Fraction = 1.0
    """Initial probability of a random action."""
    epsilon_end: Fraction = 0.02
    """Probability of a random action after `epsilon_steps`."""
    epsilon_steps: Natural = 10_000
    """Steps over which the exploration rate falls to its final value (agent steps over all actors); 0: it is final from
    the beginning."""
    epsilon_ladder: bool = False
    """Give each environment its own final exploration rate, from Ape-X's ladder, instead of `epsilon_end`."""
    actor_priorities: bool = False
    """Give new transitions the TD error computed by the actor as priority; false: the largest recent priority."""


PAPER: Preset = dict(  # Mnih et al. 2015, extended data table 1; periods converted to updates
    envs=1, unroll=4, steps=50_000_000, double=False, n_step=1, learning_rate=2.5e-4, optimiser="rmsprop",
    optimiser_eps=0.01, max_grad_norm=None, reduction="sum", batch=32, samples_per_insert=8.0, replay=1_000_000,
    min_replay=50_000, target_period=2_500, epsilon_end=0.1, epsilon_steps=1_000_000, reward_clip="sign",
    life_loss=True, torso="nature", precision="fp32",
)  # fmt: skip
ATARI: Preset = dict(  # why these: benchmarks/results/notes-on-learning.md
    envs=32, unroll=16, steps=1_500_000, dueling=True, prioritised=True, learning_rate=1e-4, optimiser_eps=1e-5,
    batch=32, samples_per_insert=4.0, replay=200_000, min_replay=10_000, target_period=1_000, importance_exponent=0.4,
    epsilon_ladder=True, epsilon_steps=0, actor_priorities=True,  # as in Ape-X: Pong is learned
    reward_clip="sign", life_loss=True, torso="impala-shallow",
)  # fmt: skip
CLASSIC: Preset = dict(
    steps=150_000, learning_rate=schedule(1e-3, 0.0), batch=64, samples_per_insert=16.0, target_period=200,
)  # fmt: skip
BOX2D: Preset = dict(
    steps=500_000, learning_rate=schedule(5e-4, 0.0), batch=128, samples_per_insert=32.0, target_period=250,
    hidden=(256, 256), reward_scale=0.1, epsilon_steps=50_000,
)  # fmt: skip
STATES: Preset = dict(
    steps=200_000, learning_rate=schedule(1e-3, 0.0), batch=64, samples_per_insert=16.0, target_period=200,
    epsilon_steps=100_000, episode_bound=500,
)  # fmt: skip
VECTOR: Preset = dict(
    steps=300_000, learning_rate=schedule(1e-3, 0.0), batch=64, samples_per_insert=16.0, target_period=200,
    epsilon_steps=100_000, novelty=0.5, novelty_steps=18_000,
)  # fmt: skip
PICTURE: Preset = dict(
    envs=32, unroll=16, steps=1_000_000, dueling=True, learning_rate=2.5e-4, batch=32, samples_per_insert=4.0,
    replay=100_000, min_replay=5_000, target_period=1_000, epsilon_ladder=True, epsilon_steps=0, novelty=0.5,
    novelty_steps=15_000,
    torso="impala-shallow",
)  # fmt: skip
# Network, gamma, replay, batch and epsilon: Young and Tian 2019, examples/dqn.py of MinAtar. Adam, an update every 4
# steps, a target network every 1,000: Obando-Ceron and Castro 2021, dqn_asterix.gin and the like of revisiting_rainbow
MINATAR: Preset = dict(
    steps=1_000_000, torso="minatar", double=False, n_step=1, learning_rate=2.5e-4, optimiser_eps=3.125e-4,
    max_grad_norm=None, batch=32, samples_per_insert=8.0, replay=100_000, min_replay=1_000, target_period=250,
    epsilon_end=0.1, epsilon_steps=100_000,
)  # fmt: skip
PRESETS: Presets = {
    "paper": PAPER,
    "atari": ATARI,
    "classic": CLASSIC,
    "box2d": BOX2D,
    "minatar": MINATAR,
    "states": STATES,
    "picture": PICTURE,
    "vector": VECTOR,
}


def td_loss(
    q: Tensor, actions: Tensor, rewards: Tensor, discounts: Tensor, next_q: Tensor, selector_q: Tensor,
    weight: Tensor, *, clip: float | None = 1.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``sum_i w_i huber(delta_i)`` with ``delta = q[a] - (r + d * next_q[argmax selector_q])``.

    Args: q: float ``[B, A]``, of the network that learns; actions: int64 ``[B]``; rewards, discounts, weight: float
    ``[B]``; next_q (target network), selector_q (online network; ``next_q`` itself: plain Q-learning): float ``[B,
    A]``; clip: of the error in the gradient (Huber's loss), None: the loss is ``delta^2 / 2``.
    Returns: the loss, differentiable by ``q`` alone, and the absolute errors ``[B]``.
    Raises: IndexError or RuntimeError for an action outside of [0, A).
    Source: Mnih et al. (2015), Methods, algorithm 1; van Hasselt et al. (2016), eq. 4; Schaul et al. (2016), 3.4.
    On a CPU its compiled twin is used, ``fast.td.td_loss``.
    """
    check.same_shape("td_loss", actions=actions, rewards=rewards, discounts=discounts, weight=weight)
    check.values("td_loss", "q", q, rewards)
    check.same_shape("td_loss", q=q, next_q=next_q, selector_q=selector_q)
    bound = math.inf if clip is None else clip
    if fast.ENABLED and q.device.type == "cpu":
        return compiled.td_loss(q, actions, rewards, discounts, next_q, selector_q, weight, bound)
    return plain_td_loss(q, actions, rewards, discounts, next_q, selector_q, weight, bound)


def plain_td_loss(
    q: Tensor, actions: Tensor, rewards: Tensor, discounts: Tensor, next_q: Tensor, selector_q: Tensor, weight: Tensor,
    bound: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``td_loss`` in plain PyTorch, on any device."""
    delta = select(q, actions) - double_q_target(rewards, discounts, next_q, selector_q)
    return huber(delta, bound).dot(weight), delta.detach().abs()


class QLearning(OffPolicy):
    """Minimise the TD errors of single transitions. ``beta`` is the exponent of the importance weights, constant or a
    schedule (None: no weights)."""

    cfg: QLearningConfig
    adds_up = True
    capturable = True

    def __init__(self, cfg: QLearningConfig, nets: QNetwork, beta: float | None = None) -> None:
        super().__init__(nets, cfg.target_period, beta, cfg.reduction)
        self.cfg = cfg

    def loss(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Update]:
        """Return the squared or Huber loss of the TD errors; outputs: the values [B, A]."""
        items = batch.items
        with torch.no_grad():
            next_obs = observations(items, "next/")
            next_q = self.target(next_obs)
            selector = self.nets(next_obs) if self.cfg.double else next_q
        loss, error = td_loss(
            outputs, items["action"], items["reward"], items["discount"], next_q, selector, items["weight"],
            clip=self.cfg.td_clip,
        )  # fmt: skip
        metrics = {}
        if self.reports():
            q = select(outputs.detach(), items["action"])
            metrics = {"q_mean": q.sum() * self.scalars[0], "td_error": error.sum() * self.scalars[0]}
        return loss, Update(metrics, error if self.cfg.prioritised else None)


Epsilon = float | np.ndarray


class QAgent(NetworkAgent[QNetwork, np.random.Generator], BatchedAgent):
    """Epsilon-greedy agent. ``epsilon``: one exploration rate, one per environment, or a function to it from the number
    of actions that this agent has chosen (for all its environments together; ``taken`` of them before a restart). With
    ``with_values`` it also returns ``q_taken`` and ``q_max``, from which a replay computes the initial priority with no
    further pass."""

    def __init__(
        self, nets: QNetwork, epsilon: Epsilon | Callable[[int], Epsilon], seed: int, with_values: bool = False,
        taken: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(nets, np.random.default_rng(seed))
        self.with_values = with_values
        self.epsilon: Callable[[int], Epsilon] = epsilon if callable(epsilon) else lambda steps: epsilon
        self.steps = taken

    def draw(self, obs: Arrays, first: np.ndarray) -> Draws:
        envs = len(first)
        explore = self.rng.random(envs) < self.epsilon(self.steps)
        self.steps += envs
        return explore, random_actions(obs, self.nets.actions, self.rng)

    @torch.no_grad()
    def respond(self, obs: Arrays, first: np.ndarray, state: Tensors, drawn: Draws) -> Act:
        values = self.array(self.values(self.tensors(obs), drawn))
        action = values.argmax(-1)
        if drawn:
            action = np.where(drawn[0], drawn[1], action)
        extras = {}
        if self.with_values:
            extras = {"q_taken": values[np.arange(len(action)), action], "q_max": values.max(-1)}
        return Act(action, state, extras)

    def values(self, obs: Tensors, drawn: Draws) -> Tensor:
        """Return the action values [B, A] from which actions are chosen."""
        return cast(Tensor, self.nets(obs))

    def state_dict(self) -> State:
        return {**super().state_dict(), "steps": self.steps}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.steps = state["steps"]


def network(cfg: ReplayConfig, device: str = "cpu") -> QNetwork:
    """Return the network: action values [B, A] of observations."""
    env = cfg.env_spec()
    require_actions(cfg.system(), env, "discrete")
    return QNetwork(
        env, torso=cfg.torso, hidden=cfg.hidden, dueling=cfg.dueling, precision=cfg.precision, device=device
    )


def agent(cfg: Config, seed: int = 0, ctx: Context | None = None) -> QAgent:
    """Return an agent that acts by ``network(cfg)``; see ``explorer``."""
    return explorer(cfg, network(cfg), seed, ctx)


def explorer(cfg: Config, nets: QNetwork, seed: int, ctx: Context | None) -> QAgent:
    """Return an agent whose epsilon falls linearly over ``epsilon_steps`` of all actors together; without an actor's
    ``ctx``, one for evaluation. It tells the values that first priorities follow from, if they are asked for."""
    if ctx is None:
        return QAgent(nets, cfg.eval_epsilon, seed)
    replicas, start, last = ctx.replicas, cfg.epsilon_start, ladder(cfg, ctx) if cfg.epsilon_ladder else cfg.epsilon_end

    def epsilon(steps: int) -> Epsilon:
        done = steps * replicas / cfg.epsilon_steps if cfg.epsilon_steps else 1.0
        return last if done >= 1.0 else start + (last - start) * done

    return QAgent(nets, epsilon, seed, cfg.actor_priorities, ctx.counts.get("actions", 0))


def sent(cfg: Config) -> Spec:
    """Return what actors send: steps, with values for the first priorities if those are the actor's."""
    return stream(cfg, Q_VALUES if cfg.actor_priorities else None)


def table(cfg: Config, **fields: Any) -> TableSpec:
    """Return the replay table; ``fields`` are what a system adds."""
    return cfg.table(initial="given" if cfg.actor_priorities else "max", **fields)


def importance_exponent(cfg: ReplayConfig) -> float | None:
    """Return the exponent β of the importance weights; None without prioritised replay."""
    return cfg.importance_exponent if cfg.prioritised else None


def learner(cfg: ReplayConfig) -> Callable[[QNetwork, Context], Learner]:
    """Return a function that makes the learner of a network."""
    return lambda nets, ctx: descent(cfg, ctx, QLearning(cfg, nets, importance_exponent(cfg)))


def program(cfg: Config) -> Program:
    """One actor, a replay, a learner."""
    return replay_program("dqn", cfg, sent(cfg), table(cfg), network, agent, learner(cfg))
