"""The policy network of evolution strategies.

Salimans et al. 2017, "Evolution Strategies as a Scalable Alternative to Reinforcement Learning"; Mania et al. 2018,
"Simple random search of static linear policies is competitive for reinforcement learning" (ARS).
"""

import math
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from shoal.api import MASK, Arrays, EnvSpec, Tensors, UsageError
from shoal.nets.distributions import ActionDistribution
from shoal.nets.encoder import Encoder
from shoal.nets.init import POLICY_GAIN, orthogonal
from shoal.nets.normaliser import RunningNorm, running_norms
from shoal.nets.torsos import Activation
from shoal.nets.virtual_batch_norm import VirtualBatchNorm, normalise_virtually, refer
from shoal.ops import forbid

# bound of normalised observations, and least variance they are divided by (as in the authors' code)
CLIP, FLOOR = 5.0, 0.01


class EvolutionPolicy(nn.Module):
    """A deterministic policy: an encoder and one linear layer. Without hidden layers it is ARS's linear policy, which
    starts at 0 and has no bias.

    normalise_obs: normalise vectors by running statistics. virtual_batch_norm: normalise images by the statistics of
    ``reference`` observations, a buffer that is published and saved with the policy. bins: each dimension of a
    continuous action takes one of ``bins`` evenly spaced values; 0: the output itself.
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
        self.norms = running_norms(vectors, lambda k: RunningNorm(env.observations[k].shape, CLIP, 0.0, FLOOR))
        self.referring = any(isinstance(layer, VirtualBatchNorm) for layer in self.modules())
        for i, leaf in enumerate(self.encoder.observations.values() if self.referring else ()):
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
        """Return parameters of ``dist`` [B, P], the value 0 [B] (there is no critic) and no state, for obs [B, ...]."""
        outputs = self.head(self.encoder(self.normalise(obs)))
        return forbid(self.parameters_of(outputs), obs.get(MASK)), outputs.new_zeros(outputs.shape[0]), state

    def parameters_of(self, outputs: Tensor) -> Tensor:
        """Return the last layer's outputs [B, O] as parameters of ``dist`` [B, P]."""
        if not len(self.log_std):
            return outputs
        if self.bins:
            chosen = outputs.view(outputs.shape[0], -1, self.bins).argmax(-1) / max(self.bins - 1, 1)
            outputs = self.low + (self.high - self.low) * chosen
        return torch.cat((outputs, self.log_std.expand_as(outputs)), -1)

    def normalise(self, obs: Mapping[str, Tensor]) -> Tensors:
        return {k: self.norms[k](v) if k in self.norms else v for k, v in obs.items()}

    def reference(self) -> Tensors:
        """Return the reference observations of virtual batch normalisation."""
        names = self.encoder.observations
        return {name: cast(Tensor, getattr(self, f"reference_{i}")) for i, name in enumerate(names)}

    def set_reference(self, obs: Arrays) -> None:
        """Set the reference observations [reference, ...]."""
        for name, room in self.reference().items():
            room.copy_(torch.from_numpy(obs[name]))

    def refer(self) -> None:
        """Compute the statistics of the reference observations with the current weights."""
        if self.referring:
            refer(self, self.encoder, self.normalise(self.reference()))
