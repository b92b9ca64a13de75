"""Many perturbed copies of one policy, stepped at once."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import cast

import numpy as np
import torch
from torch import nn

from shoal.api import MASK, Arrays, Tensors
from shoal.nets import RunningNorm
from shoal.nets.evolution_policy import CLIP, EvolutionPolicy
from shoal.nets.named_tensors import NamedTensors
from shoal.systems.es.evolution import flat_parameters, own, set_parameters


class Population(ABC):
    """``size`` perturbed policies that act side by side, each in an environment of its own."""

    def __init__(self, policy: EvolutionPolicy, size: int) -> None:
        self.policy, self.size = policy, size
        self.theta = np.zeros(policy.size, np.float32)
        self._live = NamedTensors(policy)

    def load(self, params: Tensors) -> None:
        """Take what was published: parameters and statistics."""
        self._live.load(own(params))
        self.theta = flat_parameters(self.policy).numpy()

    @abstractmethod
    def perturb(self, row: int, noise: np.ndarray, scale: float) -> None:
        """Policy ``row`` becomes ``theta + scale * noise``."""

    @abstractmethod
    def outputs(self, obs: Arrays) -> np.ndarray:
        """obs [size, ...], each row through its own policy -> outputs of the last layer [size, O]."""

    def act(self, obs: Arrays, generator: np.random.Generator, action_noise: float = 0.0) -> np.ndarray:
        """Actions [size, ...]."""
        outputs, dist = self.outputs(obs), self.policy.dist
        if MASK in obs:
            outputs = np.where(obs[MASK], outputs, -np.inf)
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
    """A population of perceptrons: every layer of all policies is one batched matrix product."""

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
        """Return whether the policy is a perceptron."""
        return policy.encoder.own is None and not len(policy.encoder.images)

    def load(self, params: Tensors) -> None:
        super().load(params)
        self._norms = {
            name: (norm.mean.float().numpy(), norm.scale().float().numpy())
            for name, norm in cast("Mapping[str, RunningNorm]", dict(self.policy.norms.items())).items()
        }

    def perturb(self, row: int, noise: np.ndarray, scale: float) -> None:
        weights = self._flat[row]
        np.multiply(noise, np.float32(scale), out=weights)
        weights += self.theta

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
    """A population of any networks: one copy each, which step one after another."""

    def __init__(self, policy: EvolutionPolicy, size: int) -> None:
        super().__init__(policy, size)
        self._nets = [copy.deepcopy(policy) for _ in range(size)]

    @torch.no_grad()
    def perturb(self, row: int, noise: np.ndarray, scale: float) -> None:
        buffers, net = dict(self.policy.named_buffers()), self._nets[row]
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
