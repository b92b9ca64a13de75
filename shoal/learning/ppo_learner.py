"""The learner of PPO and of what learns as it does: several gradient steps on each batch of trajectories.

What is learned in them is the algorithm's (``systems.recurrent_ppo.PPO.learn``); here are the optimiser, the processes
that share a step, the schedules, and the state of all of them.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from shoal import transfer
from shoal.api import Batch, Stateful, Tensors, Update, UsageError
from shoal.learning.algorithm import Algorithm
from shoal.learning.data_parallel import DataParallel, Team
from shoal.learning.differentiate import to_device
from shoal.learning.gradient_step import GradientStep
from shoal.learning.optimiser import make_optimiser
from shoal.nets.actor_critic import ActorCritic
from shoal.ops.optimiser import load_optimiser
from shoal.types import State


class PPOLearner:
    """Learner for PPO: each batch of trajectories is one update, with several epochs of minibatches.

    algorithm: an actor-critic's, with ``learn`` (``systems.recurrent_ppo.PPO``); its ``cfg`` says how many ``epochs``
    of ``minibatches`` an update has at most, and the optimiser. total_steps: environment steps after which the
    schedules end. seed: of the order of rows. team: its members share the gradient of each minibatch.
    """

    def __init__(self, algorithm: Algorithm, total_steps: int, seed: int, team: Team | None = None) -> None:
        if type(algorithm).learn is Algorithm.learn:
            raise UsageError(
                f"PPOLearner calls learn(batch, minibatches), which {type(algorithm).__name__} does not have: derive "
                "it from PPO, or take SGDLearner for one gradient step a batch"
            )
        cfg, nets = algorithm.cfg, algorithm.nets
        self.algorithm, self.nets, self.total_steps = algorithm, nets, total_steps
        self.optimiser = make_optimiser(cfg, nets)
        self.gradient_step = GradientStep(self.optimiser, cfg.max_grad_norm, cfg.epochs * cfg.minibatches)
        self.workers = DataParallel(self.algorithm, self.gradient_step, team if self.algorithm.adds_up else None)
        self.rng = torch.Generator().manual_seed(seed)
        self.device = torch.device(nets.device)
        self.step = 0
        self.env_steps = 0

    algorithm: Any
    nets: ActorCritic

    @property
    def cfg(self) -> Any:
        """Settings of the algorithm, with the current values of schedules."""
        return self.algorithm.cfg

    def update(self, batch: Batch) -> Update:
        batch = to_device(batch, self.device)
        scheduled = self._schedule(self.env_steps / self.total_steps)
        update = self.algorithm.learn(batch, MinibatchSteps(self.workers, self.rng))
        self.env_steps += int(transfer.on_host(batch.items["valid"]).sum())
        self.step += 1
        return Update({**update.metrics, **scheduled})

    def _schedule(self, fraction: float) -> dict[str, float]:
        """Give schedules their values at this share of the run."""
        self.gradient_step.at(fraction)
        return {**self.algorithm.at(fraction), "learning_rate": self.optimiser.param_groups[0]["lr"]}

    def params(self) -> Tensors:
        params: Tensors = self.algorithm.params()
        return params

    def state_dict(self) -> State:
        learned = {"nets": self.nets.state_dict(), "optimiser": self.optimiser.state_dict()}
        if self.workers.team is not None:  # whoever writes this down while training goes on would see it change
            learned = copy.deepcopy(learned)
        own = {"algorithm": self.algorithm.state_dict()} if isinstance(self.algorithm, Stateful) else {}
        return {
            **learned, **own, "step": self.step, "env_steps": self.env_steps, "skipped": self.gradient_step.skipped,
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
        if isinstance(self.algorithm, Stateful):
            self.algorithm.load_state_dict(state["algorithm"])


class MinibatchSteps:
    """The gradient steps of one update, by ``workers``, and what they report (``learning.algorithm.Minibatches``)."""

    def __init__(self, workers: DataParallel, rng: torch.Generator) -> None:
        self._workers, self._rng = workers, rng
        self._metrics: list[Tensor | None] = []  # of each step: [members, metrics]; None: skipped
        self._norms: list[float] = []  # of the gradients of those that were taken

    def load(self, items: Tensors) -> Tensors:
        self._workers.load(items)
        return self._workers.items

    def shuffled(self, rows: Tensor) -> Tensor:
        return rows[transfer.send(torch.randperm(len(rows), generator=self._rng), rows.device)]

    def step(self, rows: Tensor) -> None:
        norm, _, metrics, _ = self._workers.step(rows)
        self._metrics.append(None if norm is None else metrics)
        if norm is not None:
            self._norms.append(norm)

    def reported(self, name: str, last: int | None = None) -> Tensor:
        taken, names = self._taken(last), self._workers.names
        if not taken:
            return torch.empty(0, 1)
        if name not in names:
            raise UsageError(f"the loss reports no metric '{name}', which is asked for (it reports {', '.join(names)})")
        return torch.stack(taken)[..., names.index(name)]

    def summary(self) -> dict[str, float]:
        taken, asked = self._taken(), len(self._metrics)
        out = {"minibatches": float(len(taken)), "skipped_updates": (asked - len(taken)) / max(asked, 1)}
        if taken:
            means = torch.stack(taken).sum(1).mean(0).tolist()  # of [steps, members, metrics]
            out |= dict(zip(self._workers.names, means, strict=True))
            out["grad_norm"] = sum(self._norms) / len(taken)
        return out

    def _taken(self, last: int | None = None) -> list[Tensor]:
        asked = self._metrics if last is None else self._metrics[len(self._metrics) - last :]
        return [metrics for metrics in asked if metrics is not None]
