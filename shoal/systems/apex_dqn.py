"""Ape-X DQN: many actors, each with its own epsilon, feed one prioritised replay; one learner samples it.

Horgan et al. 2018, "Distributed Prioritized Experience Replay".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from shoal.algos.q_learning import QAgent, QLearning
from shoal.api import Context, ParamsReader, ParamsWriter, Reader, Spec, Writer
from shoal.envs import make
from shoal.ops import epsilon_ladder
from shoal.program import Program
from shoal.roles.actor import Actor, unroll_spec
from shoal.roles.learner import LearnerRole
from shoal.settings.ranges import Count, Fraction, Natural, NonNegative
from shoal.systems import dqn
from shoal.systems.common import cores, env_spec, require_actions


@dataclass(frozen=True, kw_only=True)
class Config(dqn.Config):
    """Ape-X DQN's own fields; the rest is DQN's. The ladder of epsilons spans all environments of all actors."""

    actors: Natural = 0
    """Actor processes; 0: one less than the cores, at least one."""
    envs: Count = 16
    unroll: Count = 16
    dueling: bool = True
    """Separate value and advantage streams (the paper's network)."""
    prioritised: bool = True
    """Sample in proportion to priorities; false: uniformly."""
    actor_priorities: bool = True
    """New transitions carry the TD error the actor saw; false: the largest priority so far."""
    epsilon_base: Fraction = 0.4
    """Exploration of the first environment of the ladder."""
    epsilon_alpha: NonNegative = 7.0
    """How steeply the ladder falls."""
    evict_every: Count = 1_000
    """Transitions inserted between two removals of the replay's surplus."""

    def num_actors(self) -> int:
        return self.actors or max(1, cores() - 1)


PAPER: dict[str, Any] = dict(  # sections 3.1 and 4.1, appendix C
    actors=360, envs=1, unroll=50, steps=5_700_000_000, n_step=3, batch=512, learning_rate=6.25e-5,
    optimiser="rmsprop", optimiser_eps=1.5e-7, max_grad_norm=40.0, td_clip=None, target_period=2_500,
    replay=2_000_000, min_replay=50_000, samples_per_insert=0.0, importance_exponent=0.4, reward_clip="unit",
    life_loss=True, torso="nature", precision="fp32",
    evict_every=65_000,  # 100 learner updates, at the paper's 12.5K transitions in and 19 updates a second
)  # fmt: skip
ATARI: dict[str, Any] = {**dqn.ATARI, "actors": 1, "envs": 32}
CLASSIC: dict[str, Any] = {**dqn.CLASSIC, "dueling": False, "hidden": (256, 256)}  # streams of 512 units are for images
BOX2D: dict[str, Any] = {**dqn.BOX2D, "dueling": False}
PRESETS: dict[str, dict[str, Any]] = {"paper": PAPER, "atari": ATARI, "classic": CLASSIC, "box2d": BOX2D}
network = dqn.network


def agent(cfg: Config, seed: int = 0, index: int = 0, replicas: int = 1) -> QAgent:
    """Environment ``e`` of actor ``index`` stands at rung ``index * envs + e`` of the ladder, for the whole run."""
    rungs = replicas * cfg.envs
    epsilons = np.array(
        [epsilon_ladder(index * cfg.envs + e, rungs, cfg.epsilon_base, cfg.epsilon_alpha) for e in range(cfg.envs)]
    )
    return QAgent(network(cfg), lambda steps: epsilons, seed, with_values=True)


def stream_spec(cfg: Config) -> Spec:
    values = {"q_taken": ((), "float32"), "q_max": ((), "float32")}
    return unroll_spec(env_spec(cfg), cfg.unroll, cfg.envs, values, stream=True)


def make_actor(cfg: Config, ctx: Context, transitions: Writer, params: ParamsReader) -> Actor:
    env = make(cfg.env, cfg.envs, ctx.seed, cfg.env_options())
    policy = agent(cfg, ctx.seed, ctx.index, ctx.replicas)
    return Actor(ctx, env, policy, transitions, params, stream_spec(cfg))


def make_learner(cfg: Config, ctx: Context, transitions: Reader, params: ParamsWriter) -> LearnerRole:
    torch.manual_seed(ctx.seed)
    nets = network(cfg, cfg.learner_device()).to(cfg.learner_device())
    algorithm = QLearning(
        nets, double=cfg.double, target_period=cfg.target_period, clip=cfg.td_clip, reduction=cfg.reduction,
        beta=(lambda update: cfg.importance_exponent) if cfg.prioritised else None,  # not annealed
    )  # fmt: skip
    return LearnerRole(ctx, dqn.sgd(cfg, ctx, algorithm), transitions, params)


def program(cfg: Config) -> Program:
    require_actions("apex-dqn", env_spec(cfg), "discrete")
    table = dqn.table_spec(cfg, initial="given" if cfg.actor_priorities else "max", evict_every=cfg.evict_every)
    return dqn.wire("apex-dqn", cfg, stream_spec(cfg), table, make_actor, make_learner)
