"""Proximal policy optimisation of one batch of trajectories: Schulman et al. 2017, with the implementation
details of Huang et al. 2022 ("The 37 implementation details of PPO").

Feed-forward policies learn from shuffled steps. Recurrent ones learn from whole trajectories, started from the
state the actor stored, with the same ``first`` mask that acting used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shoal.algos.actor_critic import ActorCritic, boundaries, observations, start_state
from shoal.algos.sgd import GradientStep, set_learning_rate, to_device
from shoal.api import Batch, Tensors, Update
from shoal.nets import LiveTensors
from shoal.ops import gae, linear


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


METRICS = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "ratio_error")


class PPOLearner:
    """``epochs`` passes over one batch of trajectories in ``minibatches`` parts. Counts as one update."""

    def __init__(self, nets: ActorCritic, optimiser: torch.optim.Optimizer, settings: PPOSettings, seed: int) -> None:
        self.nets, self.optimiser, self.cfg = nets, optimiser, settings
        self._live = LiveTensors(nets)
        self.rng = torch.Generator().manual_seed(seed)
        steps = settings.epochs * settings.minibatches
        self.gradient_step = GradientStep(optimiser, settings.max_grad_norm, steps)
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
        return {
            "nets": self.nets.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "env_steps": self.env_steps,
            "skipped": self.gradient_step.skipped,
            "rng": self.rng.get_state(),
            "carried": None if self.nets.rewards is None else self.nets.rewards.carried,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.nets.load_state_dict(state["nets"])
        self.optimiser.load_state_dict(state["optimiser"])
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
        if self.nets.core.kind == "none":
            keep = data.pop("valid").flatten().nonzero().squeeze(1)
            data = {k: v.flatten(0, 1) for k, v in data.items()}  # [T * B, ...]
            whole = len(keep) == len(data["value"])
            data = data if whole else {k: v[keep] for k, v in data.items()}
            parts = len(data["value"])
        else:
            parts = data["value"].shape[1]
        found: list[Tensor] = []
        norms: list[float] = []
        skipped = 0
        for _ in range(self.cfg.epochs):
            order = torch.randperm(parts, generator=self.rng).to(self.device)
            kl = torch.zeros((), device=self.device)
            size = math.ceil(parts / self.cfg.minibatches)
            chunks = order.split(size)
            for chunk in chunks:
                loss, metrics = self._loss(self._minibatch(data, chunk), clip)
                norm = self.gradient_step(loss)
                if norm is None:
                    skipped += 1
                    continue
                norms.append(norm)
                found.append(torch.stack([metrics[name] for name in METRICS]))
                kl += metrics["kl"] / len(chunks)
            if self.cfg.target_kl is not None and kl > self.cfg.target_kl:
                break
        count = len(found)
        out = {"minibatches": float(count), "skipped_updates": skipped / (count + skipped)}
        if found:
            out |= dict(zip(METRICS, torch.stack(found).mean(0).tolist(), strict=True))
            out["ratio_error"] = float(found[0][METRICS.index("ratio_error")])  # of the first: later ones should differ
            out["grad_norm"] = sum(norms) / count
        return out

    def _minibatch(self, data: Tensors, chunk: Tensor) -> Tensors:
        """Rows ``chunk`` of flattened steps [N, ...], or columns ``chunk`` of trajectories [T, B, ...]."""
        if self.nets.core.kind == "none":
            return {k: v.index_select(0, chunk) for k, v in data.items()}
        return {k: v[chunk] if k.startswith("state/") else v[:, chunk] for k, v in data.items()}

    def _loss(self, part: Tensors, clip: float) -> tuple[Tensor, dict[str, Tensor]]:
        cfg, dist = self.cfg, self.nets.dist
        if self.nets.core.kind == "none":
            policy, value, _ = self.nets.step(observations(part), part["first"], {})
            mask, total = None, torch.ones(())
        else:
            policy, value = self.nets.unroll(observations(part), part["first"], start_state(part))
            mask = part["valid"].float()
            total = mask.sum()

        def mean(x: Tensor) -> Tensor:
            return x.mean() if mask is None else (x * mask).sum() / total

        advantage = part["advantage"]
        centre = mean(advantage)
        std = (mean((advantage - centre).square())).sqrt()
        advantage = (advantage - centre) / (std + 1e-8)
        log_prob, entropies = dist.evaluate(policy, part["action"])
        log_ratio = log_prob - part["log_prob"]
        ratio = log_ratio.exp()
        policy_loss = -mean(torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage))
        error = (value - part["target"]).square()
        if cfg.clip_value:
            clipped = part["value"] + (value - part["value"]).clamp(-clip, clip)
            error = torch.maximum(error, (clipped - part["target"]).square())
        value_loss = 0.5 * mean(error)
        entropy = mean(entropies)
        loss = policy_loss + cfg.value_cost * value_loss - cfg.entropy_cost * entropy
        with torch.no_grad():
            off = (ratio - 1).abs() if mask is None else (ratio - 1).abs() * mask
            metrics = {
                "policy_loss": policy_loss.detach(),
                "value_loss": value_loss.detach(),
                "entropy": entropy.detach(),
                "kl": mean(ratio - 1 - log_ratio),  # k3
                "clip_fraction": mean((off > clip).float()),
                "ratio_error": off.max(),
            }
        return loss, metrics
