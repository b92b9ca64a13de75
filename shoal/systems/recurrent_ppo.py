"""Recurrent PPO: W workers in lockstep with one learner; rollouts and parameters in shared memory.

Schulman et al. 2017, "Proximal Policy Optimization Algorithms"; recurrence as in Huang et al. 2022, details 9.1-9.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.algos.actor_critic import ActorCritic, ActorCriticAgent
from shoal.algos.ppo import PPO, PPOConfig, PPOLearner
from shoal.api import Context, UsageError, spec_nbytes
from shoal.program import Program
from shoal.settings.ranges import Count, Envs
from shoal.settings.schedule import linear
from shoal.systems.config import Preset, Presets, SystemConfig
from shoal.systems.wiring import Extras, actors_and_learner, parameters, queue, require_parts, team, trajectories


@dataclass(frozen=True, kw_only=True)
class Config(SystemConfig, PPOConfig):
    """Recurrent PPO. One update learns from ``actors`` x ``envs`` trajectories of ``unroll`` steps."""

    shares_gradient: ClassVar[bool] = True
    envs: Envs = 8
    unroll: Count = 128

    def updates(self) -> float | None:
        return self.steps / (self.num_actors() * self.envs * self.unroll)


PAPER: Preset = dict(  # Schulman et al. 2017, table 5 (Atari); Huang et al. 2022 for the LSTM
    envs=8, unroll=128, actors=1, epochs=3, minibatches=4, steps=10_000_000,
    learning_rate=linear(2.5e-4, 0.0), clip=linear(0.1, 0.0),
    value_cost=2.0,  # c1 = 1 of (V - R)^2 (equation 9); here it is of half of that
    entropy_cost=0.01, reward_clip="sign", life_loss=True,
    torso="nature", core="lstm", core_size=128, frame_stack=1, activation="relu", precision="fp32",
)  # fmt: skip
ATARI: Preset = dict(
    total_envs=32, unroll=64, steps=3_000_000, epochs=4, minibatches=8, learning_rate=linear(2e-3, 0.0), clip=0.1,
    entropy_cost=0.01, reward_clip="sign", torso="impala-shallow", activation="relu",
)  # fmt: skip
MUJOCO: Preset = dict(
    actors=1, envs=1, unroll=2048, epochs=10, minibatches=32, steps=1_000_000,
    learning_rate=linear(3e-4, 0.0), clip=0.2, separate_critic=True, normalise_obs=True, normalise_reward=True,
)  # fmt: skip
CLASSIC: Preset = dict(
    actors=1, envs=32, unroll=32, epochs=3, minibatches=4, steps=300_000,
    learning_rate=linear(2e-3, 0.0), gamma=0.98, normalise_reward=True,
)  # fmt: skip
BOX2D: Preset = dict(
    total_envs=32, unroll=128, epochs=4, minibatches=8, steps=2_000_000, learning_rate=linear(1e-3, 0.0), gamma=0.995,
    gae_lambda=0.97, entropy_cost=linear(0.01, 0.0), reward_scale=0.05, hidden=(128, 128),
)  # fmt: skip
VECTOR: Preset = dict(  # of any environment: rewards of any size, vectors of any scale
    total_envs=32, unroll=64, epochs=4, minibatches=8, steps=1_000_000, learning_rate=linear(1e-3, 0.0),
    entropy_cost=linear(0.01, 0.0), normalise_obs=True, normalise_reward=True, novelty=0.5,
    novelty_steps=15_000,
)  # fmt: skip
VECTOR_CONTINUOUS: Preset = dict(
    total_envs=16, unroll=128, epochs=10, minibatches=32, steps=500_000, learning_rate=linear(3e-4, 0.0),
    separate_critic=True, normalise_obs=True, normalise_reward=True, novelty=0.5,
    novelty_steps=15_000,
)  # fmt: skip
STATES: Preset = {  # a bonus for novelty ends with the episode, and so teaches to stay away from holes
    **CLASSIC, "steps": 1_000_000, "gamma": 0.995, "entropy_cost": linear(0.02, 0.0), "episode_bound": 500,
}  # fmt: skip
PICTURE: Preset = dict(
    total_envs=32, unroll=64, epochs=4, minibatches=8, steps=2_000_000, learning_rate=linear(1e-3, 0.0),
    entropy_cost=linear(0.01, 0.0), normalise_reward=True, novelty=0.5, novelty_steps=30_000,
    torso="impala-shallow", activation="relu",
)  # fmt: skip
PICTURE_CONTINUOUS: Preset = {**PICTURE, "learning_rate": linear(3e-4, 0.0), "entropy_cost": 0.0}
POINTGOAL: Preset = dict(
    total_envs=32, unroll=64, epochs=3, minibatches=4, steps=4_000_000,
    learning_rate=linear(1e-3, 0.0), entropy_cost=0.01, normalise_obs=True, torso="impala-shallow", activation="relu",
    core="lstm", core_size=128,
)  # fmt: skip
EXTRAS: Extras = {"log_prob": ((), "float32"), "value": ((), "float32")}  # of the policy that acted
PRESETS: Presets = {
    "paper": PAPER, "atari": ATARI, "mujoco": MUJOCO, "classic": CLASSIC, "box2d": BOX2D, "pointgoal": POINTGOAL,
    "classic_continuous": VECTOR_CONTINUOUS, "states": STATES, "vector": VECTOR, "vector_continuous": VECTOR_CONTINUOUS,
    "picture": PICTURE, "picture_continuous": PICTURE_CONTINUOUS,
}  # fmt: skip


def network(cfg: Config, device: str = "cpu") -> ActorCritic:
    """Policy and value, on one network or on two."""
    rewards = cfg.gamma if cfg.normalise_reward else None
    return ActorCritic.of(cfg, cfg.env_spec(), device, separate_critic=cfg.separate_critic, normalise_reward=rewards)


def agent(cfg: Config, seed: int = 0, ctx: Context | None = None) -> ActorCriticAgent:
    """Samples from the policy; log-probabilities travel with the actions."""
    return ActorCriticAgent(network(cfg), seed, ("log_prob",))


def gradient_processes(cfg: Config) -> int:
    """How many share a gradient. A share of fewer than 32 images or 512 other steps costs its process as much."""
    columns, images = cfg.num_actors() * cfg.envs, cfg.has_images()
    shares = columns * cfg.unroll // cfg.minibatches // (32 if images else 512)
    if cfg.core != "none":  # a share is whole trajectories
        shares = min(shares, columns // cfg.minibatches) if images else 1
    return cfg.processes(shares)


def program(cfg: Config, objective: type[PPO] = PPO) -> Program:
    """Workers and a learner that wait for each other. objective: what is minimised, for a system that changes it."""
    columns, batch = cfg.num_actors() * cfg.envs, f"a batch ({cfg.num_actors()} actors x {cfg.envs} envs"
    if cfg.core != "none" and columns % cfg.minibatches:
        raise UsageError(
            f"with a recurrent core, minibatches ({cfg.minibatches}) must divide the trajectories of {batch})"
        )
    if cfg.minibatches > columns * cfg.unroll:
        raise UsageError(f"minibatches ({cfg.minibatches}) must be no more than the steps of {batch} x {cfg.unroll})")
    members = gradient_processes(cfg)

    def learn(nets: ActorCritic, ctx: Context) -> PPOLearner:
        learner = PPOLearner(cfg, nets, cfg.steps, ctx.seed, team(ctx, members), objective)
        require_parts(cfg, learner.algorithm)
        return learner

    spec = trajectories(cfg, network, EXTRAS)
    copies = members + 3  # of the parameters: themselves, a gradient of each member, both averages of Adam
    held = cfg.num_actors() * spec_nbytes(spec) + copies * spec_nbytes(parameters("params", lambda: network(cfg)).spec)
    return actors_and_learner(
        "recurrent-ppo", cfg, queue("rollouts", spec), network, agent, learn, lockstep=True,
        memory=held if members > 1 else 0, actor_role="worker",
    )  # fmt: skip
