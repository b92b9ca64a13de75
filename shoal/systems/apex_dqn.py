"""Ape-X DQN: many actors, each with its own epsilon, feed one prioritised replay; one learner samples it.

Horgan et al. 2018, "Distributed Prioritized Experience Replay".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.program import Program
from shoal.settings.ranges import Count, Envs, Natural, Replicas
from shoal.systems import dqn
from shoal.topology.config import Preset, Presets
from shoal.topology.replayed import replay_program


@dataclass(frozen=True, kw_only=True)
class Config(dqn.Config):
    """Ape-X DQN. The ladder of epsilons spans all environments of all actors."""

    leaves_core: ClassVar[bool] = True

    actors: Replicas = 0
    """Actor processes; 0: one fewer than there are cores, at least one."""
    envs: Envs = 16
    unroll: Count = 16
    dueling: bool = True
    """Separate value and advantage streams (the paper's network)."""
    prioritised: bool = True
    """Sample in proportion to priorities; false: uniformly."""
    importance_exponent: float = 0.4
    actor_priorities: bool = True
    epsilon_ladder: bool = True
    epsilon_steps: Natural = 0
    evict_every: Count = 1_000
    """Transitions inserted between two removals of the replay's surplus."""


PAPER: Preset = dict(  # sections 3.1 and 4.1, appendix C
    actors=360, envs=1, unroll=50, steps=5_700_000_000, n_step=3, batch=512, learning_rate=6.25e-5,
    optimiser="rmsprop", optimiser_eps=1.5e-7, max_grad_norm=40.0, td_clip=None, target_period=2_500,
    replay=2_000_000, min_replay=50_000, samples_per_insert=0.0, importance_exponent=0.4, reward_clip="unit",
    life_loss=True, torso="nature", precision="fp32",
    evict_every=65_000,  # 100 learner updates, at the paper's 12.5K transitions in and 19 updates a second
)  # fmt: skip
ATARI: Preset = dict(dqn.ATARI, actors=1)  # the same program then: with batches of 128, chance decides on Pong
CLASSIC: Preset = dict(  # streams of 512 units are for images
    dqn.CLASSIC, total_envs=16, dueling=False, hidden=(256, 256),
)  # fmt: skip
BOX2D: Preset = {**dqn.BOX2D, "total_envs": 16, "dueling": False, "epsilon_steps": 0}
STATES: Preset = dict(dqn.STATES, total_envs=16, dueling=False)
VECTOR: Preset = dict(dqn.VECTOR, total_envs=16, dueling=False, novelty_steps=9_000)
PICTURE: Preset = dict(dqn.PICTURE, actors=1)  # the same program then, as of ATARI
MINATAR: Preset = dict(  # sections 3.1 and 4.1, on MinAtar's small network: streams of 512 units are for Atari's
    dqn.MINATAR, total_envs=16, double=True, n_step=3, dueling=False, max_grad_norm=40.0, epsilon_steps=0,
)  # fmt: skip
PRESETS: Presets = {
    "paper": PAPER, "atari": ATARI, "classic": CLASSIC, "box2d": BOX2D, "minatar": MINATAR,
    "states": STATES, "vector": VECTOR, "picture": PICTURE,
}  # fmt: skip
network, agent = dqn.network, dqn.agent


def program(cfg: Config) -> Program:
    """Actors, one replay, one learner."""
    table = dqn.table(cfg, evict_every=cfg.evict_every)
    return replay_program("apex-dqn", cfg, dqn.sent(cfg), table, network, agent, dqn.learner(cfg))
