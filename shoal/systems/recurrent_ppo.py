"""Recurrent PPO: W workers in lockstep with one learner; rollouts and parameters in shared memory.

Schulman et al. 2017, "Proximal Policy Optimization Algorithms"; recurrence as in Huang et al. 2022, details 9.1-9.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from shoal import fast, transfer
from shoal.api import Batch, Context, Learner, Tensors, Update, UsageError, observations, spec_nbytes
from shoal.envs.on_device import on_device as lives_on_device
from shoal.fast import ppo as compiled
from shoal.learning.actor_critic import ActorCriticAgent, ActorCriticConfig, boundaries
from shoal.learning.algorithm import Algorithm, Minibatches
from shoal.nets.actor_critic import ActorCritic, PolicyValue
from shoal.nets.recurrent import column_axis, start_state
from shoal.ops import check, explained_variance, gae, masked_normalised
from shoal.ops.value import discrete_policy
from shoal.program import Program
from shoal.settings.ranges import Count, Envs, Fraction, NonNegative, Positive, Repeats
from shoal.settings.schedule import Scheduled, linear
from shoal.topology.channels import Extras, parameters, queue, trajectories
from shoal.topology.config import Preset, Presets, SystemConfig
from shoal.topology.fitting import Fit, fitted_minibatches
from shoal.topology.on_device import on_device
from shoal.topology.roles import actors_and_learner, minibatch_learner
from shoal.types import Values

LEAST_CLIP = 1e-3  # a clip that has fallen to 0 would learn nothing
METRICS = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "ratio_error")  # the last: a maximum


@dataclass(frozen=True, kw_only=True)
class PPOConfig(ActorCriticConfig):
    """Proximal policy optimisation."""

    learning_rate: float = linear(3e-4, 0.0)
    entropy_cost: float = 0.0
    epochs: Repeats = 4
    """Passes over each batch."""
    minibatches: Count = 4
    """Parts of the batch in each pass; with a recurrent core, parts are whole trajectories."""
    gae_lambda: Scheduled[Fraction] = 0.95
    """Parameter λ of generalised advantage estimation."""
    clip: Scheduled[NonNegative] = 0.2
    """Clip range ε of the probability ratio in the objective; below 0.001 it is taken as 0.001."""
    clip_value: bool = False
    """Also clip the value loss: the larger of the squared errors of the value and of the value clipped to within `clip`
    of the old one."""
    target_kl: Scheduled[Positive] | None = None
    """Mean KL divergence of an epoch above which training on the batch stops; none: no early stop."""
    separate_critic: bool = False
    """Use a separate network for the value (feed-forward only)."""
    normalise_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""


@dataclass(frozen=True, kw_only=True)
class Config(SystemConfig, PPOConfig):
    """Recurrent PPO. One update learns from ``actors`` x ``envs`` trajectories of ``unroll`` steps."""

    shares_gradient: ClassVar[bool] = True
    has_server: ClassVar[bool] = True
    envs_on_device: ClassVar[bool] = True
    envs: Envs = 8
    unroll: Count = 128

    def updates(self) -> float | None:
        return self.steps / (self.num_actors() * self.envs * self.unroll)

    def fitted(self, fit: Fit) -> Values:
        found = super().fitted(fit)
        return {**found, **fitted_minibatches(replace(self, **found), fit)} if found else {}


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
    separate_critic=True, normalise_obs=True, normalise_reward=True, novelty=0.5, novelty_steps=15_000,
    target_kl=0.05,  # of any task: a Gaussian that has become narrow otherwise leaps away within one update
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
# gymnax-blines, agents/Asterix-MinAtar/ppo.yaml and the like; network (no core) and gamma (0.99): Young and Tian 2019
MINATAR: Preset = dict(total_envs=64, epochs=4, minibatches=8, torso="minatar", learning_rate=5e-4, entropy_cost=0.01)
EXTRAS: Extras = {"log_prob": ((), "float32"), "value": ((), "float32")}  # of the policy that acted
PRESETS: Presets = {
    "paper": PAPER, "atari": ATARI, "mujoco": MUJOCO, "classic": CLASSIC, "box2d": BOX2D, "minatar": MINATAR,
    "pointgoal": POINTGOAL, "classic_continuous": VECTOR_CONTINUOUS, "states": STATES, "vector": VECTOR,
    "vector_continuous": VECTOR_CONTINUOUS, "picture": PICTURE, "picture_continuous": PICTURE_CONTINUOUS,
}  # fmt: skip


def ppo_loss(
    log_prob: Tensor, entropy: Tensor, value: Tensor, old_log_prob: Tensor, old_value: Tensor, advantage: Tensor,
    target: Tensor, weight: Tensor, *, clip: float, value_cost: float, entropy_cost: float, clip_value: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``sum_i w_i (-min(rho A, clip(rho, 1 - eps, 1 + eps) A) + c_v (V - target)^2 / 2 - c_e H)``.

    Args: of the policy that learns, log-probability of the action taken, entropy and value; of the one that acted,
    log-probability and value; advantage, target, weight: float ``[N]`` all; clip: epsilon; clip_value: of the value's
    error and that of the value at most ``clip`` from the old one, the larger.
    Returns: the loss, and ``[6]`` (detached): policy loss, value loss (half the squared error), entropy, KL (the
    estimator ``rho - 1 - log rho``) and clipped fraction, as weighted sums, and the largest ``|rho - 1|``.
    Source: Schulman et al. (2017), eq. 7 and 9; the value's clip: Huang et al. (2022), detail 9.
    """
    check.same_shape(
        "ppo_loss", log_prob=log_prob, entropy=entropy, value=value, old_log_prob=old_log_prob, old_value=old_value,
        advantage=advantage, target=target, weight=weight,
    )  # fmt: skip
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    policy_loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    error = (value - target).square()
    if clip_value:
        clipped = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.maximum(error, (clipped - target).square())
    loss = policy_loss + 0.5 * value_cost * error
    if entropy_cost:
        loss = loss - entropy_cost * entropy
    with torch.no_grad():
        off = (ratio - 1).abs()
        kl = ratio - 1 - log_ratio
        metrics = torch.stack((policy_loss, 0.5 * error, entropy, kl, (off > clip).float())).mv(weight)
    largest = off.max() if off.numel() else off.new_zeros(())  # a member's part of a small minibatch may be empty
    return loss.dot(weight), torch.cat((metrics, largest.view(1)))


def discrete_ppo_loss(
    outputs: Tensor, action: Tensor, old_log_prob: Tensor, old_value: Tensor, advantage: Tensor,
    target: Tensor, weight: Tensor, *, clip: float, value_cost: float, entropy_cost: float, clip_value: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``ppo_loss`` of a policy of ``A`` discrete actions; on a CPU by its compiled twin, ``fast.ppo.ppo_loss``.

    Args: outputs: float ``[N, A + 1]``, logits and, in the last column, the value; action: int64 ``[N]``; the others as
    ``ppo_loss`` has them, float ``[N]``.
    Returns: as ``ppo_loss``; the loss is differentiable by ``outputs`` alone.
    Raises: IndexError for an action that is none.
    """
    check.same_shape(
        "discrete_ppo_loss", action=action, old_log_prob=old_log_prob, old_value=old_value, advantage=advantage,
        target=target, weight=weight,
    )  # fmt: skip
    check.values("discrete_ppo_loss", "outputs", outputs, action)
    if fast.ENABLED and outputs.device.type == "cpu":
        rest = (action, old_log_prob, old_value, advantage, target, weight, clip, value_cost, entropy_cost, clip_value)
        return compiled.ppo_loss(outputs, *rest)
    log_prob, entropy = discrete_policy("discrete_ppo_loss", outputs[:, :-1], action)
    return ppo_loss(
        log_prob, entropy, outputs[:, -1], old_log_prob, old_value, advantage, target, weight, clip=clip,
        value_cost=value_cost, entropy_cost=entropy_cost, clip_value=clip_value,
    )  # fmt: skip


class PPO(Algorithm):
    """PPO's algorithm 1: compute the advantages of a batch of trajectories, then train for some epochs on minibatches
    of it with the clipped objective (equations 7 and 9)."""

    cfg: PPOConfig
    adds_up = True
    capturable = True

    def __init__(self, cfg: PPOConfig, nets: ActorCritic) -> None:
        super().__init__(nets)
        self.cfg = cfg
        self.capturable = self.capturable and cfg.core == "none"  # a core asks the host where episodes begin

    def learn(self, batch: Batch, minibatches: Minibatches) -> Update:
        """Learn from trajectories [T + 1, B, ...] in ``epochs`` passes of ``minibatches`` minibatches."""
        data = self.prepare(batch).items
        explained = transfer.Download([explained_variance(data["advantage"], data["target"], data["valid"])])
        if transfer.on_host(data["valid"]).any():  # else all steps lie between episodes: nothing to learn from
            self._passes(*self.laid_out(data), minibatches)
        # Statistics change only between batches: acting and training see the same normalisation.
        self.nets.update_statistics(batch.items)
        metrics = minibatches.summary()
        if "ratio_error" in metrics:  # of the first minibatch: later ones should differ
            metrics["ratio_error"] = float(minibatches.reported("ratio_error")[0].max())
        (share,) = explained.take()
        return Update({**metrics, **({"explained_variance": share} if math.isfinite(share) else {})})

    @torch.no_grad()
    def prepare(self, batch: Batch) -> Batch:
        """Return advantages and returns [T, B], beside what the loss needs of the batch."""
        items = batch.items
        discounts, next_values, cut = boundaries(items, items["value"], self.cfg.gamma)
        reward, value = self.rewards(items, cut), items["value"][:-1]
        advantage = gae(reward, discounts, value, next_values, cut, self.cfg.gae_lambda)
        return Batch({
            **{k: v[:-1] for k, v in observations(items).items()},
            **{f"state/{k}": v for k, v in start_state(items).items()},
            "first": items["first"][:-1],
            **{k: items[k] for k in ("action", "log_prob", "valid")},
            "value": value, "target": advantage + value, "advantage": advantage,
        })  # fmt: skip

    def rewards(self, items: Tensors, cut: Tensor) -> Tensor:
        """Return the rewards to learn from [T, B]."""
        scaler = self.nets.rewards
        return items["reward"] if scaler is None else scaler(items["reward"], cut, items["valid"])

    def laid_out(self, data: Tensors) -> tuple[Tensors, Tensor]:
        """Return what minibatches are drawn from, and the indices that they are made of: with a recurrent core
        trajectories [T, B, ...] by their columns, otherwise steps [T * B, ...] by those that are valid."""
        if self.nets.core.kind != "none":
            return data, torch.arange(data["value"].shape[1], device=data["value"].device)
        rows = transfer.on_host(data["valid"]).flatten().nonzero().squeeze(1)
        return {k: v.flatten(0, 1) for k, v in data.items()}, transfer.send(rows, data["value"].device)

    def _passes(self, data: Tensors, rows: Tensor, minibatches: Minibatches) -> None:
        advantage, cfg = data.pop("advantage"), self.cfg
        more = {"normalised_advantage": advantage.clone(), "weight": torch.zeros_like(advantage)}
        items = minibatches.load({**data, **more})
        weigh = weigh_rows if advantage.ndim == 1 else weigh_columns
        for _ in range(cfg.epochs):
            parts = minibatches.shuffled(rows).tensor_split(min(cfg.minibatches, len(rows)))
            for part in parts:
                weigh(items, advantage, part)
            for part in parts:
                minibatches.step(part)
            if cfg.target_kl is not None:
                kl = minibatches.reported("kl", last=len(parts)).sum(1)
                if len(kl) and kl.mean() > cfg.target_kl:
                    break

    def loss(self, outputs: PolicyValue, batch: Batch) -> tuple[Tensor, Update]:
        cfg, items = self.cfg, batch.items
        old = [items[k].flatten() for k in ("log_prob", "value", "normalised_advantage", "target", "weight")]
        rule: Values = dict(
            clip=max(cfg.clip, LEAST_CLIP), value_cost=cfg.value_cost, entropy_cost=cfg.entropy_cost,
            clip_value=cfg.clip_value,
        )  # fmt: skip
        if outputs.dist.kind == "discrete":
            loss, metrics = discrete_ppo_loss(outputs.joined, items["action"].flatten(), *old, **rule)
        else:
            log_prob, entropy = outputs.evaluate(items["action"])
            loss, metrics = ppo_loss(log_prob.flatten(), entropy.flatten(), outputs.value.flatten(), *old, **rule)
        return loss, Update(dict(zip(METRICS, metrics.unbind(), strict=True)))

    def select(self, items: Tensors, rows: Tensor) -> Tensors:
        """Return some steps of [N, ...], or columns of trajectories [T, B, ...]."""
        steps = items["value"].ndim == 1
        return {k: v.index_select(0 if steps else column_axis(k), rows) for k, v in items.items()}


def weigh_rows(items: Tensors, advantage: Tensor, rows: Tensor) -> None:
    """Normalise the advantages of a minibatch of steps that all count, and give each its part of the mean."""
    part = advantage.index_select(0, rows)
    std, centre = torch.std_mean(part, correction=0)
    items["normalised_advantage"].index_copy_(0, rows, (part - centre) / (std + 1e-8))
    items["weight"].index_fill_(0, rows, 1.0 / len(rows))


def weigh_columns(items: Tensors, advantage: Tensor, columns: Tensor) -> None:
    """Do the same for a minibatch of trajectories, whose steps count where ``valid``."""
    counted = items["valid"][:, columns]
    items["normalised_advantage"][:, columns] = masked_normalised(advantage[:, columns], counted)
    items["weight"][:, columns] = counted / counted.sum().clamp(min=1)


def network(cfg: Config, device: str = "cpu") -> ActorCritic:
    """Policy and value, on one network or on two."""
    rewards = cfg.gamma if cfg.normalise_reward else None
    return ActorCritic.of(cfg, cfg.env_spec(), device, separate_critic=cfg.separate_critic, normalise_reward=rewards)


def agent(cfg: Config, seed: int = 0, ctx: Context | None = None) -> ActorCriticAgent:
    """Samples from the policy; log-probabilities travel with the actions."""
    return ActorCriticAgent(network(cfg), seed, ("log_prob",))


def gradient_processes(cfg: Config) -> int:
    """Return how many processes share a gradient. A share of fewer than 32 images or 512 other steps costs its process
    as much."""
    columns, images = cfg.num_actors() * cfg.envs, cfg.has_images()
    shares = columns * cfg.unroll // cfg.minibatches // (32 if images else 512)
    if cfg.core != "none":  # a share is whole trajectories
        shares = min(shares, columns // cfg.minibatches) if images else 1
    return cfg.processes(shares)


def program(cfg: Config, objective: type[PPO] = PPO) -> Program:
    """Workers and a learner that wait for each other. objective: what is minimised, for a system that changes it."""
    columns, batch = cfg.num_actors() * cfg.envs, f"a batch (actors {cfg.num_actors()} x envs {cfg.envs}"
    if cfg.core != "none" and columns % cfg.minibatches:
        raise UsageError(
            f"with a recurrent core, minibatches ({cfg.minibatches}) must divide the trajectories of {batch})"
        )
    if cfg.minibatches > columns * cfg.unroll:
        raise UsageError(f"minibatches ({cfg.minibatches}) must be no more than the steps of {batch} x {cfg.unroll})")
    members = 1 if lives_on_device(cfg.env) else gradient_processes(cfg)

    def learn(nets: ActorCritic, ctx: Context) -> Learner:
        return minibatch_learner(cfg, objective(cfg, nets), ctx, members)

    if lives_on_device(cfg.env):
        return on_device("recurrent-ppo", cfg, network, learn, EXTRAS)
    spec = trajectories(cfg, network, EXTRAS)
    copies = members + 3  # of the parameters: themselves, a gradient of each member, both averages of Adam
    held = cfg.num_actors() * spec_nbytes(spec) + copies * spec_nbytes(parameters("params", lambda: network(cfg)).spec)
    return actors_and_learner(
        "recurrent-ppo", cfg, queue("rollouts", spec), network, agent, learn, lockstep=True,
        memory=held if members > 1 else 0, actor_role="worker",
    )  # fmt: skip
