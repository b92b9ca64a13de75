"""Q-learning from replayed transitions: the network, the loss and the epsilon-greedy agent of the DQN family.

Mnih et al. 2015 (DQN), van Hasselt et al. 2016 (double), Wang et al. 2016 (dueling), Schaul et al. 2016
(prioritised replay), Horgan et al. 2018 (Ape-X: the same loss, priorities made by the actors).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.algos.data_parallel import Shares, Team
from shoal.algos.sgd import KnownLoss, SGDLearner, detached
from shoal.api import Act, Arrays, Batch, EnvSpec, Tensors, Update
from shoal.nets import DuelingQHead, Encoder, LiveTensors, Perceptron, QHead, autocast, inferring
from shoal.nets.perceptron import Backward
from shoal.nets.precision import Precision, resolve
from shoal.ops import select
from shoal.ops.td import TDLoss, td_loss

TOLD_EVERY = 10  # updates: how often the mean value and error are worked out, which only people read
METRICS = ("loss", "q_mean", "td_error")  # of a shared step


class QNetwork(nn.Module):
    """Observations ``[B, ...]`` to action values ``[B, A]``."""

    def __init__(
        self, env: EnvSpec, *, torso: str = "auto", hidden: tuple[int, ...] = (64, 64), dueling: bool = False,
        precision: Precision = "auto", device: str = "cpu",
    ) -> None:  # fmt: skip
        super().__init__()
        actions = env.action.sizes[0]
        self.encoder = Encoder(env.observations, torso, hidden, "relu", fc=not dueling)
        features = self.encoder.features
        self.head = head = DuelingQHead(features, actions) if dueling else QHead(features, actions)
        self.precision = resolve(precision, device, self.encoder)
        self.device = device
        self.perceptron = Perceptron.of(self.encoder, head.linear) if isinstance(head, QHead) else None

    def forward(self, obs: Tensors) -> Tensor:
        if self.perceptron is not None and not torch.is_grad_enabled():
            return self.perceptron.forward(self.encoder.vector(obs))[-1]
        if self.precision == "fp32":
            return self.head(self.encoder(obs))
        with autocast(self.precision, self.device):
            return self.head(self.encoder(obs))


def differentiable(nets: nn.Module, obs: Tensors) -> tuple[Tensor, Backward]:
    """Values of ``obs`` outside autograd, and what takes the loss's gradient by them back to the parameters."""
    if isinstance(nets, QNetwork) and nets.perceptron is not None:
        return nets.perceptron.differentiable(nets.encoder.vector(obs))
    return detached(nets(obs))


class QLearning:
    """The loss. ``beta`` maps the update's number to the exponent of the importance weights (None: no weights).

    clip: the TD error's gradient is clipped to ±clip (Huber); None: squared error (half).
    reduction: ``mean`` over the batch, or ``sum`` as DeepMind's DQN code does.
    target_period: updates between two copies into the target network.
    """

    def __init__(
        self, nets: QNetwork, *, double: bool, target_period: int, beta: Callable[[int], float] | None = None,
        clip: float | None = 1.0, reduction: str = "mean",
    ) -> None:  # fmt: skip
        self.nets, self._live = nets, LiveTensors(nets)
        self.target = inferring(copy.deepcopy(nets))
        self.double, self.target_period, self.beta = double, target_period, beta
        self.clip, self.reduction = clip, reduction
        self.updates = 0

    def loss(self, batch: Batch) -> tuple[KnownLoss, Update]:
        probs, beta = self.weighting(batch)
        values, td, backward = self.td(self.nets, batch.items, self.scale(len(batch.items["action"])), probs, beta)
        metrics = {}
        if self.tells():
            metrics = {"q_mean": select(values, batch.items["action"]).mean(), "td_error": td.error.mean()}
        return KnownLoss(td.loss, partial(backward, td.gradient)), Update(
            metrics, td.error if probs is not None else None
        )

    def td(
        self, nets: nn.Module, items: Tensors, scale: float, probs: Tensor | None, beta: float
    ) -> tuple[Tensor, TDLoss, Backward]:
        """Values [B, A] of ``nets`` for a batch, its errors with their loss (see ``ops.td_loss``), and what takes the
        loss's gradient back to the parameters."""
        obs = {k: v for k, v in items.items() if k == "obs" or k.startswith("obs/")}
        next_obs = {k.removeprefix("next/"): v for k, v in items.items() if k.startswith("next/")}
        values, backward = differentiable(nets, obs)
        with torch.no_grad():
            q_next = self.target(next_obs)
            selector = nets(next_obs) if self.double else q_next
            td = td_loss(
                values, items["action"], items["reward"], items["discount"], q_next, selector, clip=self.clip,
                scale=scale, probs=probs, beta=beta,
            )  # fmt: skip
        return values, td, backward

    def weighting(self, batch: Batch) -> tuple[Tensor | None, float]:
        """With what probability each item was drawn, and beta; None: its weight is 1."""
        if self.beta is None:
            return None, 0.0
        assert batch.probs is not None, "importance weights need a prioritised replay"
        return batch.probs, self.beta(self.updates)

    def scale(self, rows: int) -> float:
        """Factor on the sum over a batch of so many."""
        return 1.0 / rows if self.reduction == "mean" else 1.0

    def tells(self) -> bool:
        return self.updates % TOLD_EVERY == 0

    def after_step(self, step: int) -> None:
        self.updates = step
        if step % self.target_period == 0:
            self.target.load_state_dict(self.nets.state_dict())

    def actor_params(self) -> Tensors:
        return self._live.tensors

    def state_dict(self) -> dict[str, Any]:
        return {"target": self.target.state_dict(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.target.load_state_dict(state["target"])
        self.updates = state["updates"]


class SharedQLearner(SGDLearner):
    """The learner of ``algorithm``, the gradient of whose loss the members of ``team`` share."""

    algorithm: QLearning

    def __init__(
        self, algorithm: QLearning, optimiser: torch.optim.Optimizer, team: Team, *, max_grad_norm: float | None = None,
        schedule: Callable[[int], float] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(algorithm, optimiser, max_grad_norm=max_grad_norm, schedule=schedule)
        self.shares = Shares(algorithm.nets, self._loss, len(METRICS), self.gradient_step, team, [algorithm.target])
        self._live = LiveTensors(algorithm.nets)

    def _descend(self, batch: Batch) -> tuple[float | None, float, Update]:
        reward, (probs, beta), tells = batch.items["reward"], self.algorithm.weighting(batch), self.algorithm.tells()
        data, least = {**batch.items, "error": torch.empty_like(reward)}, 1.0
        if probs is not None:
            data["probs"], least = probs, float(probs.min())
        self.shares.load(data)
        norm, parts = self.shares.step(torch.arange(len(reward)), (len(reward), beta, least, tells))
        loss, *told = parts.sum(0).tolist()
        metrics: dict[str, Tensor | float] = dict(zip(METRICS[1:], told, strict=True)) if tells else {}
        return norm, loss, Update(metrics, None if probs is None else self.shares.data["error"].clone())

    def _loss(self, nets: nn.Module, data: Tensors, rows: Tensor, constants: list[float]) -> tuple[KnownLoss, Tensor]:
        """What ``rows``, which follow one another, add to the loss and to METRICS. Writes their errors."""
        count, beta, least, tells = constants
        first = int(rows[0]) if len(rows) else 0
        items = {k: v[first : first + len(rows)] for k, v in data.items()}
        scale, probs = self.algorithm.scale(int(count)), items.get("probs")
        if probs is not None and len(rows):  # the largest weight of these rows, for 1, is not that of the batch
            scale *= (least / float(probs.min())) ** beta
        values, td, backward = self.algorithm.td(nets, items, scale, probs, beta)
        items["error"].copy_(td.error)
        found = torch.zeros(len(METRICS))
        found[0] = td.loss
        if tells:
            found[1], found[2] = select(values, items["action"]).sum() / count, td.error.sum() / count
        return KnownLoss(td.loss, partial(backward, td.gradient)), found

    def params(self) -> Tensors:
        return self._live.tensors

    def state_dict(self) -> dict[str, Any]:
        return copy.deepcopy(super().state_dict())  # whoever writes it down would see what the team goes on to change

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.shares.restart()


class QAgent:
    """Epsilon-greedy. ``epsilon`` maps the number of actions this agent has chosen (for all its environments
    together; ``taken`` of them in earlier lives) to one exploration rate or one per environment. With ``with_values``
    it also returns ``q_taken`` and ``q_max``, from which a replay computes the initial priority with no further
    pass."""

    def __init__(
        self, nets: QNetwork, epsilon: Callable[[int], float | np.ndarray], seed: int, with_values: bool = False,
        taken: int = 0,
    ) -> None:  # fmt: skip
        self.nets, self.epsilon, self.with_values = inferring(nets), epsilon, with_values
        self._live = LiveTensors(nets)
        self.rng = np.random.default_rng(seed)
        self.steps = taken

    def initial_state(self, envs: int) -> Tensors:
        return {}

    def load(self, params: Tensors, version: int) -> None:
        self._live.load(params)

    @torch.no_grad()
    def act(self, obs: Arrays, first: np.ndarray, state: Tensors, greedy: bool = False) -> Act:
        values = self.nets({k: torch.from_numpy(v) for k, v in obs.items()}).numpy()
        action = values.argmax(-1)
        envs = len(action)
        if not greedy:
            explore = self.rng.random(envs) < self.epsilon(self.steps)
            action = np.where(explore, self.rng.integers(values.shape[-1], size=envs), action)
            self.steps += envs
        extras = {}
        if self.with_values:
            extras = {"q_taken": values[np.arange(envs), action], "q_max": values.max(-1)}
        return Act(action, state, extras)

    def state_dict(self) -> dict[str, Any]:
        return {"nets": self.nets.state_dict(), "rng": self.rng.bit_generator.state, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.nets.load_state_dict(state["nets"])
        self.rng.bit_generator.state = state["rng"]
        self.steps = state["steps"]
