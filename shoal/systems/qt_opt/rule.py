"""Q-learning in which others make the labels: what QT-Opt's learner, its Bellman updaters and its actors do.

Kalashnikov et al. 2018, "QT-Opt: Scalable Deep Reinforcement Learning for Vision-Based Robotic Manipulation".
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from shoal import transfer
from shoal.api import Act, Arrays, Batch, Replay, Tensors, Update, observations
from shoal.demonstrations.streams import restore_table, table_state
from shoal.learning.agent import NetworkAgent
from shoal.learning.algorithm import Algorithm
from shoal.learning.differentiate import to_device
from shoal.learning.learner import SGDLearner
from shoal.learning.off_policy import METRICS_EVERY
from shoal.learning.optimiser import OptimiserConfig
from shoal.nets.cem_network import CEMNetwork
from shoal.nets.named_tensors import NamedTensors
from shoal.nets.precision import inferring
from shoal.settings.ranges import Fraction, Natural, NonNegative, Repeats
from shoal.types import State

STEP = "step"  # of a labelled transition: the gradient steps that the parameters had seen which labelled it
SNAPSHOTS = 12  # of the averaged parameters, within the lag of the second target network


@dataclass(frozen=True, kw_only=True)
class CEMConfig(OptimiserConfig):
    """The learning rule of QT-Opt."""

    fixed_at_start: ClassVar[tuple[str, ...]] = ("loss",)

    loss: Literal["cross-entropy", "squared"] = "squared"
    """Loss of a value against its label: cross-entropy where returns lie in [0, 1], else half the square."""
    cem_samples: Repeats = 64
    """Actions that are tried in each iteration of the cross-entropy method."""
    cem_elites: Repeats = 6
    """Best actions of an iteration of the cross-entropy method, to which the next iteration's Gaussian is fitted."""
    cem_iterations: Repeats = 2
    """Iterations of the cross-entropy method."""
    cem_floor: NonNegative = 0.01
    """Smallest deviation of the cross-entropy method's Gaussian, in units of half the action box."""
    polyak: Fraction = 0.9999
    """Share of the averaged parameters that an update keeps; the average is the first target network, and acts."""
    target_lag: Natural = 6_000
    """Updates by which the second target network is behind the first (copied in twelve steps); 0: they are the same."""
    epsilon: Fraction = 0.1
    """Probability that an actor takes an action drawn uniformly from the box."""
    noise: NonNegative = 0.1
    """Standard deviation of the Gaussian noise on actions that are not drawn uniformly, in units of half the box."""


class Averages:
    """The two target networks that labels are made with: a Polyak average of the parameters, and that average as it was
    ``target_lag`` updates ago (section 4.1). All is done element by element, so part of the parameters will do.

    tensors: the average, which begins as it is; it changes in place. kept: averages of the past, the oldest first.
    """

    def __init__(self, cfg: CEMConfig, tensors: Tensors) -> None:
        self.tensors, self._share = tensors, 1.0 - cfg.polyak
        self.stride = max(1, -(-cfg.target_lag // SNAPSHOTS))
        strides = -(-cfg.target_lag // self.stride)
        self.kept: deque[Tensors] = deque([self._copy()], maxlen=strides + 1)

    @torch.no_grad()
    def follow(self, newest: Tensors, step: int) -> None:
        """Move the average towards the parameters after the ``step``-th update."""
        pairs = [(average, newest[name]) for name, average in self.tensors.items()]
        numbers = [pair for pair in pairs if pair[0].is_floating_point()]
        torch._foreach_lerp_([p[0] for p in numbers], [p[1] for p in numbers], self._share)
        for average, new in pairs:
            if not average.is_floating_point():  # a counter in a network of the user's own
                average.copy_(new)
        if step % self.stride == 0:
            self.kept.append(self._copy())

    def begin(self, average: Tensors, kept: Iterable[Tensors]) -> None:
        """Go on with these values of the average and of the past."""
        for name, tensor in self.tensors.items():
            tensor.copy_(average[name])
        kept = [{name: tensor.to(self.tensors[name].device) for name, tensor in one.items()} for one in kept]
        self.kept.clear()
        self.kept.extend(kept)

    def lagged(self, step: int) -> Tensors | None:
        """Return the second target network after the ``step``-th update; None if it is that of the update before."""
        return self.kept[0] if step % self.stride == 0 else None

    def _copy(self) -> Tensors:
        return {name: tensor.clone() for name, tensor in self.tensors.items()}


class LabelledValue(Algorithm):
    """The loss of labelled transitions."""

    cfg: CEMConfig
    capturable = True

    def __init__(self, cfg: CEMConfig, nets: CEMNetwork) -> None:
        super().__init__(nets)
        self.cfg, self.updates = cfg, 0

    def numbers(self) -> tuple[float, ...]:
        return (*self.scalars, self.reports())

    def reports(self) -> bool:
        """Return whether this update has metrics that only people read."""
        return self.updates % METRICS_EVERY == 0

    def prepare(self, batch: Batch) -> Batch:
        """Says each item's part of the loss and of the metrics."""
        self.scalars = [1.0 / len(batch.items["target"])]
        return batch

    def loss(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Update]:
        """outputs: the values, or logits, of the batch's actions [B]."""
        target, share = batch.items["target"], self.scalars[0]
        if self.cfg.loss == "cross-entropy":
            loss = F.binary_cross_entropy_with_logits(outputs, target, reduction="sum") * share
        else:
            loss = (outputs - target).square().sum() * (0.5 * share)
        metrics: dict[str, Tensor | float] = {}
        if self.reports():
            value = self.nets.value(outputs.detach())
            metrics = {"q_mean": value.sum() * share, "td_error": (value - target).abs().sum() * share}
        return loss, Update(metrics)

    def follow(self, steps: int) -> None:
        self.updates = steps

    def state_dict(self) -> State:
        return {"updates": self.updates}

    def load_state_dict(self, state: State) -> None:
        self.updates = state["updates"]


class LabelledQ(LabelledValue):
    """The loss of labelled transitions, with the target networks of a learner that is alone."""

    def __init__(self, cfg: CEMConfig, nets: CEMNetwork) -> None:
        super().__init__(cfg, nets)
        self.average = copy.deepcopy(nets).requires_grad_(False)  # not rounded: each step is a small share
        self.averages = Averages(cfg, dict(self.average.state_dict()))

    def after_step(self, step: int) -> None:
        self.updates = step
        self.averages.follow(self._live.tensors, step)

    def params(self) -> Tensors:
        """The average, by which actors act and an evaluation plays."""
        return self.averages.tensors

    def state_dict(self) -> State:
        return {
            **super().state_dict(),
            "average": self.average.state_dict(),
            "kept": list(self.averages.kept),
        }

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.averages.begin(state["average"], state["kept"])


class LabelledLearner(SGDLearner):
    """Its algorithm is a ``LabelledQ``."""

    algorithm: LabelledQ

    def lagged(self) -> Tensors | None:
        """The parameters of the second target network; None if they are those of the update before."""
        return self.algorithm.averages.lagged(self.step)


class Offline:
    """Each element of a batch is a transition of ``table`` instead of one of the actors, with a probability that
    depends on the gradient steps so far (``share``)."""

    def __init__(self, table: Replay, share: Callable[[int], float], seed: int) -> None:
        self.table, self.share = table, share
        self.rng = np.random.default_rng(seed)

    def mix(self, batch: Batch, step: int) -> tuple[Batch, float]:
        """The batch [B, ...] with such elements, and how many of it they are."""
        chosen = torch.from_numpy(self.rng.random(len(batch.items["reward"])) < self.share(step))
        shown = self.table.sample(len(chosen)).items
        items = {
            name: torch.where(chosen.view(-1, *[1] * (value.ndim - 1)), shown[name], value)
            for name, value in batch.items.items()
        }
        return batch._replace(items=items), float(chosen.float().mean())

    def state_dict(self) -> State:
        """As ``Demonstrated``'s."""
        return {"rng": self.rng.bit_generator.state, **table_state(self.table)}

    def load_state_dict(self, state: State) -> None:
        restore_table(self.table, state)
        self.rng.bit_generator.state = state["rng"]


class Bellman:
    """Makes labels: ``r + d * min(Q_1(s', a'), Q_2(s', a'))``, clipped to [0, 1] where returns lie there. The best
    action ``a'`` is found once, by the first target network, and both say what it is worth (section 4.1).

    offline: transitions of others, which it labels beside those of the actors; None: there are none.
    """

    def __init__(self, nets: CEMNetwork, seed: int, offline: Offline | None = None) -> None:
        self.first, self.second, self.offline = inferring(nets), inferring(copy.deepcopy(nets)), offline
        self._live = NamedTensors(self.first), NamedTensors(self.second)
        self.device = nets.noise.device
        self.rng = torch.Generator().manual_seed(seed)  # of the CPU: its state fits on any device

    def load(self, first: Tensors | None, second: Tensors | None) -> None:
        """Take the parameters of the two target networks; None: they are no others."""
        for live, tensors in zip(self._live, (first, second), strict=True):
            if tensors is not None:
                live.load(transfer.Upload(tensors, self.device).take())

    def label(self, batch: Batch, step: int) -> tuple[Arrays, dict[str, float]]:
        """Return what a learner gets of a batch of transitions (observations, actions, labels), and metrics. step:
        gradient steps that the parameters have seen."""
        metrics: dict[str, float] = {}
        if self.offline is not None:
            batch, metrics["demonstrations"] = self.offline.mix(batch, step)
        target, told = self.targets(to_device(batch, self.device).items)
        numbers, (target,) = transfer.read(list(told.values()), [target])  # the one wait for the device
        found = dict(zip(told, numbers, strict=True))
        kept = {name: batch.items[name].numpy() for name in (*observations(batch.items), "action")}
        return {**kept, "target": target.numpy(), STEP: np.full(len(target), step)}, metrics | found

    @torch.no_grad()
    def targets(self, items: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        """The labels ``[B]`` of transitions, and metrics ``[]``."""
        after = observations(items, "next/")
        best = self.first.best(self.first.encode(after), self.first.draw(len(items["reward"]), self.rng))
        one = self.first.value(best.scores)
        other = self.second.value(
            self.second.critic_outputs(self.second.encode(after), best.points.unsqueeze(1)).squeeze(1)
        )
        target = torch.addcmul(items["reward"], items["discount"], torch.minimum(one, other))
        metrics = {"target_disagreement": (one - other).abs().mean()}
        if self.first.bounded:
            metrics["clipped_labels"] = ((target < 0.0) | (target > 1.0)).float().mean()
            target.clamp_(0.0, 1.0)
        return target, metrics

    def state_dict(self) -> State:
        out = {"first": self.first.state_dict(), "second": self.second.state_dict(), "rng": self.rng.get_state()}
        return out if self.offline is None else {**out, "offline": self.offline.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self.first.load_state_dict(state["first"])
        self.second.load_state_dict(state["second"])
        self.rng.set_state(state["rng"])
        if self.offline is not None:
            self.offline.load_state_dict(state["offline"])


class CEMAgent(NetworkAgent[CEMNetwork, torch.Generator]):
    """Acts by the cross-entropy method. With probability ``epsilon`` an action is instead drawn uniformly from the box,
    and to any other Gaussian noise is added of standard deviation ``noise``, in units of half the box. A greedy agent
    leaves nothing to chance: the noise of its search is always the same."""

    def __init__(self, nets: CEMNetwork, epsilon: float, noise: float, seed: int) -> None:
        super().__init__(nets, torch.Generator().manual_seed(seed))
        self.epsilon, self.noise = epsilon, noise

    @torch.no_grad()
    def act(self, obs: Arrays, first: np.ndarray, state: Tensors, greedy: bool = False) -> Act:
        nets, rng = self.nets, self.rng
        encoded = nets.encode({k: torch.from_numpy(v) for k, v in obs.items()})
        if greedy:
            return Act(nets.clip(nets.best(encoded).points).numpy(), state, {})
        best = nets.best(encoded, nets.draw(len(encoded), rng)).points
        noisy = best + self.noise * torch.randn(best.shape, generator=rng)
        drawn = 2.0 * torch.rand(best.shape, generator=rng) - 1.0
        explores = torch.rand(len(best), 1, generator=rng) < self.epsilon
        return Act(nets.clip(torch.where(explores, drawn, noisy.clamp(-1.0, 1.0))).numpy(), state, {})
