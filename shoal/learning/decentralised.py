"""Proximal policy optimisation by ranks that stay equal: each learns from its own rollout, all along one gradient.

Wijmans et al. 2020, "DD-PPO: Learning Near-Perfect PointGoal Navigators from 2.5 Billion Frames", section 3.
What travels between ranks are items of ``reduce`` channels: moments (sums) once per rollout, then one gradient with
its metrics (means) for each minibatch. Every rank makes the same number of minibatches, however short its rollout was.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from torch import Tensor

from shoal.api import Arrays, Batch, Field, ShoalError, Spec, Tensors, Update
from shoal.learning.algorithm import differentiate
from shoal.learning.learner import to_device
from shoal.learning.ppo import METRICS, PPOConfig, PPOLearner
from shoal.learning.synchronised_learner import MeanGradient
from shoal.nets import RunningNorm
from shoal.nets.actor_critic import ActorCritic
from shoal.types import State

KL = METRICS.index("kl")


@dataclass(frozen=True, kw_only=True)
class DecentralisedConfig(PPOConfig):
    """What PPO by ranks adds to PPO."""

    normalise_advantage: bool = True
    """Normalise advantages by the moments of all ranks' rollouts; without it, they stay as they are."""
    check_every: int = 16
    """Updates between two comparisons of all ranks' parameters, which must be bitwise equal; 0: never."""


@dataclass
class _Pass:
    """Where a rank is in learning from its rollout: plain data, so that it can be saved at any moment."""

    data: Tensors = field(default_factory=dict)  # what the loss reads: rows [N, ...] or trajectories [T, B, ...]
    rows: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))  # those that count
    order: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))  # of this epoch
    seen: Tensors = field(default_factory=dict)  # moments for the running statistics
    epoch: int = 0
    minibatch: int = 0
    kl: float = 0.0  # summed over this epoch's minibatches
    sums: Tensor = field(default_factory=lambda: torch.zeros(len(METRICS) + 2, dtype=torch.float64))
    taken: int = 0
    skipped: int = 0
    ratio_error: float = 0.0


class RankLearner(PPOLearner):
    """One rank's learner. ``moments`` -> reduce (sum) -> ``begin``, then ``gradient`` -> reduce (mean) -> ``descend``
    until that says that the update is complete."""

    def __init__(self, cfg: DecentralisedConfig, nets: ActorCritic, total_steps: int, seed: int, ranks: int) -> None:
        super().__init__(cfg, nets, total_steps, seed)
        self._returns = torch.zeros(0)
        self.rules, self.ranks = cfg, ranks
        self.parameters = self.gradient_step.parameters
        self._mean = MeanGradient(self.parameters, self.device)
        self._pass = _Pass()
        self._scheduled: dict[str, float] = {}  # the settings that are schedules, in this update
        self._norms: dict[str, RunningNorm] = {k: cast(RunningNorm, n) for k, n in nets.norms.items()}
        if nets.rewards is not None:
            self._norms[_REWARDS] = nets.rewards.stats

    # ------------------------------------------------------------------------------ once per rollout
    def moments(self, items: Tensors) -> Arrays:
        """Take in a rollout; what ranks add up of it: ``moments_spec``."""
        self._scheduled = self._schedule(self.env_steps / self.total_steps)
        items = to_device(Batch(items), self.device).items
        data = self._prepare(items)
        del data["normalised_advantage"], data["weight"]  # later: they depend on all ranks, and on the minibatch
        valid = items["valid"]
        out: Arrays = {"steps": np.array(int(valid.sum())), "advantage": moments(data["advantage"], valid)}
        for name in self._norms:
            seen = self._returns if name == _REWARDS else items[name][:-1]
            out[f"norm/{name}"] = moments(seen, valid)
        out["digest"] = np.array(self._digest() if self._checks() else 0)
        self._pass = _Pass(*self._laid_out(data))
        return out

    def begin(self, sums: Tensors) -> int:
        """Go on with the sums over all ranks; the environment steps of all their rollouts."""
        if self._checks() and int(sums["digest"]) != self.ranks * self._digest():
            raise ShoalError(f"the parameters of {self.ranks} ranks are not equal before update {self.step}")
        advantage = self._pass.data.pop("advantage")
        if self.rules.normalise_advantage:
            advantage = normalised(advantage, sums["advantage"])
        self._pass.data["normalised_advantage"] = advantage
        self._pass.seen = {name: sums[f"norm/{name}"].clone() for name in self._norms}
        steps = int(sums["steps"])
        self.env_steps += steps
        self._shuffle()
        return steps

    # ---------------------------------------------------------------------------- once per minibatch
    def gradient(self, out: Arrays) -> None:
        """Write this rank's gradient of the next minibatch, and its metrics, into an item of ``gradient_spec``."""
        now = self._pass
        rows = now.order.tensor_split(self.cfg.minibatches)[now.minibatch]
        items = self.algorithm.select(now.data, rows)
        counted = items["valid"]
        items["weight"] = counted / counted.sum().clamp(min=1)
        self.optimiser.zero_grad(set_to_none=True)
        loss, _, update = differentiate(self.algorithm, Batch(items))
        self._mean.write(out["gradient"])
        metrics = [float(v) for v in update.metrics.values()]
        if not now.epoch and not now.minibatch:
            now.ratio_error = metrics[-1]
        out["metrics"][...] = [*metrics, loss, 0.0]

    def descend(self, means: Tensors) -> bool:
        """Step along the mean gradient of all ranks; whether the update is complete."""
        now = self._pass
        metrics = means["metrics"].clone()
        norm = self.gradient_step.descend(float(metrics[len(METRICS)]), self._mean.take(means["gradient"]))
        if norm is None:
            now.skipped += 1
        else:
            metrics[-1] = norm
            now.sums += metrics
            now.taken += 1
            now.kl += float(metrics[KL])
        now.minibatch += 1
        if now.minibatch < self.cfg.minibatches:
            return False
        now.epoch += 1
        mean_kl = now.kl / self.cfg.minibatches
        if now.epoch < self.cfg.epochs and not (self.cfg.target_kl is not None and mean_kl > self.cfg.target_kl):
            self._shuffle()
            return False
        # Statistics change only between rollouts: acting and training see the same normalisation.
        for name, seen in now.seen.items():
            self._norms[name].merge(*mean_variance(seen.to(self.device)))
        now.data = {}  # it may lie in the collector's memory, which the next rollout takes
        self.step += 1
        return True

    def report(self) -> Update:
        """The metrics of the update that is complete; means over ranks and minibatches."""
        now = self._pass
        out = {"minibatches": float(now.taken), "skipped_updates": now.skipped / (now.taken + now.skipped)}
        if now.taken:
            *means, _, norm = (now.sums / now.taken).tolist()
            out |= dict(zip(METRICS, means, strict=True))
            out |= {"grad_norm": norm, "ratio_error": now.ratio_error}
        return Update({**out, **self._scheduled})

    # ---------------------------------------------------------------------------------------- states
    def state_dict(self) -> State:
        return {**super().state_dict(), "pass": dict(vars(self._pass)), "fraction": self.algorithm.fraction}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._pass = _Pass(**state["pass"])
        self._pass.sums = self._pass.sums.clone()
        self._scheduled = self._schedule(state["fraction"])

    def _rewards(self, items: Tensors, cut: Tensor) -> Tensor:
        """Scaled by the statistics of the rollouts before: those of this one are not complete before all are."""
        scaler = self.nets.rewards
        if scaler is None:
            return items["reward"]
        self._returns = scaler.returns(items["reward"], cut)
        return scaler.scale(items["reward"])

    def _shuffle(self) -> None:
        now = self._pass
        now.order = now.rows[torch.randperm(len(now.rows), generator=self.rng).to(self.device)]
        now.minibatch, now.kl = 0, 0.0

    def _checks(self) -> bool:
        return bool(self.rules.check_every) and self.step % self.rules.check_every == 0

    def _digest(self) -> int:
        """A number that two ranks share only if, but for a chance of 1 in billions, their parameters are equal."""
        with torch.no_grad():
            words = torch.cat([p.detach().flatten().view(torch.int32) for p in self.parameters]).long()
            places = torch.arange(1, len(words) + 1, device=words.device)
            return int((words * (places * 2_654_435_761 % 1_000_003)).sum() % (1 << 40))


_REWARDS = "rewards"


def moments_spec(nets: ActorCritic) -> Spec:
    """What ranks add up once per rollout: environment steps, moments (count, sum, sum of squares) of advantages and of
    whatever is normalised by running statistics, and a digest of the parameters."""
    norms = {k: tuple(cast(RunningNorm, n).shape) for k, n in nets.norms.items()}
    if nets.rewards is not None:
        norms[_REWARDS] = ()
    moments = {f"norm/{name}": Field((3, *shape), "float64", 0) for name, shape in norms.items()}
    counts = {"steps": Field((), "int64"), "digest": Field((), "int64")}
    return {**counts, "advantage": Field((3,), "float64", 0), **moments}


def gradient_spec(nets: ActorCritic) -> Spec:
    """What ranks average for each minibatch: the gradient of all parameters as one vector; metrics and the loss."""
    size = sum(p.numel() for p in nets.parameters())
    return {"gradient": Field((size,), axis=0), "metrics": Field((len(METRICS) + 2,), "float64", 0)}


def moments(x: Tensor, mask: Tensor) -> np.ndarray:
    """[3, ...] (float64): count, sum and sum of squares of the rows of ``x`` where ``mask``. They add up over ranks."""
    rows = x[mask].double()
    count = torch.full(rows.shape[1:], float(len(rows)), dtype=torch.float64, device=rows.device)
    return torch.stack((count, rows.sum(0), rows.square().sum(0))).cpu().numpy()


def mean_variance(sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of moments [3, ...]: mean, population variance and count (one number)."""
    count = sums[0].clamp(min=1.0)
    mean = sums[1] / count
    return mean, (sums[2] / count - mean.square()).clamp(min=0.0), sums[0].flatten()[0]


def normalised(advantage: Tensor, sums: Tensor) -> Tensor:
    """``(A - mu) / sqrt(var + 1e-5)`` with the moments of all ranks (habitat-baselines, ``ddppo.py``); float32."""
    mean, variance, _ = mean_variance(sums.to(advantage.device))
    return ((advantage - mean) * (variance + 1e-5).rsqrt()).float()
