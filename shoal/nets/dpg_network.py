"""The networks of the deterministic policy gradient: a policy into a finite box, and a critic of observations and
actions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from shoal.api import EnvSpec, Tensors, observations
from shoal.fast.perceptron import Backward
from shoal.nets import MLP
from shoal.nets.box_network import BoxNetwork, Critic, perceptron
from shoal.nets.outputs import Outputs, detached
from shoal.nets.precision import Precision, full
from shoal.nets.torsos import Activation


class Returns(nn.Module, ABC):
    """Base class of the interpretation of a critic's outputs ``[B, size]`` as returns ``Z(x, a)``. It has no
    parameters."""

    size = 1

    def start(self, last: nn.Linear) -> None:
        """Initialise the last layer of a new critic with small weights, as in DDPG (Lillicrap et al. 2016, section
        7)."""
        nn.init.uniform_(last.weight, -3e-3, 3e-3)
        nn.init.uniform_(last.bias, -3e-3, 3e-3)

    @abstractmethod
    def mean(self, outputs: Tensor) -> Tensor:
        """Return the expected return ``[B]`` of outputs ``[B, size]``, differentiably."""

    @abstractmethod
    def loss(self, outputs: Tensor, items: Tensors, after: Tensor) -> Tensor:
        """Return the distance ``[B]`` of each of ``outputs`` from the distribution of ``r + d Z'``.

        items: ``reward`` [B], n-step sums, and ``discount`` [B], gamma^n, 0 past a terminal state; after: the target
        networks' outputs for Z' ``[B, size]``.
        """

    def noise(self, rows: int, rng: torch.Generator) -> Tensors:
        """Return the random draws that the loss of ``rows`` rows needs, to be added to its items."""
        return {}

    def edge_mass(self, outputs: Tensor) -> Tensor | None:
        """Return the probability of the first and of the last atom ``[B, 2]``, or None for a distribution without
        edges."""
        return None

    def clipped_mass(self, items: Tensors, after: Tensor) -> Tensor | None:
        """Return the probability of ``r + d Z'`` beyond the first and the last atom ``[B]``, with the arguments of
        ``loss``, or None for a distribution without edges."""
        return None


class CriticOutputs(NamedTuple):
    """Outputs of policy and critic for a batch.

    critic: outputs for the batch's actions [B, size]. action: the policy's own actions [P, A], in [-1, 1]. by_action:
    the gradient of the critic's expected return with respect to these [P, A].
    """

    critic: Tensor
    action: Tensor
    by_action: Tensor


class DPGNetwork(BoxNetwork):
    """Policy and critic with a common encoder, which only the critic's loss trains. ``policy_perceptron`` and
    ``critic_perceptron`` are compiled versions outside autograd, or None if there are none.

    returns: the meaning of the critic's outputs; None: no critic, for an actor that needs no values. policy_hidden:
    units of the policy's hidden layers; if empty, ``hidden``. late_action: the action enters at the critic's second
    layer, not with the observation. layer_norm: normalise each hidden layer before its activation.
    """

    def __init__(
        self, env: EnvSpec, returns: Returns | None, *, torso: str = "auto", hidden: Sequence[int] = (256, 256),
        policy_hidden: Sequence[int] = (), activation: Activation = "relu", late_action: bool = False,
        layer_norm: bool = False, precision: Precision = "auto", device: str = "cpu",
    ) -> None:  # fmt: skip
        super().__init__(env, torso, hidden, activation, precision, device)
        late_action = late_action and bool(hidden)  # without a second layer it enters with the observation
        features, actions = self.encoder.features, self.actions
        own = tuple(policy_hidden or hidden)
        hidden_layers = MLP((features, *own), activation, layer_norm)
        self.policy = nn.Sequential(*hidden_layers, nn.Linear((features, *own)[-1], actions))
        last = cast(nn.Linear, self.policy[-1])
        nn.init.uniform_(last.weight, -3e-3, 3e-3)  # Lillicrap et al. 2016, section 7
        nn.init.uniform_(last.bias, -3e-3, 3e-3)
        self.returns, self.critic = returns, None
        if returns is not None:
            self.critic = Critic(features, actions, hidden, returns.size, activation, late_action, layer_norm)
            returns.start(cast(nn.Linear, self.critic.rest[-1]))
            self.leave_out_fixed(self.critic)
        self.policy_perceptron = self.critic_perceptron = None
        if not self.shared:
            self.policy_perceptron = perceptron(self.policy, activation)
            if self.critic is not None and not late_action:
                self.critic_perceptron = perceptron(self.critic.rest, activation)

    def act(self, features: Tensor) -> Tensor:
        """Return actions ``[B, A]`` in [-1, 1] for features ``[B, F]``."""
        if self.policy_perceptron is not None and not torch.is_grad_enabled():
            return torch.tanh(self.policy_perceptron.forward(features).out)
        with full(features.device):
            return torch.tanh(self.policy(features))

    def critic_outputs(self, features: Tensor, actions: Tensor) -> Tensor:
        """Return the critic's outputs ``[B, size]`` for features ``[B, F]`` and actions ``[B, A]`` in [-1, 1]."""
        assert self.critic is not None
        if self.critic_perceptron is not None and not torch.is_grad_enabled():
            return self.critic_perceptron.forward(torch.cat((features, actions), -1)).out
        with full(features.device):
            return cast(Tensor, self.critic(features, actions))

    def outputs(self, items: Tensors) -> Outputs:
        """Return the ``CriticOutputs`` of a batch, for the loss. The gradient of the critic's outputs trains critic and
        encoder, that of the actions trains the policy alone. ``policy/obs``: the policy's observations if they differ
        from the critic's. A batch of no rows is skipped."""
        features = self.features(observations(items))
        critic, to_critic = self._differentiable_critic(features, items["action"])
        own = observations(items, "policy/")
        seen = self.features(own) if own else features.detach()
        action, to_policy = self._acted(seen)
        by_action = self.value_gradient(seen, action)
        parts = (critic, action) if len(critic) == len(action) else (critic.flatten(), action.flatten())
        sizes = [part.shape[-1] for part in parts]
        leaf = torch.cat(parts, -1).requires_grad_()

        def cut(joined: Tensor) -> tuple[Tensor, Tensor]:
            of_critic, of_policy = torch.split(joined, sizes, -1)
            return of_critic.view(critic.shape), of_policy.view(action.shape)

        def backward(gradient: Tensor) -> None:
            by_critic, by_policy = cut(gradient)
            to_critic(by_critic)
            to_policy(by_policy)

        return Outputs(CriticOutputs(*cut(leaf), by_action), leaf, backward)

    def _differentiable_critic(self, features: Tensor, actions: Tensor) -> tuple[Tensor, Backward]:
        """Return the critic's outputs, and the function that propagates their gradient to the parameters of critic and
        encoder."""
        assert self.returns is not None
        if not len(actions):
            return actions.new_zeros((0, self.returns.size)), _nothing
        if self.critic_perceptron is None:
            return detached(self.critic_outputs(features, actions))
        return self.critic_perceptron.differentiable(torch.cat((features, actions), -1))

    def _acted(self, features: Tensor) -> tuple[Tensor, Backward]:
        """Return the policy's actions in [-1, 1], and the function that propagates their gradient to its parameters."""
        if not len(features):
            return features.new_zeros((0, len(self.low))), _nothing
        if self.policy_perceptron is None:
            return detached(self.act(features))
        found, backward = self.policy_perceptron.differentiable(features)
        action = torch.tanh(found)
        return action, lambda gradient: backward(torch.ops.aten.tanh_backward.default(gradient, action))

    def value_gradient(self, features: Tensor, actions: Tensor) -> Tensor:
        """Return dq/da ``[B, A]`` of the critic's expected return. No parameter gets a gradient."""
        assert self.returns is not None
        if not len(actions):
            return torch.zeros_like(actions)
        if self.critic_perceptron is None:
            leaf = actions.detach().clone().requires_grad_()
            (found,) = torch.autograd.grad(self.returns.mean(self.critic_outputs(features, leaf)).sum(), leaf)
            return found
        with torch.no_grad():
            kept = self.critic_perceptron.forward(torch.cat((features, actions), -1))
        outputs = kept.out.requires_grad_()
        (by_outputs,) = torch.autograd.grad(self.returns.mean(outputs).sum(), outputs)
        return self.critic_perceptron.backward_to_input(kept, by_outputs, actions.shape[-1])


def _nothing(gradient: Tensor) -> None:
    """Ignore the gradient of an empty batch."""
