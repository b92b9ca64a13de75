"""DQN: one actor, a replay, a learner; double, dueling, n-step and prioritised replay as switches.

Mnih et al. 2015, "Human-level control through deep reinforcement learning"; van Hasselt et al. 2016;
Wang et al. 2016; Schaul et al. 2016.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from shoal.algos.q_learning import Epsilon, QAgent, QLearning, QNetwork
from shoal.algos.sgd import SGDLearner
from shoal.api import Context, Spec
from shoal.program import Program
from shoal.replay import TableSpec
from shoal.settings.ranges import Count, Decay, Envs, Fraction, Natural, OnlyWith, Replicas
from shoal.settings.schedule import linear as schedule
from shoal.systems.config import Preset, Presets, require_actions
from shoal.systems.exploration import LadderConfig, ladder
from shoal.systems.replayed import ReplayConfig, descent, replay_program
from shoal.systems.wiring import Q_VALUES, stream


@dataclass(frozen=True, kw_only=True)
class Config(ReplayConfig, LadderConfig):
    """DQN."""

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
    """Steps over which exploration falls from its first to its last probability (agent steps over all actors); 0: it
    has its last probability from the beginning."""
    epsilon_ladder: bool = False
    """Give each environment a last probability of its own, its rung of Ape-X's ladder, in place of `epsilon_end`."""
    actor_priorities: bool = False
    """Give new transitions the TD error that the actor saw; false: the largest priority of late."""


PAPER: Preset = dict(  # Mnih et al. 2015, extended data table 1; periods converted to updates
    envs=1, unroll=4, steps=50_000_000, double=False, n_step=1, learning_rate=2.5e-4, optimiser="rmsprop",
    optimiser_eps=0.01, max_grad_norm=None, reduction="sum", batch=32, samples_per_insert=8.0, replay=1_000_000,
    min_replay=50_000, target_period=2_500, epsilon_end=0.1, epsilon_steps=1_000_000, reward_clip="sign",
    life_loss=True, torso="nature", precision="fp32",
)  # fmt: skip
ATARI: Preset = dict(
    envs=32, unroll=16, steps=1_500_000, dueling=True, prioritised=True, learning_rate=1e-4, optimiser_eps=1e-5,
    batch=32, samples_per_insert=4.0, replay=200_000, min_replay=10_000, target_period=1_000, importance_exponent=0.4,
    epsilon_ladder=True, epsilon_steps=0, actor_priorities=True,  # as in Ape-X: Pong is learned (docs/results.md)
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
PRESETS: Presets = {
    "paper": PAPER,
    "atari": ATARI,
    "classic": CLASSIC,
    "box2d": BOX2D,
    "states": STATES,
    "picture": PICTURE,
    "vector": VECTOR,
}


def network(cfg: ReplayConfig, device: str = "cpu") -> QNetwork:
    """Action values [B, A] of observations."""
    env = cfg.env_spec()
    require_actions(cfg.system(), env, "discrete")
    return QNetwork(
        env, torso=cfg.torso, hidden=cfg.hidden, dueling=cfg.dueling, precision=cfg.precision, device=device
    )


def agent(cfg: Config, seed: int = 0, ctx: Context | None = None) -> QAgent:
    """What acts by ``network(cfg)``; see ``explorer``."""
    return explorer(cfg, network(cfg), seed, ctx)


def explorer(cfg: Config, nets: QNetwork, seed: int, ctx: Context | None) -> QAgent:
    """Epsilon falls linearly over ``epsilon_steps`` of all actors together; without an actor's ``ctx``, an agent for
    evaluation. Tells the values that first priorities follow from, if they are asked for."""
    if ctx is None:
        return QAgent(nets, cfg.eval_epsilon, seed)
    replicas, start, last = ctx.replicas, cfg.epsilon_start, ladder(cfg, ctx) if cfg.epsilon_ladder else cfg.epsilon_end

    def epsilon(steps: int) -> Epsilon:
        done = steps * replicas / cfg.epsilon_steps if cfg.epsilon_steps else 1.0
        return last if done >= 1.0 else start + (last - start) * done

    return QAgent(nets, epsilon, seed, cfg.actor_priorities, ctx.counts.get("actions", 0))


def sent(cfg: Config) -> Spec:
    """What actors send: steps, with values for the first priorities if those are the actor's."""
    return stream(cfg, Q_VALUES if cfg.actor_priorities else None)


def table(cfg: Config, **fields: Any) -> TableSpec:
    """The replay table; ``fields`` are what a system adds."""
    return cfg.table(initial="given" if cfg.actor_priorities else "max", **fields)


def importance_exponent(cfg: ReplayConfig) -> float | None:
    """Exponent β of the importance weights; None without prioritised replay."""
    return cfg.importance_exponent if cfg.prioritised else None


def learner(cfg: ReplayConfig) -> Callable[[QNetwork, Context], SGDLearner]:
    """What makes the learner of a network."""
    return lambda nets, ctx: descent(cfg, ctx, QLearning(cfg, nets, importance_exponent(cfg)))


def program(cfg: Config) -> Program:
    """One actor, a replay, a learner."""
    return replay_program("dqn", cfg, sent(cfg), table(cfg), network, agent, learner(cfg))
