"""Recurrent PPO: W workers in lockstep with one learner; rollouts and parameters in shared memory.

Schulman et al. 2017, "Proximal Policy Optimization Algorithms"; recurrence as in Huang et al. 2022, details 9.1-9.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from shoal.algos.actor_critic import ActorCritic, ActorCriticAgent
from shoal.algos.ppo import PPOLearner, PPOSettings
from shoal.api import Channel, Context, ParamsReader, ParamsWriter, Reader, Spec, UsageError, Writer, spec_nbytes
from shoal.envs import make
from shoal.ops import Adam
from shoal.program import Program
from shoal.roles.actor import Actor, unroll_spec
from shoal.roles.learner import LearnerRole
from shoal.settings.ranges import Count, Fraction, Natural, NonNegative, Positive
from shoal.systems.common import CommonConfig, env_spec, params_spec, sharing


@dataclass(frozen=True, kw_only=True)
class Config(CommonConfig):
    """Recurrent PPO's own fields. One update learns from `actors` x `envs` trajectories of `unroll` steps."""

    envs: Count = 8
    unroll: Count = 128
    epochs: Count = 4
    """Passes over each batch."""
    minibatches: Count = 4
    """Parts of the batch per pass; with a core, parts are whole trajectories."""
    gamma: Fraction = 0.99
    """Discount per agent step."""
    gae_lambda: Fraction = 0.95
    """lambda of generalised advantage estimation."""
    clip: Positive = 0.2
    """epsilon of the clipped objective."""
    clip_value: bool = False
    """Clip the value loss as well."""
    value_cost: NonNegative = 0.5
    """Weight of the value loss."""
    entropy_cost: float = 0.0
    """Weight of the entropy bonus."""
    learning_rate: NonNegative = 3e-4
    """Of Adam, at the start."""
    anneal: bool = True
    """Learning rate falls linearly to 0 over `steps`."""
    anneal_clip: bool = False
    """So does `clip`."""
    optimiser_eps: NonNegative = 1e-5
    """Epsilon of Adam."""
    max_grad_norm: Positive = 0.5
    """Global gradient norm."""
    target_kl: Positive | None = None
    """Stop the passes over a batch once the mean KL of a pass exceeds this."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Of the MLP."""
    core: Literal["none", "lstm", "gru"] = "none"
    """Recurrent core after the torso."""
    core_size: Count = 128
    """Units of the core."""
    separate_critic: bool = False
    """A network of its own for the value (feed-forward only)."""
    last_action_reward: bool = False
    """Feed the last action and reward to the network."""
    normalise_obs: bool = False
    """Normalise vector observations by running statistics."""
    normalise_reward: bool = False
    """Divide rewards by the standard deviation of the discounted return."""
    learner_processes: Natural = 0
    """Processes that share each gradient; 0: one per core where minibatches are large, as workers wait meanwhile."""


PAPER: dict[str, Any] = dict(  # Schulman et al. 2017, table 5 (Atari); Huang et al. 2022 for the LSTM
    envs=8, unroll=128, actors=1, epochs=4, minibatches=4, steps=10_000_000, learning_rate=2.5e-4, clip=0.1,
    anneal=True, anneal_clip=True, clip_value=True, entropy_cost=0.01, reward_clip="sign", life_loss=True,
    torso="nature", core="lstm", core_size=128, frame_stack=1, activation="relu", precision="fp32",
)  # fmt: skip
ATARI: dict[str, Any] = dict(
    envs=16, unroll=64, steps=1_500_000, epochs=4, minibatches=8, learning_rate=2e-3, clip=0.1, entropy_cost=0.01,
    reward_clip="sign", torso="impala-shallow", activation="relu",
)  # fmt: skip
MUJOCO: dict[str, Any] = dict(
    actors=1, envs=1, unroll=2048, epochs=10, minibatches=32, steps=1_000_000, learning_rate=3e-4, clip=0.2,
    separate_critic=True, normalise_obs=True, normalise_reward=True,
)  # fmt: skip
CLASSIC: dict[str, Any] = dict(
    actors=1, envs=32, unroll=32, epochs=3, minibatches=4, steps=300_000, learning_rate=2e-3, gamma=0.98,
    normalise_reward=True,
)  # fmt: skip
BOX2D: dict[str, Any] = dict(
    envs=16, unroll=128, epochs=4, minibatches=8, steps=2_000_000, learning_rate=1e-3, gamma=0.995, gae_lambda=0.97,
    entropy_cost=0.01, reward_scale=0.05, hidden=(128, 128),
)  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "paper": PAPER, "atari": ATARI, "mujoco": MUJOCO, "classic": CLASSIC, "box2d": BOX2D,
}  # fmt: skip


def network(cfg: Config, device: str = "cpu") -> ActorCritic:
    return ActorCritic(
        env_spec(cfg, cfg.last_action_reward), torso=cfg.torso, hidden=cfg.hidden, activation=cfg.activation,
        core=cfg.core, core_size=cfg.core_size, separate_critic=cfg.separate_critic, normalise_obs=cfg.normalise_obs,
        normalise_reward=cfg.gamma if cfg.normalise_reward else None,
        precision=cfg.precision, device=device,
    )  # fmt: skip


def agent(cfg: Config, seed: int = 0) -> ActorCriticAgent:
    return ActorCriticAgent(network(cfg), seed, ("log_prob",))


def rollout_spec(cfg: Config) -> Spec:
    env = env_spec(cfg, cfg.last_action_reward)
    with torch.device("meta"):  # shapes only
        nets = network(cfg)
    state = {k: tuple(v.shape[1:]) for k, v in nets.initial_state(1).items()}
    return unroll_spec(env, cfg.unroll, cfg.envs, {"log_prob": ((), "float32"), "value": ((), "float32")}, state)


def make_worker(cfg: Config, ctx: Context, rollouts: Writer, params: ParamsReader) -> Actor:
    env = make(cfg.env, cfg.envs, ctx.seed, cfg.env_options(cfg.last_action_reward))
    return Actor(ctx, env, agent(cfg, ctx.seed), rollouts, params, rollout_spec(cfg))


def make_learner(cfg: Config, ctx: Context, rollouts: Reader, params: ParamsWriter) -> LearnerRole:
    torch.manual_seed(ctx.seed)
    nets = network(cfg, cfg.learner_device()).to(cfg.learner_device())
    settings = PPOSettings(
        gamma=cfg.gamma, gae_lambda=cfg.gae_lambda, clip=cfg.clip, clip_value=cfg.clip_value, epochs=cfg.epochs,
        minibatches=cfg.minibatches, learning_rate=cfg.learning_rate, anneal=cfg.anneal, anneal_clip=cfg.anneal_clip,
        value_cost=cfg.value_cost, entropy_cost=cfg.entropy_cost, max_grad_norm=cfg.max_grad_norm,
        target_kl=cfg.target_kl, total_steps=cfg.steps,
    )  # fmt: skip
    optimiser = Adam(nets.parameters(), eps=cfg.optimiser_eps)
    members = learner_processes(cfg)
    team = ctx.team(members) if ctx.team is not None and members > 1 else None
    return LearnerRole(ctx, PPOLearner(nets, optimiser, settings, ctx.seed, team), rollouts, params)


def learner_processes(cfg: Config) -> int:
    """How many share a gradient. A share of fewer than 32 images or 512 other steps costs its process as much."""
    columns = cfg.num_actors() * cfg.envs
    steps = columns * cfg.unroll // cfg.minibatches
    images = any(o.kind == "image" for o in env_spec(cfg).observations.values())
    shares = steps // (32 if images else 512)
    if cfg.core != "none":  # a share is whole trajectories
        shares = min(shares, columns // cfg.minibatches) if images else 1
    return sharing(cfg.learner_processes, cfg.learner_device(), shares)


def program(cfg: Config) -> Program:
    columns = cfg.num_actors() * cfg.envs
    if cfg.core != "none" and columns % cfg.minibatches:
        raise UsageError(
            f"with a recurrent core, minibatches ({cfg.minibatches}) must divide the trajectories of a batch "
            f"({cfg.num_actors()} actors x {cfg.envs} envs)"
        )
    if cfg.minibatches > columns * cfg.unroll:
        raise UsageError(
            f"minibatches ({cfg.minibatches}) must be no more than the steps of a batch ({cfg.num_actors()} actors x "
            f"{cfg.envs} envs x {cfg.unroll})"
        )
    p = Program("recurrent-ppo")
    rollouts = p.channel(Channel("rollouts", "queue", rollout_spec(cfg), capacity=1))
    parameters = params_spec(lambda: network(cfg))
    params = p.channel(Channel("params", "params", parameters))
    p.role(
        "worker", partial(make_worker, cfg), replicas=cfg.num_actors(), on_failure="restart",
        rollouts=rollouts.writer(), params=params.reader(lockstep=True),
    )  # fmt: skip
    members = learner_processes(cfg)
    copies = members + 3  # of the parameters: themselves, a gradient of each member, both averages of Adam
    common = cfg.num_actors() * spec_nbytes(rollout_spec(cfg)) + copies * spec_nbytes(parameters)
    p.role(
        "learner", partial(make_learner, cfg), threads=cfg.learner_threads or 1, device=cfg.learner_device(),
        memory=common if members > 1 else 0, rollouts=rollouts.reader(each=True), params=params.writer(),
    )  # fmt: skip
    return p
