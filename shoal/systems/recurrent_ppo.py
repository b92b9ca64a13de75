"""Recurrent PPO: W workers in lockstep with one learner; rollouts and parameters in shared memory.

Schulman et al. 2017, "Proximal Policy Optimization Algorithms"; recurrence as in Huang et al. 2022, details 9.1-9.5.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from shoal.api import Batch, Context, Tensors, Update, UsageError, observations, spec_nbytes
from shoal.learning.actor_critic import ActorCriticAgent, ActorCriticConfig, boundaries
from shoal.learning.algorithm import Algorithm, to_device
from shoal.learning.data_parallel import DataParallel, Team
from shoal.learning.gradient_step import GradientStep
from shoal.learning.optimiser import load_optimiser, make_optimiser
from shoal.nets.actor_critic import ActorCritic, PolicyValue
from shoal.nets.recurrent import column_axis, start_state
from shoal.ops import discrete_ppo_loss, gae, ppo_loss
from shoal.program import Program
from shoal.settings.ranges import Count, Envs, Fraction, NonNegative, Positive, Repeats
from shoal.settings.schedule import Scheduled, linear
from shoal.topology.channels import Extras, parameters, queue, trajectories
from shoal.topology.config import Preset, Presets, SystemConfig
from shoal.topology.roles import actors_and_learner, require_parts, team
from shoal.types import State, Values

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
    """Clip the value loss too: the larger of the squared errors of the value and of the value held within `clip` of
    the old one."""
    target_kl: Scheduled[Positive] | None = None
    """Mean KL divergence of a pass above which no further pass over the batch is made; none: all are made."""
    separate_critic: bool = False
    """Give the value a network of its own (feed-forward only)."""
    normalise_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""


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
POINTGOAL: Preset = dict(
    total_envs=32, unroll=64, epochs=3, minibatches=4, steps=4_000_000,
    learning_rate=linear(1e-3, 0.0), entropy_cost=0.01, normalise_obs=True, torso="impala-shallow", activation="relu",
    core="lstm", core_size=128,
)  # fmt: skip
EXTRAS: Extras = {"log_prob": ((), "float32"), "value": ((), "float32")}  # of the policy that acted
PRESETS: Presets = {
    "paper": PAPER, "atari": ATARI, "mujoco": MUJOCO, "classic": CLASSIC, "box2d": BOX2D, "pointgoal": POINTGOAL,
}  # fmt: skip


class PPO(Algorithm):
    """The clipped objective (equations 7 and 9) of some rows of a prepared batch."""

    cfg: PPOConfig
    adds_up = True

    def __init__(self, cfg: PPOConfig, nets: ActorCritic) -> None:
        super().__init__(nets)
        self.cfg = cfg

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
        """Steps of [N, ...], or columns of trajectories [T, B, ...]."""
        steps = items["value"].ndim == 1
        return {k: v.index_select(0 if steps else column_axis(k), rows) for k, v in items.items()}


class PPOLearner:
    """``epochs`` passes over one batch of trajectories in ``minibatches`` parts. Counts as one update.

    total_steps: environment steps after which the schedules end. team: its members share the gradient of each
    minibatch. objective: makes what is minimised.
    """

    def __init__(
        self, cfg: PPOConfig, nets: ActorCritic, total_steps: int, seed: int, team: Team | None = None,
        objective: Callable[[Any, ActorCritic], PPO] = PPO,
    ) -> None:  # fmt: skip
        self.cfg, self.nets, self.total_steps = cfg, nets, total_steps
        self.algorithm = objective(cfg, nets)
        self.optimiser = make_optimiser(cfg, nets)
        self.gradient_step = GradientStep(self.optimiser, cfg.max_grad_norm, cfg.epochs * cfg.minibatches)
        self.workers = DataParallel(self.algorithm, self.gradient_step, team if self.algorithm.adds_up else None)
        self.rng = torch.Generator().manual_seed(seed)
        self.device = torch.device(nets.device)
        self.step = 0
        self.env_steps = 0

    def update(self, batch: Batch) -> Update:
        items = to_device(batch, self.device).items
        scheduled = self._schedule(self.env_steps / self.total_steps)
        metrics = self._epochs(self._prepare(items))
        # Statistics change only between batches: acting and training see the same normalisation.
        self.nets.update_statistics(items)
        self.env_steps += int(items["valid"].sum())
        self.step += 1
        return Update({**metrics, **scheduled})

    def _schedule(self, fraction: float) -> dict[str, float]:
        """This share of the run is done: give schedules their values of now."""
        self.gradient_step.at(fraction)
        values = self.algorithm.at(fraction)
        self.cfg = self.algorithm.cfg
        return {**values, "learning_rate": self.optimiser.param_groups[0]["lr"]}

    def params(self) -> Tensors:
        return self.algorithm.params()

    def state_dict(self) -> State:
        learned = {"nets": self.nets.state_dict(), "optimiser": self.optimiser.state_dict()}
        if self.workers.team is not None:  # whoever writes this down while training goes on would see it change
            learned = copy.deepcopy(learned)
        return {
            **learned,
            "step": self.step,
            "env_steps": self.env_steps,
            "skipped": self.gradient_step.skipped,
            "rng": self.rng.get_state(),
            "carried": None if self.nets.rewards is None else self.nets.rewards.carried,
        }

    def load_state_dict(self, state: State) -> None:
        self.nets.load_state_dict(state["nets"])
        load_optimiser(self.optimiser, state["optimiser"])
        self.workers.restart()
        self.step, self.env_steps, self.gradient_step.skipped = state["step"], state["env_steps"], state["skipped"]
        self.rng.set_state(state["rng"])
        if self.nets.rewards is not None:
            carried = state["carried"]
            self.nets.rewards.carried = None if carried is None else carried.to(self.device)

    @torch.no_grad()
    def _prepare(self, items: Tensors) -> Tensors:
        """Advantages and returns [T, B], beside what the loss needs of the batch."""
        discounts, next_values, cut = boundaries(items, items["value"], self.cfg.gamma)
        reward, value = self._rewards(items, cut), items["value"][:-1]
        advantage = gae(reward, discounts, value, next_values, cut, self.cfg.gae_lambda)
        return {
            **{k: v[:-1] for k, v in observations(items).items()},
            **{f"state/{k}": v for k, v in start_state(items).items()},
            "first": items["first"][:-1],
            "action": items["action"],
            "log_prob": items["log_prob"],
            "valid": items["valid"],
            "value": value,
            "target": advantage + value,
            "advantage": advantage,
            "normalised_advantage": advantage.clone(),
            "weight": torch.zeros_like(advantage),
        }

    def _rewards(self, items: Tensors, cut: Tensor) -> Tensor:
        """The rewards to learn from [T, B]."""
        scaler = self.nets.rewards
        return items["reward"] if scaler is None else scaler(items["reward"], cut, items["valid"])

    def _laid_out(self, data: Tensors) -> tuple[Tensors, Tensor]:
        """What minibatches are drawn from, and the indices that they are made of: with a recurrent core trajectories
        [T, B, ...] by their columns, otherwise steps [T * B, ...] by those that are valid."""
        if self.nets.core.kind != "none":
            return data, torch.arange(data["value"].shape[1], device=self.device)
        rows = data["valid"].flatten().nonzero().squeeze(1)
        return {k: v.flatten(0, 1) for k, v in data.items()}, rows

    def _epochs(self, data: Tensors) -> dict[str, float]:
        recurrent = self.nets.core.kind != "none"
        data, rows = self._laid_out(data)
        advantage, valid = data.pop("advantage"), data["valid"]
        if not valid.any():  # nothing but steps between two episodes: there is nothing to learn from
            return {"minibatches": 0.0, "skipped_updates": 0.0}
        self.workers.load(data)
        metrics: list[Tensor] = []  # of each minibatch and member: METRICS, and what an objective adds to them
        norms: list[float] = []
        skipped = 0
        for _ in range(self.cfg.epochs):
            order = rows[torch.randperm(len(rows), generator=self.rng).to(self.device)]
            before = len(metrics)
            chunks = order.tensor_split(min(self.cfg.minibatches, len(order)))
            for chunk in chunks:
                if recurrent:
                    _weigh_columns(self.workers.items, advantage, valid, chunk)
                else:
                    _weigh_rows(self.workers.items, advantage, chunk)
            for chunk in chunks:
                norm, _, values, _ = self.workers.step(chunk)
                if norm is None:
                    skipped += 1
                    continue
                norms.append(norm)
                metrics.append(values)
            if self.cfg.target_kl is not None and metrics[before:]:
                kl = torch.stack(metrics[before:])[..., self.workers.names.index("kl")].sum(1).mean()
                if kl > self.cfg.target_kl:
                    break
        count = len(metrics)
        out = {"minibatches": float(count), "skipped_updates": skipped / (count + skipped)}
        if metrics:
            parts, names = torch.stack(metrics), self.workers.names  # [minibatches, members, metrics]
            out |= dict(zip(names, parts.sum(1).mean(0).tolist(), strict=True))
            first = parts[0, :, names.index("ratio_error")]  # of the first minibatch: later ones should differ
            out["ratio_error"] = float(first.max())
            out["grad_norm"] = sum(norms) / count
        return out


def _weigh_rows(items: Tensors, advantage: Tensor, rows: Tensor) -> None:
    """Normalise the advantages of a minibatch of steps that all count, and give each its part of the mean."""
    part = advantage.index_select(0, rows)
    std, centre = torch.std_mean(part, correction=0)
    items["normalised_advantage"].index_copy_(0, rows, (part - centre) / (std + 1e-8))
    items["weight"].index_fill_(0, rows, 1.0 / len(rows))


def _weigh_columns(items: Tensors, advantage: Tensor, valid: Tensor, columns: Tensor) -> None:
    """The same of a minibatch of trajectories, whose steps count where ``valid``."""
    part, counted = advantage[:, columns], valid[:, columns]
    if not counted.any():
        items["normalised_advantage"][:, columns] = items["weight"][:, columns] = 0.0
        return
    std, centre = torch.std_mean(part[counted], correction=0)
    items["normalised_advantage"][:, columns] = (part - centre) / (std + 1e-8)
    items["weight"][:, columns] = counted / counted.sum()


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
