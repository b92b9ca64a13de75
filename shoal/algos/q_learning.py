"""Q-learning from replayed transitions: the network, the loss and the epsilon-greedy agent of the DQN family.

Mnih et al. 2015 (DQN), van Hasselt et al. 2016 (double), Wang et al. 2016 (dueling), Schaul et al. 2016
(prioritised replay), Horgan et al. 2018 (Ape-X: the same loss, priorities made by the actors).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.algos.sgd import KnownLoss, detached
from shoal.api import Act, Arrays, Batch, EnvSpec, Tensors, Update
from shoal.nets import DuelingQHead, Encoder, LiveTensors, Perceptron, QHead, autocast, inferring
from shoal.nets.perceptron import Backward
from shoal.nets.precision import Precision, resolve
from shoal.ops import select, td_loss

TOLD_EVERY = 10  # updates: how often the mean value and error are worked out, which only people read


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
        convolves = isinstance(nets, QNetwork) and len(nets.encoder.images) > 0 and nets.device == "cpu"
        self._aside = ThreadPoolExecutor(1, "target") if convolves else None  # beside the online network's values

    def loss(self, batch: Batch) -> tuple[KnownLoss, Update]:
        items = batch.items
        assert self.beta is None or batch.probs is not None, "importance weights need a prioritised replay"
        obs = {k: v for k, v in items.items() if k == "obs" or k.startswith("obs/")}
        next_obs = {k.removeprefix("next/"): v for k, v in items.items() if k.startswith("next/")}
        aside = self._aside.submit(self._target_values, next_obs) if self._aside is not None else None
        values, backward = differentiable(self.nets, obs)
        with torch.no_grad():
            q_next = aside.result() if aside is not None else self.target(next_obs)
            selector = self.nets(next_obs) if self.double else q_next
            td = td_loss(
                values, items["action"], items["reward"], items["discount"], q_next, selector, clip=self.clip,
                scale=1.0 / len(values) if self.reduction == "mean" else 1.0,
                probs=None if self.beta is None else batch.probs,
                beta=0.0 if self.beta is None else self.beta(self.updates),
            )  # fmt: skip
            metrics = {}
            if self.updates % TOLD_EVERY == 0:
                metrics = {"q_mean": select(values, items["action"]).mean(), "td_error": td.error.mean()}
        priorities = None if self.beta is None else td.error
        return KnownLoss(td.loss, partial(backward, td.gradient)), Update(metrics, priorities)

    @torch.no_grad()
    def _target_values(self, next_obs: Tensors) -> Tensor:
        """Of the target network, in whatever thread."""
        values: Tensor = self.target(next_obs)
        return values

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
