"""Q-learning of distributions of returns, with or without noisy networks: C51, QR-DQN, Noisy DQN, Rainbow.

Bellemare et al. 2017 (C51), Dabney et al. 2018 (QR-DQN), Fortunato et al. 2018 (noisy networks), Hessel et al. 2018
(Rainbow: these, with all that the DQN family has in ``q_learning``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from shoal.api import MASK, Batch, Tensors, Update, UsageError, observations
from shoal.fast.known import known_loss
from shoal.learning.q_learning import QAgent, QLearning, QLearningConfig
from shoal.nets.q_network import NOISE, ReturnNetwork
from shoal.ops import categorical_td_loss, forbid, quantile_td_loss
from shoal.ops.noise import scale_noise
from shoal.ops.value import huber
from shoal.settings.ranges import Finite, NonNegative, OnlyWith, Parts
from shoal.types import State


@dataclass(frozen=True, kw_only=True)
class ReturnsConfig(QLearningConfig):
    """What is learned of the returns, and noisy networks."""

    at_start: ClassVar[tuple[str, ...]] = ("returns", "v_min", "v_max")
    only_with: ClassVar[OnlyWith] = {
        "atoms": ("returns", "categorical", "quantile"), "v_min": ("returns", "categorical"),
        "v_max": ("returns", "categorical"), "kappa": ("returns", "quantile"), "td_clip": ("returns", "mean"),
        "noisy_sigma": ("noisy",), "epsilon_start": ("noisy", False), "epsilon_end": ("noisy", False),
        "epsilon_steps": ("noisy", False), "epsilon_ladder": ("noisy", False),
    }  # fmt: skip

    returns: Literal["mean", "categorical", "quantile"] = "categorical"
    """What is learned of each action's return: its mean (DQN), probabilities of fixed values (C51) or quantiles
    (QR-DQN)."""
    atoms: Parts = 51
    """Values (categorical) or quantiles that describe a distribution."""
    v_min: Finite = -10.0
    """Lowest value of a categorical distribution (discounted return, of processed rewards)."""
    v_max: Finite = 10.0
    """Highest value of a categorical distribution (discounted return, of processed rewards)."""
    kappa: NonNegative = 1.0
    """Threshold of the quantile Huber loss; 0: the plain quantile loss."""
    noisy: bool = True
    """Explore by noisy linear layers after the torso; there is no other exploration then, epsilon is 0."""
    noisy_sigma: NonNegative = 0.5
    """Initial noise of noisy layers, times the root of a layer's inputs."""
    streams: Parts = 512
    """Units of the hidden layer of each dueling stream, and of the noisy layer that follows convolutions."""


class Terms(NamedTuple):
    """Of each item [B]: its loss, its priority, the loss's gradient by what describes the return [B, atoms] (None: ask
    autograd), and what part of its target's probability lies outside the support."""

    loss: Tensor
    priority: Tensor
    gradient: Tensor | None = None
    clipped: Tensor | None = None


class Mean(nn.Module):
    """A return described by its mean, one number: DQN."""

    atoms = 1

    def __init__(self, clip: float | None = 1.0) -> None:
        super().__init__()
        self.clip = clip

    def mean(self, described: Tensor) -> Tensor:
        """[..., 1] -> [...]."""
        return described.squeeze(-1)

    def terms(self, now: Tensor, after: Tensor, rewards: Tensor, discounts: Tensor) -> Terms:
        """The squared or Huber loss of the TD error, which is the priority (Mnih et al. 2015; Schaul et al. 2016)."""
        delta = rewards + discounts * after.squeeze(-1) - now.squeeze(-1)
        loss = 0.5 * delta.square() if self.clip is None else huber(delta, self.clip)
        return Terms(loss, delta.detach().abs())


class Categorical(nn.Module):
    """A return described by logits of ``atoms`` values from ``low`` to ``high``: C51."""

    support: Tensor

    def __init__(self, atoms: int, low: float, high: float) -> None:
        super().__init__()
        if atoms < 2 or not low < high:
            raise UsageError(
                f"a categorical distribution needs at least 2 atoms and v_min below v_max, found {atoms} atoms from "
                f"{low:g} to {high:g}"
            )
        self.atoms = atoms
        values = torch.tensor(np.linspace(low, high, atoms), dtype=torch.float32)
        self.register_buffer("support", values, persistent=False)

    def mean(self, described: Tensor) -> Tensor:
        """[..., atoms] -> [...]."""
        return described.softmax(-1) @ self.support

    def terms(self, now: Tensor, after: Tensor, rewards: Tensor, discounts: Tensor) -> Terms:
        """Cross-entropy against the projected target (Bellemare et al. 2017, algorithm 1); the priority is the
        Kullback-Leibler divergence (Hessel et al. 2018), which differs by the target's entropy."""
        loss, gradient, divergence, outside = categorical_td_loss(now, rewards, discounts, after, self.support)
        return Terms(loss, divergence.clamp_min(0.0), gradient, outside)  # rounding can take a divergence below 0


class Quantiles(nn.Module):
    """A return described by ``atoms`` quantiles, at the middles of as many equal shares: QR-DQN."""

    def __init__(self, atoms: int, kappa: float = 1.0) -> None:
        super().__init__()
        self.atoms, self.kappa = atoms, kappa

    def mean(self, described: Tensor) -> Tensor:
        """[..., atoms] -> [...]."""
        return described.mean(-1)

    def terms(self, now: Tensor, after: Tensor, rewards: Tensor, discounts: Tensor) -> Terms:
        """The quantile Huber loss (Dabney et al. 2018, algorithm 1), which is also the priority."""
        loss, gradient = quantile_td_loss(now, rewards, discounts, after, self.kappa)
        return Terms(loss, loss, gradient)


Returns = Mean | Categorical | Quantiles


def described(cfg: ReturnsConfig) -> Returns:
    """How ``cfg`` describes a return. Raises UsageError for a support without an extent."""
    if cfg.returns == "categorical":
        return Categorical(cfg.atoms, cfg.v_min, cfg.v_max)
    return Quantiles(cfg.atoms, cfg.kappa) if cfg.returns == "quantile" else Mean(cfg.td_clip)


class DistributionalQLearning(QLearning):
    """The loss, as ``QLearning``'s of ``ReturnNetwork``. Each update draws noise anew, and separately for the network
    that learns, for the selection of the next action and for the target network; rows of a batch share it."""

    nets: ReturnNetwork
    target: ReturnNetwork
    adds_up = True

    def __init__(
        self, cfg: ReturnsConfig, nets: ReturnNetwork, beta: float | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(cfg, nets, beta)
        self.rng = np.random.default_rng(seed)

    def prepare(self, batch: Batch) -> Batch:
        """Also adds the noise."""
        batch = super().prepare(batch)
        count, device = self.nets.head.normals, batch.items["reward"].device
        if count:
            drawn = scale_noise(torch.from_numpy(self.rng.standard_normal((3, count), np.float32))).to(device)
            batch.items.update(zip((NOISE + "online", NOISE + "selector", NOISE + "target"), drawn, strict=True))
        return batch

    def select(self, items: Tensors, rows: Tensor) -> Tensors:
        """Rows that follow one another; the noise is of all rows."""
        noise = {k: v for k, v in items.items() if k.startswith(NOISE)}
        return {**super().select({k: v for k, v in items.items() if k not in noise}, rows), **noise}

    def loss(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Update]:
        """Weighted sum over the items of what ``returns.terms`` says; outputs: [B, A, atoms]."""
        items, returns = batch.items, cast(Returns, self.nets.returns)
        reward, discount = items["reward"], items["discount"]
        with torch.no_grad():
            next_obs = observations(items, "next/")
            target = self.target.describe(next_obs, items.get(NOISE + "target"))
            selector = self.nets.describe(next_obs, items.get(NOISE + "selector")) if self.cfg.double else target
            best = forbid(returns.mean(selector), next_obs.get(MASK)).argmax(-1)
            first = torch.arange(0, len(reward) * outputs.shape[1], outputs.shape[1], device=reward.device)
            after = target.flatten(0, 1).index_select(0, first + best)
        taken = first + items["action"]
        now = outputs.flatten(0, 1).index_select(0, taken)
        if isinstance(returns, Mean):
            returns.clip = self.cfg.td_clip  # of now, if it is a schedule
        terms = returns.terms(now, after, reward, discount)
        if terms.gradient is None:
            loss = terms.loss.dot(items["weight"])
        else:
            gradient = outputs.new_zeros(outputs.shape)
            gradient.flatten(0, 1).index_copy_(0, taken, terms.gradient * items["weight"].unsqueeze(-1))
            loss = known_loss(outputs, float(terms.loss.dot(items["weight"])), gradient)
        metrics = {}
        if self.reports():
            value = returns.mean(now.detach())
            error = (reward + discount * returns.mean(after) - value).abs()
            share = self.scalars[0]
            metrics = {"q_mean": value.sum() * share, "td_error": error.sum() * share}
            if terms.clipped is not None:
                metrics["clipped_mass"] = terms.clipped.sum() * share
        return loss, Update(metrics, terms.priority if self.cfg.prioritised else None)

    def state_dict(self) -> State:
        return {**super().state_dict(), "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.rng.bit_generator.state = state["rng"]


class NoisyQAgent(QAgent):
    """Explores by the noise of its network alone, drawn anew for each observation; greedy: by the mean weights."""

    nets: ReturnNetwork

    def __init__(self, nets: ReturnNetwork, seed: int) -> None:
        super().__init__(nets, lambda steps: 0.0, seed)

    def values(self, obs: Tensors, greedy: bool) -> Tensor:
        if greedy:
            return super().values(obs, greedy)
        rows, count = len(next(iter(obs.values()))), self.nets.head.normals
        normals = torch.from_numpy(self.rng.standard_normal((rows, count), np.float32))
        return cast(Tensor, self.nets(obs, scale_noise(normals)))
