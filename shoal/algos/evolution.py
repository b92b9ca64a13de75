"""Evolution strategies without processes: the policy, many perturbed copies of it at once, and the update.

Salimans et al. 2017, "Evolution Strategies as a Scalable Alternative to Reinforcement Learning"; Mania et al. 2018,
"Simple random search of static linear policies is competitive for reinforcement learning" (ARS).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from shoal.algos.actor_critic import ActorCriticAgent
from shoal.api import Arrays, Batch, Diverged, EnvSpec, Tensors, Update, UsageError
from shoal.fast.live import LiveTensors
from shoal.nets import ActionDistribution, Encoder, RunningNorm, orthogonal
from shoal.nets.init import POLICY_GAIN
from shoal.nets.torsos import Activation
from shoal.nets.virtual_batch_norm import VirtualBatchNorm, normalise_virtually, refer
from shoal.ops import Adam, ars_weights, es_weights, weighted_noise
from shoal.settings.ranges import Count, Fraction, Natural, NonNegative, Positive

CLIP, FLOOR = 5.0, 0.01  # of normalised observations, and of the variance they are divided by (the authors' code)
TASK = "task/"  # names of what is published beside the policy: the task's seed and its cap on episodes


@dataclass(frozen=True, kw_only=True)
class EvolutionConfig:
    """The policy, and how results become parameters."""

    activation: Activation = "tanh"
    """Activation of the MLP."""
    normalise_obs: bool = True
    """Normalise vector observations by running statistics."""
    virtual_batch_norm: bool = True
    """Normalise the layers of image torsos by the statistics of reference observations."""
    reference: Count = 128
    """Reference observations, from random play before the start."""
    action_noise: NonNegative = 0.0
    """Standard deviation of the noise on continuous actions."""
    action_bins: Natural = 0
    """Values that each dimension of a continuous action may take; 0: all."""
    learning_rate: Positive = 0.02
    """Step size."""
    optimiser: Literal["adam", "sgd"] = "adam"
    """adam: beta 0.9 and 0.999; sgd: with `momentum`."""
    momentum: Fraction = 0.0
    """Share of the average of earlier directions in a step of sgd."""
    weight_decay: NonNegative = 0.005
    """Lambda: times the parameters, added to the descent direction."""
    shaping: Literal["ranks", "spread"] = "ranks"
    """Returns as centred ranks (ES), or divided by the standard deviation of those kept (ARS)."""
    top: Natural = 0
    """Pairs that `shaping=spread` keeps, the best by their better half; 0: all."""
    cap: NonNegative = 2.0
    """Longest episode of a generation, in mean lengths of the one before; 0: no limit."""
    cap_start: Count = 50
    """Least value of that limit, and its first (agent steps)."""


class EvolutionPolicy(nn.Module):
    """A deterministic policy: encoder, then one linear layer. With no hidden layers it is ARS's linear policy, which
    starts at 0 and has no bias.

    normalise_obs: vectors by running statistics. virtual_batch_norm: images by the statistics of ``reference``
    observations, which are a buffer and so travel, and are saved, with the policy.
    bins: each dimension of a continuous action is one of so many values, evenly spaced; 0: the output itself.
    """

    log_std: Tensor

    def __init__(
        self, env: EnvSpec, *, torso: str = "auto", hidden: Sequence[int] = (64, 64), activation: Activation = "tanh",
        normalise_obs: bool = True, virtual_batch_norm: bool = True, reference: int = 128, bins: int = 0,
        action_noise: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.encoder = Encoder(env.observations, torso, hidden, activation)
        if self.encoder.own is None:
            orthogonal(self.encoder)
        if virtual_batch_norm and len(self.encoder.images):
            normalise_virtually(self.encoder)
        self.dist, self.bins = ActionDistribution(env.action), bins
        dimensions = len(env.action.low)
        outputs = dimensions * max(bins, 1) if dimensions else self.dist.params_size
        linear = not len(hidden) and self.encoder.own is None and not len(self.encoder.images)
        self.head = orthogonal(nn.Linear(self.encoder.features, outputs, bias=not linear), POLICY_GAIN)
        if linear:
            nn.init.zeros_(self.head.weight)
        vectors = [k for k, o in env.observations.items() if o.kind == "vector"] if normalise_obs else []
        shapes = {k: env.observations[k].shape for k in vectors}
        self.norms = nn.ModuleDict({k: RunningNorm(shape, CLIP, 0.0, FLOOR) for k, shape in shapes.items()})
        self.referring = any(isinstance(layer, VirtualBatchNorm) for layer in self.modules())
        for i, leaf in enumerate(env.observations.values() if self.referring else ()):
            room = torch.zeros((reference, *leaf.shape), dtype=getattr(torch, leaf.dtype))
            self.register_buffer(f"reference_{i}", room)
        self.register_buffer("log_std", torch.full((dimensions,), math.log(max(action_noise, 1e-9))))
        low, high = np.array(env.action.low), np.array(env.action.high)
        if bins and dimensions and not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise UsageError(f"action bins need an action space with bounds; {env.id} has none")
        self.low, self.high = (torch.tensor(x, dtype=torch.float32) for x in (low, high))
        self.size = sum(p.numel() for p in self.parameters())

    def initial_state(self, batch: int) -> Tensors:
        return {}

    def step(self, obs: Tensors, first: Tensor, state: Tensors) -> tuple[Tensor, Tensor, Tensors]:
        """obs [B, ...] -> parameters of ``dist`` [B, P], the value 0 [B] (it has none), no state."""
        outputs = self.head(self.encoder(self.normalise(obs)))
        return self.parameters_of(outputs), outputs.new_zeros(len(outputs)), state

    def parameters_of(self, outputs: Tensor) -> Tensor:
        """The last layer's outputs [B, O] as parameters of ``dist`` [B, P]."""
        if not len(self.log_std):
            return outputs
        if self.bins:
            chosen = outputs.view(len(outputs), -1, self.bins).argmax(-1) / max(self.bins - 1, 1)
            outputs = self.low + (self.high - self.low) * chosen
        return torch.cat((outputs, self.log_std.expand_as(outputs)), -1)

    def normalise(self, obs: Mapping[str, Tensor]) -> Tensors:
        return {k: self.norms[k](v) if k in self.norms else v for k, v in obs.items()}

    def reference(self) -> Tensors:
        """The observations that virtual batch normalisation refers to."""
        names = self.encoder.observations
        return {name: cast(Tensor, getattr(self, f"reference_{i}")) for i, name in enumerate(names)}

    def set_reference(self, obs: Arrays) -> None:
        """Observations [reference, ...] to refer to from now on."""
        for name, room in self.reference().items():
            room.copy_(torch.from_numpy(obs[name]))

    def refer(self) -> None:
        """Take the statistics of the reference with the present weights."""
        if self.referring:
            refer(self, self.encoder, self.normalise(self.reference()))


class EvolutionAgent(ActorCriticAgent):
    """The unperturbed policy. ``greedy=False`` adds the noise that actions have in training, or draws them from the
    softmax of the outputs."""

    def load(self, params: Tensors, version: int) -> None:
        super().load(own(params), version)


def own(params: Tensors) -> Tensors:
    """What is the policy's of the tensors published."""
    return {name: tensor for name, tensor in params.items() if not name.startswith(TASK)}


def flat_parameters(net: nn.Module) -> Tensor:
    """All parameters of ``net`` as one new vector, in the order of ``parameters()``."""
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def set_parameters(net: nn.Module, flat: Tensor) -> None:
    """Copy a vector of that order into the parameters."""
    torch.nn.utils.vector_to_parameters(flat, net.parameters())


class Population:
    """``size`` perturbed policies that act side by side, each in an environment of its own."""

    def __init__(self, policy: EvolutionPolicy, size: int) -> None:
        self.policy, self.size = policy, size
        self.noise = np.zeros((size, policy.size), np.float32)
        self.theta = np.zeros(policy.size, np.float32)
        self._live = LiveTensors(policy)

    def load(self, params: Tensors) -> None:
        """Take what was published: parameters and statistics."""
        self._live.load(own(params))
        self.theta = flat_parameters(self.policy).numpy()

    def draw(self, table: np.ndarray, indices: np.ndarray) -> None:
        """Give policy ``r`` the noise ``table[indices[r] : indices[r] + d]``."""
        for row, index in zip(self.noise, indices.tolist(), strict=True):
            row[:] = table[index : index + self.policy.size]

    def perturb(self, scale: float) -> None:
        """The policies become ``theta + scale * noise``."""
        raise NotImplementedError

    def outputs(self, obs: Arrays) -> np.ndarray:
        """obs [size, ...], each row through its own policy -> outputs of the last layer [size, O]."""
        raise NotImplementedError

    def act(self, obs: Arrays, generator: np.random.Generator, action_noise: float = 0.0) -> np.ndarray:
        """Actions [size, ...]."""
        outputs, dist = self.outputs(obs), self.policy.dist
        if dist.kind == "discrete":
            return np.asarray(outputs.argmax(-1))
        if dist.kind == "multi_discrete":
            cuts = np.cumsum(dist.sizes)[:-1]
            return np.stack([part.argmax(-1) for part in np.split(outputs, cuts, -1)], -1)
        if self.policy.bins:
            outputs = self.policy.parameters_of(torch.from_numpy(outputs))[:, : len(self.policy.low)].numpy()
        if action_noise:
            outputs = outputs + action_noise * generator.standard_normal(outputs.shape, np.float32)
        return outputs


class PerceptronPopulation(Population):
    """Of perceptrons: every layer of all policies is one batched matrix product."""

    def __init__(self, policy: EvolutionPolicy, size: int) -> None:
        super().__init__(policy, size)
        self._flat = np.zeros((size, policy.size), np.float32)
        self._layers: list[tuple[np.ndarray, np.ndarray | None]] = []  # weights [size, out, in], biases [size, out, 1]
        at = 0
        for layer in [*policy.encoder.mlp.modules(), policy.head]:
            if not isinstance(layer, nn.Linear):
                continue
            outputs, inputs = layer.weight.shape
            weight = self._flat[:, at : at + outputs * inputs].reshape(size, outputs, inputs)
            at += outputs * inputs
            bias = None
            if layer.bias is not None:
                bias = self._flat[:, at : at + outputs].reshape(size, outputs, 1)
                at += outputs
            self._layers.append((weight, bias))
        assert at == policy.size and all(np.shares_memory(self._flat, w) for w, _ in self._layers)
        self._relu = any(isinstance(layer, nn.ReLU) for layer in policy.encoder.mlp.modules())
        kinds = [policy.encoder.observations[name].kind for name in policy.encoder.flat]
        self._plain = kinds == ["vector"]
        self._norms: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    @staticmethod
    def fits(policy: EvolutionPolicy) -> bool:
        """Whether the policy is a perceptron."""
        return policy.encoder.own is None and not len(policy.encoder.images)

    def perturb(self, scale: float) -> None:
        np.multiply(self.noise, np.float32(scale), out=self._flat)
        self._flat += self.theta
        self._norms = {
            name: (norm.mean.float().numpy(), norm.scale().float().numpy())
            for name, norm in cast("Mapping[str, RunningNorm]", dict(self.policy.norms.items())).items()
        }

    def outputs(self, obs: Arrays) -> np.ndarray:
        seen = {name: self._normalise(name, value) for name, value in obs.items()}
        if self._plain:
            x = seen[self.policy.encoder.flat[0]].reshape(self.size, -1, 1)
        else:
            x = self.policy.encoder.vector({k: torch.from_numpy(v) for k, v in seen.items()}).numpy()[:, :, None]
        for weight, bias in self._layers[:-1]:
            x = weight @ x
            x += bias
            x = np.maximum(x, 0, out=x) if self._relu else np.tanh(x, out=x)
        weight, bias = self._layers[-1]
        x = weight @ x
        out: np.ndarray = (x if bias is None else x + bias)[:, :, 0]
        return out

    def _normalise(self, name: str, value: np.ndarray) -> np.ndarray:
        if name not in self._norms:
            return value
        mean, scale = self._norms[name]
        out: np.ndarray = value - mean
        out *= scale
        return np.clip(out, -CLIP, CLIP, out=out)


class ModulePopulation(Population):
    """Of any networks: one copy each, which step one after another."""

    def __init__(self, policy: EvolutionPolicy, size: int) -> None:
        super().__init__(policy, size)
        self._nets = [copy.deepcopy(policy) for _ in range(size)]

    @torch.no_grad()
    def perturb(self, scale: float) -> None:
        buffers = dict(self.policy.named_buffers())
        for net, noise in zip(self._nets, self.noise, strict=True):
            for name, buffer in net.named_buffers():
                buffer.copy_(buffers[name])
            set_parameters(net, torch.from_numpy(self.theta + np.float32(scale) * noise))
            net.refer()

    @torch.no_grad()
    def outputs(self, obs: Arrays) -> np.ndarray:
        out = []
        for row, net in enumerate(self._nets):
            one = {k: torch.from_numpy(v[row : row + 1]) for k, v in obs.items()}
            out.append(net.head(net.encoder(net.normalise(one))))
        return torch.cat(out).numpy()


def population(policy: EvolutionPolicy, size: int) -> Population:
    """The fastest that can be made of ``policy``."""
    return (PerceptronPopulation if PerceptronPopulation.fits(policy) else ModulePopulation)(policy, size)


class EvolutionLearner:
    """Turns the results of a generation into the next parameters (a ``Learner``): the optimiser is given
    ``-sum_i w_i eps_i + weight_decay * theta``.

    table: of noise. seed: of the tasks, which with a task's number and a block of pairs decides noise and episodes.
    """

    def __init__(self, cfg: EvolutionConfig, policy: EvolutionPolicy, table: Tensor, seed: int) -> None:
        self.cfg, self.policy, self.table, self.step = cfg, policy, table, 0
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
        self._descend(ascent.neg_().add_(self.theta, alpha=self.cfg.weight_decay))
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
            "learning_rate": self.cfg.learning_rate,
            "episode_cap": float(self.task[TASK + "cap"]),
        }
        return Update(metrics)

    def params(self) -> Tensors:
        return self._published

    def state_dict(self) -> dict[str, Any]:
        adam = None if self.adam is None else self.adam.state_dict()
        return {"nets": self.policy.state_dict(), "task": self.task, "velocity": self.velocity, "adam": adam,
                "step": self.step}  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["nets"])
        self.velocity.copy_(state["velocity"])
        for name, tensor in self.task.items():
            tensor.copy_(state["task"][name])
        if self.adam is not None:
            self.adam.load_state_dict(state["adam"])
        self.step = state["step"]

    def _descend(self, direction: Tensor) -> None:
        if self.adam is not None:
            self.adam.descend([direction], self.cfg.learning_rate)
            return
        if self.cfg.momentum:  # as the authors' SGD: an average, so that the size of a step is that without momentum
            direction = self.velocity.mul_(self.cfg.momentum).add_(direction, alpha=1.0 - self.cfg.momentum)
        self.theta.sub_(direction, alpha=self.cfg.learning_rate)

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
