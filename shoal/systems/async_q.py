"""Asynchronous one-step Q-learning: workers that act and learn on shared parameters, and one target network for all.

Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning", algorithm 1.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from shoal.api import Act, Arrays, Batch, Context, Tensors, Update, UsageError, observations, spec_nbytes
from shoal.learning.actor_critic import boundaries
from shoal.learning.algorithm import Algorithm
from shoal.learning.segment_learner import SegmentLearner
from shoal.nets.batched_agent import Draws
from shoal.nets.named_tensors import NamedTensors
from shoal.nets.precision import inferring
from shoal.nets.q_network import QNetwork
from shoal.ops import Replace, linear, n_step_returns, select
from shoal.program import Channel, Program
from shoal.roles.actor import unroll_spec
from shoal.roles.worker import TargetWorkerRole, target_spec
from shoal.settings.ranges import Count, Fraction, Natural
from shoal.settings.schedule import linear as schedule
from shoal.systems.dqn import QAgent
from shoal.topology.asynchronous import WorkerConfig, shared_parameters
from shoal.topology.config import Preset, Presets, require_actions
from shoal.topology.roles import begin, collector


@dataclass(frozen=True, kw_only=True)
class Config(WorkerConfig):
    """Asynchronous Q-learning."""

    gamma: Fraction = 0.99
    """Discount per agent step."""
    target_period: Count = 10_000
    """Environment steps of all workers between two copies into the target network (the paper's I_target)."""
    epsilon_start: Fraction = 1.0
    """Initial probability of a random action."""
    epsilon_final: tuple[Fraction, ...] = (0.1, 0.01, 0.5)
    """Final probabilities of a random action: each environment of a worker draws one when the worker starts."""
    epsilon_odds: tuple[Fraction, ...] = (0.4, 0.3, 0.3)
    """Probabilities of drawing each of `epsilon_final`."""
    epsilon_steps: Natural = 1_000_000
    """Steps over which the exploration rate falls to its final value (agent steps over all workers); 0: it is final
    from the beginning."""
    normalise_obs: bool = False
    """Normalise vector observations by running statistics, which the workers share."""
    eval_epsilon: Fraction = 0.05
    """Probability of a random action in evaluations that are not greedy."""


PAPER: Preset = dict(  # section 5.1 and supplementary section 8; frames are agent steps of 4
    actors=16, envs=1, unroll=5, steps=80_000_000, learning_rate=schedule(7e-4, 0.0), optimiser_eps=0.1,
    rmsprop_decay=0.99, max_grad_norm=40.0, gamma=0.99, target_period=10_000, epsilon_steps=1_000_000,
    epsilon_final=(0.1, 0.01, 0.5), epsilon_odds=(0.4, 0.3, 0.3), reward_clip="unit",
    torso="impala-shallow", precision="fp32",
)  # fmt: skip
CLASSIC: Preset = dict(
    actors=2, envs=8, unroll=4, steps=1_000_000, hidden=(128, 128), learning_rate=schedule(1e-3, 0.0),
    optimiser_eps=1e-2, gamma=0.99, reward_scale=0.1, target_period=1_000, epsilon_steps=300_000,
)  # fmt: skip
ONE_STEP: Preset = {**CLASSIC, "epsilon_steps": 500_000}  # rare goals are told further one step at a time
# As PAPER, of 2 workers; network and the fall of epsilon: Young and Tian 2019. RMSProp's epsilon: A3C's, chosen on
# Breakout there and here, shown on SpaceInvaders: beside the paper's, 0.1, averages of squared gradients are small
MINATAR: Preset = dict(
    actors=2, envs=8, unroll=5, steps=1_000_000, torso="minatar", learning_rate=schedule(7e-4, 0.0), optimiser_eps=1e-4,
    rmsprop_decay=0.99, max_grad_norm=40.0, gamma=0.99, target_period=10_000, epsilon_steps=100_000,
)  # fmt: skip
STATES: Preset = {**CLASSIC, "reward_scale": 1.0, "episode_bound": 500}
VECTOR: Preset = {  # of any environment: vectors of any scale, rewards that random play may never see
    **CLASSIC, "reward_scale": 1.0, "normalise_obs": True, "novelty": 0.5, "novelty_steps": 60_000,
}  # fmt: skip
PRESETS: Presets = {"paper": PAPER, "classic": ONE_STEP, "minatar": MINATAR, "states": STATES, "vector": VECTOR}
Last = Literal["q_max", "q_taken"]


class SegmentQ(Algorithm):
    """The squared error of ``Q(s, a)``, summed over a segment. A system says what it is compared with: ``returns``."""

    def __init__(self, nets: QNetwork, gamma: float) -> None:
        super().__init__(nets)
        self.gamma = gamma
        self.target: Any = inferring(copy.deepcopy(nets))

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


class OneStepQ(SegmentQ):
    """``y = r + gamma max_a Q(s', a; theta^-)``."""

    def returns(self, items: Tensors, values: Tensor) -> Tensor:
        discounts, next_values, cut = boundaries(items, values.amax(-1), self.gamma)
        return n_step_returns(items["reward"], discounts, next_values, cut, 1)


class SegmentQLearner(SegmentLearner):
    """Its target network is loaded, not copied: it is the same for all workers."""

    def __init__(self, algorithm: SegmentQ, max_norm: float | None) -> None:
        super().__init__(algorithm, max_norm)
        self._target = NamedTensors(algorithm.target)

    def load_target(self, params: Tensors) -> None:
        self._target.load(params)


class SegmentQAgent(QAgent):
    """Epsilon-greedy; ``value``: what an episode that the time limit has ended is worth at its last observation, where
    the environment resets within the step (by the acting network). last: of the best action or of the one chosen."""

    def __init__(self, nets: QNetwork, epsilon: Any, seed: int, last: Last) -> None:
        super().__init__(nets, epsilon, seed, with_values=True)
        self.last = last

    def respond(self, obs: Arrays, first: np.ndarray, state: Tensors, drawn: Draws) -> Act:
        act = super().respond(obs, first, state, drawn)
        return act._replace(extras={"value": act.extras[self.last]})


def network(cfg: Config, device: str = "cpu") -> QNetwork:
    """Action values [B, A] of observations."""
    env = cfg.env_spec()
    require_actions(cfg.system(), env, "discrete")
    return QNetwork(
        env, torso=cfg.torso, hidden=cfg.hidden, precision=cfg.precision, device=device, normalise_obs=cfg.normalise_obs
    )


def agent(cfg: Config, seed: int = 0, ctx: Context | None = None, last: Last = "q_max") -> SegmentQAgent:
    """Epsilon-greedy, each environment with a final epsilon of its own; without a worker's ``ctx``, an agent for
    evaluation."""
    if ctx is None:
        return SegmentQAgent(network(cfg), lambda steps: cfg.eval_epsilon, seed, last)
    drawn = np.random.default_rng([seed, len(cfg.epsilon_final)])  # not what chooses the actions
    final = drawn.choice(np.array(cfg.epsilon_final), cfg.envs, p=cfg.epsilon_odds)
    total = ctx.steps

    def epsilon(steps: int) -> np.ndarray:
        left = linear(1.0, 0.0, total() / cfg.epsilon_steps) if cfg.epsilon_steps else 0.0
        return np.asarray(final + left * (cfg.epsilon_start - final))

    return SegmentQAgent(network(cfg), epsilon, seed, last)


def program(cfg: Config) -> Program:
    """Workers, the parameters and the target network that they share."""
    return workers("async-q", cfg, OneStepQ)


def workers(name: str, cfg: Config, rule: type[SegmentQ], last: Last = "q_max") -> Program:
    """The program of asynchronous Q-learning by ``rule``; last: see ``SegmentQAgent``."""
    if len(cfg.epsilon_final) != len(cfg.epsilon_odds) or not math.isclose(sum(cfg.epsilon_odds), 1.0):
        raise UsageError(
            f"epsilon_odds should be one probability for each of epsilon_final ({len(cfg.epsilon_final)}), "
            f"with sum 1, found {cfg.epsilon_odds}"
        )
    cfg.require_cpu()
    p = Program(name, policy="params")
    params = p.channel(shared_parameters(name, cfg, lambda: network(cfg)))
    target = p.channel(Channel("target", "shared", target_spec(params.spec), rule=Replace()))
    spec = unroll_spec(cfg.env_spec(), cfg.unroll, cfg.envs, {})

    def make_worker(ctx: Context, params: Any, target: Any) -> TargetWorkerRole:
        torch.manual_seed(ctx.seed)
        algorithm = rule(begin(ctx, network(cfg)), cfg.gamma)
        algorithm.gradient = cfg.gradient
        learner = SegmentQLearner(algorithm, cfg.max_grad_norm)

        def learning_rate(steps: int) -> float:
            return learner.at(cfg.learning_rate, steps / cfg.steps)

        actor = collector(ctx, cfg, partial(agent, last=last), spec)
        return TargetWorkerRole(ctx, actor, learner, learning_rate, params, target, cfg.target_period)

    p.role(
        "worker", make_worker, replicas=cfg.num_actors(), on_failure="restart", threads=cfg.learner_threads or 1,
        memory=spec_nbytes(spec),
        params=params.member(), target=target.member(),
    )  # fmt: skip
    return p
