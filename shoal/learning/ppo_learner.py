"""The learner of PPO, whatever its objective: passes over one batch of trajectories, in minibatches.

Schulman et al. 2017, "Proximal Policy Optimization Algorithms", algorithm 1; minibatches of a recurrent network as in
Huang et al. 2022, details 9.1-9.5.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal import transfer
from shoal.api import Batch, Tensors, Update, observations
from shoal.learning.actor_critic import ActorCriticConfig, boundaries
from shoal.learning.algorithm import Algorithm, to_device
from shoal.learning.data_parallel import DataParallel, Team
from shoal.learning.gradient_step import GradientStep
from shoal.learning.optimiser import load_optimiser, make_optimiser
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.recurrent import start_state
from shoal.ops import explained_variance, gae, masked_normalised
from shoal.settings.ranges import Count, Fraction, NonNegative, Positive, Repeats
from shoal.settings.schedule import Scheduled, linear
from shoal.types import State


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


class PPOLearner:
    """``epochs`` passes over one batch of trajectories in ``minibatches`` parts. Counts as one update.

    algorithm: the objective of rows or columns of a prepared batch (``systems.recurrent_ppo.PPO``), of an actor-critic.
    total_steps: environment steps after which the schedules end. team: its members share the gradient of each
    minibatch.
    """

    def __init__(self, algorithm: Algorithm, total_steps: int, seed: int, team: Team | None = None) -> None:
        cfg: PPOConfig = algorithm.cfg
        nets: ActorCritic = algorithm.nets
        self.algorithm, self.cfg, self.nets, self.total_steps = algorithm, cfg, nets, total_steps
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
        data = self._prepare(items)
        explained = transfer.Download([explained_variance(data["advantage"], data["target"], data["valid"])])
        metrics = self._epochs(data)
        # Statistics change only between batches: acting and training see the same normalisation.
        self.nets.update_statistics(items)
        self.env_steps += int(transfer.on_host(items["valid"]).sum())
        self.step += 1
        (share,) = explained.take()
        known = {"explained_variance": share} if math.isfinite(share) else {}  # not of rewards that are none
        return Update({**metrics, **known, **scheduled})

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
            **learned, "step": self.step, "env_steps": self.env_steps, "skipped": self.gradient_step.skipped,
            "rng": self.rng.get_state(), "carried": None if self.nets.rewards is None else self.nets.rewards.carried,
        }  # fmt: skip

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
        """Return advantages and returns [T, B], beside what the loss needs of the batch."""
        discounts, next_values, cut = boundaries(items, items["value"], self.cfg.gamma)
        reward, value = self._rewards(items, cut), items["value"][:-1]
        advantage = gae(reward, discounts, value, next_values, cut, self.cfg.gae_lambda)
        return {
            **{k: v[:-1] for k, v in observations(items).items()},
            **{f"state/{k}": v for k, v in start_state(items).items()},
            "first": items["first"][:-1],
            **{k: items[k] for k in ("action", "log_prob", "valid")},
            "value": value,
            "target": advantage + value,
            "advantage": advantage,
            "normalised_advantage": advantage.clone(),
            "weight": torch.zeros_like(advantage),
        }

    def _rewards(self, items: Tensors, cut: Tensor) -> Tensor:
        """Return the rewards to learn from [T, B]."""
        scaler = self.nets.rewards
        return items["reward"] if scaler is None else scaler(items["reward"], cut, items["valid"])

    def _laid_out(self, data: Tensors) -> tuple[Tensors, Tensor]:
        """Return what minibatches are drawn from, and the indices that they are made of: with a recurrent core
        trajectories [T, B, ...] by their columns, otherwise steps [T * B, ...] by those that are valid."""
        if self.nets.core.kind != "none":
            return data, torch.arange(data["value"].shape[1], device=self.device)
        rows = transfer.on_host(data["valid"]).flatten().nonzero().squeeze(1)
        return {k: v.flatten(0, 1) for k, v in data.items()}, transfer.send(rows, self.device)

    def _epochs(self, data: Tensors) -> dict[str, float]:
        recurrent = self.nets.core.kind != "none"
        data, rows = self._laid_out(data)
        advantage, valid = data.pop("advantage"), data["valid"]
        if not transfer.on_host(valid).any():  # nothing but steps between two episodes: there is nothing to learn from
            return {"minibatches": 0.0, "skipped_updates": 0.0}
        self.workers.load(data)
        metrics: list[Tensor] = []  # of each minibatch and member: METRICS, and what an objective adds to them
        norms: list[float] = []
        skipped = 0
        for _ in range(self.cfg.epochs):
            order = rows[transfer.send(torch.randperm(len(rows), generator=self.rng), self.device)]
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
    """Do the same for a minibatch of trajectories, whose steps count where ``valid``."""
    counted = valid[:, columns]
    items["normalised_advantage"][:, columns] = masked_normalised(advantage[:, columns], counted)
    items["weight"][:, columns] = counted / counted.sum().clamp(min=1)
