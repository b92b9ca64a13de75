"""A policy and a value function on one network, or on two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from shoal.api import MASK, EnvSpec, Tensors, UsageError, observations
from shoal.fast.small_batch import SmallBatchPerceptron
from shoal.nets.distributions import ActionDistribution
from shoal.nets.encoder import Encoder
from shoal.nets.heads import PolicyHead, ValueHead, policy_and_value
from shoal.nets.init import orthogonal
from shoal.nets.normaliser import RewardScaler, RunningNorm, by_name, normalised, running_norms, seen
from shoal.nets.outputs import Outputs, detached
from shoal.nets.popart import PopArt
from shoal.nets.precision import Precision, autocast, resolve
from shoal.nets.recurrent import Kind, RecurrentCore, start_state
from shoal.nets.torsos import Activation


class PolicyValue:
    """Outputs of an actor-critic network for rows [N] or trajectories [T, B].

    joined: policy parameters and, in the last column, the output of the value head, [N, P + 1] (N = T B). pop_art:
    converts that output to a value; None: it is the value.
    """

    def __init__(
        self, joined: Tensor, shape: Sequence[int], dist: ActionDistribution, pop_art: PopArt | None = None
    ) -> None:  # fmt: skip
        self.joined, self.dist = joined, dist
        both = joined.t().view(joined.shape[1], *shape)
        self.policy, said = both[:-1].movedim(0, -1), both[-1]
        self.value = said if pop_art is None else pop_art.value(said)

    def evaluate(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of the actions taken and entropies, each [T, B], for the steps that have an action
        (a trajectory's last observation has none)."""
        return self.dist.evaluate(self.policy[: len(action)], action)


class ActorCritic(nn.Module):
    """An actor-critic network: encoder, recurrent core, policy head and value head. Actions that the observation
    ``MASK`` forbids have logits of minus infinity.

    separate_critic: the value has its own encoder (and there is no core). normalise_obs: vector observations are
    normalised by running statistics, which are buffers of this module and so are published and saved with it.
    normalise_reward: a discount; ``rewards`` then divides rewards by the running standard deviation of the discounted
    return. pop_art: the value head's outputs are on the scale of the returns (``nets.PopArt``); values are in the unit
    of rewards.
    """

    def __init__(
        self, env: EnvSpec, *, torso: str = "auto", hidden: Sequence[int] = (64, 64), activation: Activation = "tanh",
        core: Kind = "none", core_size: int = 128, core_layers: int = 1, separate_critic: bool = False,
        normalise_obs: bool = False, normalise_reward: float | None = None,
        pop_art: bool = False, precision: Precision = "auto", device: str = "cpu",
    ) -> None:  # fmt: skip
        super().__init__()
        if separate_critic and core != "none":
            raise UsageError("a separate critic has no recurrent core: use separate_critic=false with lstm or gru")
        self.encoder = _encoder(env, torso, hidden, activation)
        self.core = RecurrentCore(core, self.encoder.features, core_size, layers=core_layers)
        self.policy = PolicyHead(self.core.features, env.action)
        self.critic = _encoder(env, torso, hidden, activation) if separate_critic else None
        self.value = ValueHead(self.core.features)
        vectors = [k for k, o in env.observations.items() if o.kind == "vector"] if normalise_obs else []
        self.norms = running_norms(vectors, lambda k: RunningNorm(env.observations[k].shape))
        self.rewards = RewardScaler(normalise_reward) if normalise_reward is not None else None
        self.pop_art = PopArt() if pop_art else None
        # otherwise, the head's initial random outputs would be taken for returns and dominate where rewards are rare
        if pop_art:
            nn.init.zeros_(self.value.linear.weight)
        # of the batch of the current step: returns and which of them are valid
        self._returns: tuple[Tensor, Tensor] | None = None
        self.dist = self.policy.dist
        self.precision = resolve(precision, device, self.encoder)
        self.device = device
        joined = core == "none" and self.critic is None
        self.perceptron = self.encoder.perceptron(self.policy.linear, self.value.linear) if joined else None
        self._one_vector = [(k, o.kind, len(o.shape)) for k, o in env.observations.items()] == [("obs", "vector", 1)]

    @classmethod
    def of(cls, cfg: Any, env: EnvSpec, device: str = "cpu", **more: Any) -> ActorCritic:
        """Return the network that a configuration (``ActorCriticConfig`` with torso, hidden and precision)
        describes."""
        names = ("torso", "hidden", "activation", "core", "core_size", "core_layers", "normalise_obs", "precision")
        return cls(env, device=device, **{name: getattr(cfg, name) for name in names}, **more)

    def initial_state(self, batch: int) -> Tensors:
        return self.core.initial_state(batch)

    def step(self, obs: Tensors, first: Tensor, state: Tensors) -> tuple[Tensor, Tensor, Tensors]:
        """Return policy parameters [B, P], value [B] and the next state for obs [B, ...] and first [B]."""
        policy, said, state = self._step(obs, first, state)
        return policy, said if self.pop_art is None else self.pop_art.value(said), state

    def _step(self, obs: Tensors, first: Tensor, state: Tensors) -> tuple[Tensor, Tensor, Tensors]:
        """As ``step``, but with the value head's raw output."""
        obs = self._normalise(obs)
        if self.perceptron is not None and not torch.is_grad_enabled():
            both = self.perceptron.values(self.encoder.vector(obs))
            return self.dist.forbid(self.policy.with_deviation(both[:, :-1]), obs.get(MASK)), both[:, -1], state
        y, state = self.core.step(self._encode(self.encoder, obs), first, state)
        return *self._heads(obs, y), state

    def unroll(self, obs: Tensors, first: Tensor, state: Tensors) -> tuple[Tensor, Tensor]:
        """Return policy parameters [T, B, P] and value [T, B] for obs [T, B, ...], first [T, B] and the state before
        t=0."""
        policy, said = self._unroll(obs, first, state)
        return policy, said if self.pop_art is None else self.pop_art.value(said)

    def _unroll(self, obs: Tensors, first: Tensor, state: Tensors) -> tuple[Tensor, Tensor]:
        """As ``unroll``, but with the value head's raw output."""
        obs = self._normalise(obs)
        y, _ = self.core.unroll(self._encode(self.encoder, obs), first, state)
        return self._heads(obs, y)

    def outputs(self, items: Tensors) -> Outputs:
        """Return the ``PolicyValue`` of a batch's rows or trajectories, for the loss."""
        obs, first, state = observations(items), items["first"], start_state(items)
        if self.perceptron is not None and self.policy.log_std is None:
            rows = {k: v.flatten(0, first.ndim - 1) for k, v in self._normalise(obs).items()}
            joined, backward = self.perceptron.differentiable(self.encoder.vector(rows))
            if MASK in rows:
                joined[:, :-1].masked_fill_(~rows[MASK], -torch.inf)
        else:
            policy, value = (self._step(obs, first, state) if first.ndim == 1 else self._unroll(obs, first, state))[:2]
            joined, backward = detached(torch.cat((policy.flatten(0, -2), value.view(-1, 1)), 1))
        joined.requires_grad_()
        return Outputs(PolicyValue(joined, first.shape, self.dist, self.pop_art), joined, backward)

    def small_batch(self) -> SmallBatchPerceptron | None:
        """Return a compiled version of this network for a few observations ``obs``, or None unless each is one vector
        and actions are discrete."""
        plain = self._one_vector and not len(self.norms) and self.pop_art is None
        if self.perceptron is None or not plain or self.dist.kind != "discrete":
            return None
        return self.perceptron.small_batch

    @torch.no_grad()
    def update_statistics(self, items: Tensors) -> None:
        """Merge the observations of trajectories [T + 1, B, ...] into the running statistics. Observations that are not
        ``fresh`` come from a replay and have been counted before."""
        mask = items["valid"] & items["fresh"] if "fresh" in items else items["valid"]
        for name in self.norms:
            cast(RunningNorm, self.norms[name]).update(items[name][:-1], mask)

    def scaled(self, reward: Tensor) -> Tensor:
        """Return rewards scaled by the current statistics, or unchanged unless rewards are normalised."""
        return reward if self.rewards is None else self.rewards.scale(reward)

    def seen(self, items: Tensors) -> Tensors:
        """Return the moments of a segment of trajectories, [T + 1, B, ...], by the names of the running statistics to
        update. Updates the carried returns if rewards are normalised."""
        found = seen(self.norms, items)
        if self.rewards is None:
            return found
        valid = items["valid"]
        returns = self.rewards.returns(items["reward"], items["terminated"] | items["truncated"] | ~valid)
        return found | by_name("rewards.stats", returns[valid])

    def unit_of(self, returns: Tensor, valid: Tensor) -> Tensor | float:
        """Return the divisor of the errors of values and advantages: the standard deviation of the returns [T, B], this
        batch's ``valid`` ones included, or 1 without ``pop_art``. ``rescale`` then merges them."""
        if self.pop_art is None:
            return 1.0
        self._returns = returns, valid
        return self.pop_art.spread_with(returns, valid).float()

    def rescale(self) -> None:
        """Update ``pop_art``, if there is one, with the returns that ``unit_of`` was last given."""
        if self.pop_art is not None and self._returns is not None:
            self.pop_art.update(self.value.linear, *self._returns)
            self._returns = None

    def _normalise(self, obs: Tensors) -> Tensors:
        return normalised(self.norms, obs)

    def _encode(self, encoder: Encoder, obs: Tensors) -> Tensor:
        if self.precision == "fp32":
            return cast(Tensor, encoder(obs))
        with autocast(self.precision, self.device):
            return cast(Tensor, encoder(obs))

    def _heads(self, obs: Tensors, y: Tensor) -> tuple[Tensor, Tensor]:
        if self.critic is None:
            policy, value = policy_and_value(self.policy, self.value, y)
        else:
            policy, value = self.policy(y), self.value(self._encode(self.critic, obs))
        return self.dist.forbid(policy, obs.get(MASK)), value


def _encoder(env: EnvSpec, torso: str, hidden: Sequence[int], activation: Activation) -> Encoder:
    """Return an encoder with orthogonal weights of gain sqrt(2) (Huang et al. 2022, detail 2). A network of the user's
    is left unchanged."""
    encoder = Encoder(env.observations, torso, hidden, activation)
    return encoder if encoder.own is not None else orthogonal(encoder)
