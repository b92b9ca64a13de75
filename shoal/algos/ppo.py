"""Proximal policy optimisation of one batch of trajectories: Schulman et al. 2017, with the implementation
details of Huang et al. 2022 ("The 37 implementation details of PPO").

Feed-forward policies learn from shuffled steps. Recurrent ones learn from whole trajectories, started from the
state the actor stored, with the same ``first`` mask that acting used.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoal.algos.actor_critic import ActorCritic, boundaries, observations, start_state
from shoal.algos.data_parallel import Shares, Team
from shoal.algos.sgd import GradientStep, KnownLoss, Loss, set_learning_rate, to_device
from shoal.algos.trajectories import column_axis
from shoal.api import Batch, Tensors, Update
from shoal.nets import LiveTensors
from shoal.ops import discrete_ppo_loss, gae, linear, ppo_loss


@dataclass(frozen=True)
class PPOSettings:
    """The rule's constants; total_steps: environment steps after which the schedules end."""

    gamma: float
    gae_lambda: float
    clip: float
    clip_value: bool
    epochs: int
    minibatches: int
    learning_rate: float
    anneal: bool
    anneal_clip: bool
    value_cost: float
    entropy_cost: float
    max_grad_norm: float
    target_kl: float | None
    total_steps: int


METRICS = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "ratio_error")  # the last: a maximum


class PPOLearner:
    """``epochs`` passes over one batch of trajectories in ``minibatches`` parts. Counts as one update.

    team: its members share the gradient of each minibatch.
    """

    def __init__(
        self, nets: ActorCritic, optimiser: torch.optim.Optimizer, settings: PPOSettings, seed: int,
        team: Team | None = None,
    ) -> None:  # fmt: skip
        self.nets, self.optimiser, self.cfg = nets, optimiser, settings
        self.rng = torch.Generator().manual_seed(seed)
        steps = settings.epochs * settings.minibatches
        self.gradient_step = GradientStep(optimiser, settings.max_grad_norm, steps)
        self.shares = Shares(nets, self._loss, len(METRICS), self.gradient_step, team)
        self._live = LiveTensors(nets)
        self.device = torch.device(nets.device)
        self.step = 0
        self.env_steps = 0

    def update(self, batch: Batch) -> Update:
        items = to_device(batch, self.device).items
        fraction = self.env_steps / self.cfg.total_steps
        rate = self.cfg.learning_rate * (linear(1.0, 0.0, fraction) if self.cfg.anneal else 1.0)
        clip = self.cfg.clip * (linear(1.0, 0.0, fraction) if self.cfg.anneal_clip else 1.0)
        set_learning_rate(self.optimiser, rate)
        data = self._prepare(items)
        metrics = self._epochs(data, max(clip, 1e-3))
        # Statistics change only between batches: acting and training see the same normalisation.
        self.nets.update_statistics({k: v[:-1] for k, v in observations(items).items()}, items["valid"])
        self.env_steps += int(items["valid"].sum())
        self.step += 1
        return Update({**metrics, "learning_rate": rate})

    def params(self) -> Tensors:
        return self._live.tensors

    def state_dict(self) -> dict[str, Any]:
        learned = {"nets": self.nets.state_dict(), "optimiser": self.optimiser.state_dict()}
        if self.shares.team is not None:  # whoever writes this down while training goes on would see it change
            learned = copy.deepcopy(learned)
        return {
            **learned,
            "step": self.step,
            "env_steps": self.env_steps,
            "skipped": self.gradient_step.skipped,
            "rng": self.rng.get_state(),
            "carried": None if self.nets.rewards is None else self.nets.rewards.carried,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.nets.load_state_dict(state["nets"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.shares.restart()
        self.step, self.env_steps, self.gradient_step.skipped = state["step"], state["env_steps"], state["skipped"]
        self.rng.set_state(state["rng"])
        if self.nets.rewards is not None:
            self.nets.rewards.carried = state["carried"]

    @torch.no_grad()
    def _prepare(self, items: Tensors) -> Tensors:
        """Advantages and returns [T, B], beside what the loss needs of the batch."""
        discounts, next_values, cut = boundaries(items, items["value"], self.cfg.gamma)
        reward, value = items["reward"], items["value"][:-1]
        if self.nets.rewards is not None:
            reward = self.nets.rewards(reward, cut, items["valid"])
        advantage = gae(reward, discounts, value, next_values, cut, self.cfg.gae_lambda)
        return {
            **{k: v[:-1] for k, v in observations(items).items()},
            **{f"state/{k}": v for k, v in start_state(items).items()},
            "first": items["first"][:-1],
            "action": items["action"],
            "log_prob": items["log_prob"],
            "valid": items["valid"],
            "value": value,
            "advantage": advantage,
            "target": advantage + value,
        }

    def _epochs(self, data: Tensors, clip: float) -> dict[str, float]:
        rows = torch.arange(data["value"].shape[1], device=self.device)  # a minibatch is some of the trajectories
        if self.nets.core.kind == "none":  # or some of the steps
            rows = data["valid"].flatten().nonzero().squeeze(1)
            data = {k: v.flatten(0, 1) for k, v in data.items()}  # [T * B, ...]
        self.shares.load(data)
        found: list[Tensor] = []
        norms: list[float] = []
        skipped = 0
        for _ in range(self.cfg.epochs):
            order = rows[torch.randperm(len(rows), generator=self.rng).to(self.device)]
            before = len(found)
            chunks = order.split(math.ceil(len(rows) / self.cfg.minibatches))
            for chunk, moments in zip(chunks, [self._moments(data, chunk) for chunk in chunks], strict=True):
                norm, metrics = self.shares.step(chunk, (clip, *moments))
                if norm is None:
                    skipped += 1
                    continue
                norms.append(norm)
                found.append(metrics)
            if self.cfg.target_kl is not None and found[before:]:
                kl = torch.stack(found[before:])[..., METRICS.index("kl")].sum(1).mean()
                if kl > self.cfg.target_kl:
                    break
        count = len(found)
        out = {"minibatches": float(count), "skipped_updates": skipped / (count + skipped)}
        if found:
            shares = torch.stack(found)  # [minibatches, members, METRICS]
            out |= dict(zip(METRICS, shares.sum(1).mean(0).tolist(), strict=True))
            out["ratio_error"] = float(shares[0, :, -1].max())  # of the first minibatch: later ones should differ
            out["grad_norm"] = sum(norms) / count
        return out

    def _moments(self, data: Tensors, rows: Tensor) -> tuple[float, float, int]:
        """Mean and deviation of a minibatch's advantages, and its number of steps."""
        steps = self._select(data, "advantage", rows)
        if self.nets.core.kind != "none":  # rows are steps that count
            steps = steps[self._select(data, "valid", rows)]
        std, centre = torch.std_mean(steps, correction=0)
        return float(centre), float(std), len(steps)

    def _select(self, data: Tensors, name: str, rows: Tensor) -> Tensor:
        """Steps of [N, ...], or columns of trajectories [T, B, ...]."""
        return data[name].index_select(0 if self.nets.core.kind == "none" else column_axis(name), rows)

    def _loss(self, nets: ActorCritic, data: Tensors, rows: Tensor, constants: list[float]) -> tuple[Loss, Tensor]:
        """What ``rows`` add to the loss and to METRICS of their minibatch."""
        cfg = self.cfg
        clip, centre, std, steps = constants  # of the advantages; steps of the minibatch
        part = {k: self._select(data, k, rows) for k in data}
        given = observations(part), part["first"], start_state(part)
        advantage, weight = (part["advantage"] - centre) / (std + 1e-8), part["valid"] / steps
        rest = [x.flatten() for x in (part["log_prob"], part["value"], advantage, part["target"], weight)]
        rule: dict[str, Any] = dict(
            clip=clip, value_cost=cfg.value_cost, entropy_cost=cfg.entropy_cost, clip_value=cfg.clip_value
        )
        if nets.dist.kind == "discrete" and self.device.type == "cpu":
            outputs, backward = nets.differentiable(*given)
            found = discrete_ppo_loss(outputs[:, :-1], part["action"].flatten(), outputs[:, -1], *rest, **rule)
            return KnownLoss(found.loss, partial(backward, found.gradient)), found.found
        policy, value = nets.outputs(*given)
        log_prob, entropy = nets.dist.evaluate(policy, part["action"])
        return ppo_loss(log_prob.flatten(), entropy.flatten(), value.flatten(), *rest, **rule)
