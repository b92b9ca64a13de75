"""The policy of evolution strategies, and the agent that acts with it unperturbed."""

import torch
from torch import Tensor, nn

from shoal.api import Tensors
from shoal.learning.actor_critic import ActorCriticAgent

TASK = "task/"  # names of what is published beside the policy: the task's seed and its cap on episodes


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
