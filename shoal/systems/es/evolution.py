"""Evolution strategies without processes: how results become parameters.

Salimans et al. 2017, "Evolution Strategies as a Scalable Alternative to Reinforcement Learning"; Mania et al. 2018,
"Simple random search of static linear policies is competitive for reinforcement learning" (ARS).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from shoal.api import Batch, Diverged, Tensors, Update
from shoal.learning.actor_critic import ActorCriticAgent
from shoal.nets import RunningNorm
from shoal.nets.evolution_policy import EvolutionPolicy
from shoal.nets.torsos import Activation
from shoal.ops import Adam, ars_weights, es_weights, weighted_noise
from shoal.ops.optimiser import load_optimiser
from shoal.settings.ranges import Count, Fraction, Natural, NonNegative, OnlyWith, Repeats, Replicas
from shoal.settings.schedule import Scheduled, at
from shoal.types import State

TASK = "task/"  # names of what is published beside the policy: the task's seed and its cap on episodes


@dataclass(frozen=True, kw_only=True)
class EvolutionConfig:
    """The policy, and how results become parameters."""

    fixed_at_start: ClassVar[tuple[str, ...]] = ("optimiser", "momentum")
    only_with: ClassVar[OnlyWith] = {
        "momentum": ("optimiser", "sgd"), "top": ("shaping", "spread"), "cap_start": ("cap",),
        "activation": ("hidden",),
    }  # fmt: skip

    activation: Activation = "tanh"
    """Activation of the MLP."""
    normalise_obs: bool = True
    """Normalise vector observations by running statistics."""
    virtual_batch_norm: bool = True
    """Normalise the layers of image torsos by the statistics of reference observations."""
    reference: Repeats = 128
    """Reference observations, from random play before the start."""
    action_noise: NonNegative = 0.0
    """Standard deviation of the noise on continuous actions."""
    action_bins: Replicas = 0
    """Values that each dimension of a continuous action may take; 0: all."""
    learning_rate: Scheduled[NonNegative] = 0.02
    """Step size of the optimiser."""
    optimiser: Literal["adam", "sgd"] = "adam"
    """Optimiser: adam (betas 0.9 and 0.999), or sgd with `momentum`."""
    momentum: Fraction = 0.0
    """Momentum of sgd: share of the average of earlier directions in a step."""
    weight_decay: NonNegative = 0.005
    """Weight decay λ: factor on the parameters that is added to the descent direction."""
    shaping: Literal["ranks", "spread"] = "ranks"
    """How returns become weights: ranks, centred ranks (ES); spread, divided by the standard deviation of those kept
    (ARS)."""
    top: Natural = 0
    """Antithetic pairs kept with `shaping=spread`, the best by their better half; 0: all."""
    cap: NonNegative = 2.0
    """Length cap of episodes, in mean episode lengths of the generation before; 0: no cap."""
    cap_start: Count = 50
    """Initial and smallest length cap of episodes (agent steps)."""


class EvolutionLearner:
    """Turns the results of a generation into the next parameters (a ``Learner``): the optimiser is given
    ``-sum_i w_i eps_i + weight_decay * theta``.

    table: of noise. seed: of the tasks, which with a task's number and a block of pairs decides noise and episodes.
    total_steps: environment steps after which a schedule ends, counted as the lengths of all episodes.
    """

    def __init__(
        self, cfg: EvolutionConfig, policy: EvolutionPolicy, table: Tensor, seed: int, total_steps: int
    ) -> None:
        self.cfg, self.policy, self.table, self.step = cfg, policy, table, 0
        self.total_steps, self.env_steps = total_steps, 0
        self.theta = flat_parameters(policy)
        set_parameters(policy, self.theta)  # which are views of it from now on
        self.adam = Adam([self.theta], lr=cfg.learning_rate) if cfg.optimiser == "adam" else None
        self.velocity = torch.zeros_like(self.theta if cfg.momentum else self.theta[:0])
        self.task = {TASK + "seed": torch.tensor(seed), TASK + "cap": torch.tensor(cfg.cap_start if cfg.cap else 0)}
        policy.refer()
        self._published = {**dict(policy.state_dict()), **self.task}

    @torch.no_grad()
    def update(self, batch: Batch) -> Update:
        """Items, in the order of the pairs: ``index`` int64 [n], ``returns`` float [n, 2], ``lengths`` int [n, 2]; of
        each block of pairs the ``count`` of observations and, by name, their sum and sum of squares ``seen/`` [2, ...].
        """
        items = batch.items
        returns, lengths = items["returns"], items["lengths"]
        ranked = self.cfg.shaping == "ranks"
        weights = es_weights(returns) if ranked else ars_weights(returns, self.cfg.top or len(returns))
        ascent = weighted_noise(self.table, items["index"], weights, len(self.theta))
        norm = float(torch.linalg.vector_norm(ascent))
        if not math.isfinite(norm):
            raise Diverged("the gradient was not finite", {"grad_norm": norm})
        before = self.theta.clone()
        rate = at(self.cfg.learning_rate, self.env_steps / self.total_steps)
        self._descend(ascent.neg_().add_(self.theta, alpha=self.cfg.weight_decay), rate)
        self.env_steps += int(lengths.sum())
        self._merge(items)
        mean_length = float(lengths.double().mean())
        if self.cfg.cap:
            self.task[TASK + "cap"].fill_(max(self.cfg.cap_start, math.ceil(self.cfg.cap * mean_length)))
        self.policy.refer()
        self.step += 1
        metrics = {
            "population_return": float(returns.double().mean()),
            "best_return": float(returns.max()),
            "grad_norm": norm,
            "update_ratio": float((self.theta - before).norm() / before.norm().clamp(min=1e-8)),
            "learning_rate": rate,
            "episode_cap": float(self.task[TASK + "cap"]),
        }
        return Update(metrics)

    def params(self) -> Tensors:
        return self._published

    def state_dict(self) -> State:
        adam = None if self.adam is None else self.adam.state_dict()
        return {"nets": self.policy.state_dict(), "task": self.task, "velocity": self.velocity, "adam": adam,
                "step": self.step, "env_steps": self.env_steps}  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        self.policy.load_state_dict(state["nets"])
        self.velocity.copy_(state["velocity"])
        for name, tensor in self.task.items():
            tensor.copy_(state["task"][name])
        if self.adam is not None:
            load_optimiser(self.adam, state["adam"])
        self.step, self.env_steps = state["step"], state["env_steps"]

    def _descend(self, direction: Tensor, rate: float) -> None:
        if self.adam is not None:
            self.adam.descend([direction], rate)
            return
        if self.cfg.momentum:  # as the authors' SGD: an average, so that the size of a step is that without momentum
            direction = self.velocity.mul_(self.cfg.momentum).add_(direction, alpha=1.0 - self.cfg.momentum)
        self.theta.sub_(direction, alpha=rate)

    def _merge(self, items: Tensors) -> None:
        """Observations of the generation into the running statistics, block after block."""
        for name, module in self.policy.norms.items():
            norm = cast(RunningNorm, module)
            for count, (total, squares) in zip(items["count"], items[f"seen/{name}"], strict=True):
                if count:
                    mean = total / count
                    norm.merge(mean, (squares / count - mean.square()).clamp(min=0.0), count)


def statistics(policy: EvolutionPolicy) -> dict[str, tuple[int, ...]]:
    """The observations whose running statistics are kept: name -> shape."""
    return {name: cast(RunningNorm, norm).shape for name, norm in policy.norms.items()}


class EvolutionAgent(ActorCriticAgent):
    """The unperturbed policy. ``greedy=False`` adds the noise that actions have in training, or draws them from the
    softmax of the outputs."""

    def load(self, params: Tensors, version: int) -> None:
        super().load(own(params), version)


def own(params: Tensors) -> Tensors:
    """Return the policy's own of the tensors that are published."""
    return {name: tensor for name, tensor in params.items() if not name.startswith(TASK)}


def flat_parameters(net: nn.Module) -> Tensor:
    """All parameters of ``net`` as one new vector, in the order of ``parameters()``."""
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def set_parameters(net: nn.Module, flat: Tensor) -> None:
    """Copy a vector of that order into the parameters."""
    torch.nn.utils.vector_to_parameters(flat, net.parameters())
