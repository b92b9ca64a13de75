"""Ape-X DPG: many actors with the same Gaussian noise feed one prioritised replay; one learner moves a critic and,
along the critic's gradient by the action, a deterministic policy.

Horgan et al. 2018, "Distributed Prioritized Experience Replay", section 3 and appendix D.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np

from shoal.algos.dpg import DPG, DPGAgent, DPGConfig
from shoal.algos.dpg_network import DPGNetwork
from shoal.algos.returns import Expected, Returns
from shoal.algos.sgd import SGDLearner
from shoal.api import Context, UsageError
from shoal.envs import Codec
from shoal.program import Program
from shoal.replay import TableSpec
from shoal.settings.ranges import Count, Envs, Finite, NonNegative, OnlyWith, Repeats, Replicas
from shoal.systems.config import Preset, Presets, SystemConfig, require_actions
from shoal.systems.replayed import TransitionConfig, descent, replay_program
from shoal.systems.wiring import Q_VALUES, stream

SHARE = 2**24  # weights times rows: what takes a process some 2 ms, of which meeting another costs a tenth or two


@dataclass(frozen=True, kw_only=True)
class Config(DPGConfig, TransitionConfig):  # in this order, for the defaults of the first win
    """Ape-X DPG."""

    at_start: ClassVar[tuple[str, ...]] = ("hidden", "policy_hidden", "late_action", "layer_norm", "activation")
    only_with: ClassVar[OnlyWith] = {
        "evict": ("prioritised",), "evict_exponent": ("evict", "proportional"), "late_action": ("hidden",),
    }  # fmt: skip
    hidden_heads: ClassVar[bool] = True
    leaves_core: ClassVar[bool] = True

    env: str = "Pendulum-v1"
    actors: Replicas = 0
    """Actor processes; 0: one less than the cores, at least one."""
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
    """Which transitions leave a full replay that is prioritised: drawn by priority, or the oldest."""
    evict_exponent: Finite = -0.4
    """Power of the priority in proportion to which surplus transitions are drawn to leave."""
    evict_every: Count = 1_000
    """Transitions inserted between two removals of the replay's surplus."""

    def idle(self) -> dict[str, str]:
        """Also of the layers, if neither network has one."""
        layers = self.hidden or self.policy_hidden
        return super().idle() | ({} if layers else dict.fromkeys(("activation", "layer_norm"), "hidden is empty"))

    def shares(self) -> int:
        """Also of vectors, whose critic and policy learn apart, where a share's products are many."""
        if self.has_images():
            return super().shares()
        seen = sum(math.prod(o.shape) for o in self.env_spec().observations.values())
        layers = (seen, *self.hidden), (seen, *(self.policy_hidden or self.hidden))
        return self.batch * sum(a * b for widths in layers for a, b in pairwise(widths)) // SHARE

    def returns(self) -> Returns:
        """What the critic says of the return: its mean."""
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
VECTOR_CONTINUOUS: Preset = {**CLASSIC, "steps": 100_000, "novelty": 0.5, "novelty_steps": 25_000}
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
        return DPGAgent(network(cfg), cfg.noise, seed)
    steps = ctx.steps
    return DPGAgent(network(cfg), cfg.noise, seed, lambda: steps() < cfg.random_steps)


def require_box(cfg: SystemConfig) -> None:
    """Raise UsageError unless the environment's actions are a finite box."""
    env, system = cfg.env_spec(), cfg.system()
    require_actions(system, env, "continuous")
    if not np.isfinite((*env.action.low, *env.action.high)).all():
        space = Codec(cfg.env, cfg).action_space
        raise UsageError(
            f"{system} needs a box of actions with all bounds; {env.id} has {space}: give it such a box, by "
            "gymnasium.wrappers.TransformAction for example"
        )


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

    def learn(nets: DPGNetwork, ctx: Context) -> SGDLearner:
        return descent(cfg, ctx, DPG(cfg, nets, ctx.seed))

    return wired("apex-dpg", cfg, learn)
