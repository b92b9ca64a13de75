"""Recurrent Q-learning from replayed sequences: the network, the loss and the agent of R2D2.

Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from shoal.api import MASK, Act, Arrays, Batch, EnvSpec, Tensors, Update, observations
from shoal.fast.lstm import SMALL, RecurrentStreams
from shoal.fast.pixels import readable
from shoal.learning.agent import NetworkAgent
from shoal.learning.off_policy import OffPolicy
from shoal.learning.q_learning import QLearningConfig, random_actions
from shoal.nets import DuelingQHead, Encoder, QHead, RecurrentCore, autocast
from shoal.nets.outputs import Outputs, detached
from shoal.nets.precision import Precision, resolve
from shoal.nets.recurrent import Kind
from shoal.ops import forbid, select, sequence_td_loss, signed_hyperbolic_inverse
from shoal.settings.ranges import Count, Fraction, Natural, NonNegative, OnlyWith, Positive, Repeats
from shoal.settings.schedule import Scheduled


@dataclass(frozen=True, kw_only=True)
class RecurrentQConfig(QLearningConfig):
    """The learning rule of R2D2."""

    at_start: ClassVar[tuple[str, ...]] = ("rescale",)
    only_with: ClassVar[OnlyWith] = {"core_size": ("core", "lstm", "gru"), "priority_mix": ("prioritised",)}

    gamma: Fraction = 0.997
    n_step: Repeats = 5
    """Steps of reward before the bootstrap (agent steps)."""
    dueling: bool = True
    """Separate value and advantage streams of 512 units."""
    prioritised: bool = True
    """Sample in proportion to priorities; false: uniformly."""
    td_clip: Scheduled[Positive] | None = None
    """Clip of the TD error's gradient (Huber loss); none: squared error, as in the paper."""
    reduction: Literal["mean", "sum"] = "mean"
    """Mean or sum of the loss over sequences; over a sequence's steps it is summed."""
    core: Literal["lstm", "gru", "none"] = "lstm"
    """Recurrent core after the torso; none: a feed-forward network."""
    core_size: Count = 128
    """Units of the core."""
    burn_in: Natural = 40
    """Steps of a sequence before those it is learned from, which only bring the recurrent state up to date."""
    start_state: Literal["stored", "zero"] = "stored"
    """Recurrent state at a sequence's start: the actor's, or zero."""
    rescale: NonNegative | None = 1e-3
    """Epsilon of the value rescaling h(x) = sgn(x)(sqrt(|x| + 1) - 1) + epsilon x; none: no rescaling."""
    priority_mix: Fraction = 0.9
    """Weight η of a sequence's largest TD error in its priority; the rest is their mean's."""


class RecurrentQNetwork(nn.Module):
    """Observations and a recurrent state to action values: torso, recurrent core, (dueling) head.

    burn_in: rows at the beginning of a sequence that only bring the state up to date, without a gradient.
    stored_state: sequences start from the state that was stored with them; else from zero.
    """

    def __init__(
        self, env: EnvSpec, *, torso: str = "auto", hidden: tuple[int, ...] = (64,), dueling: bool = True,
        core: Kind = "lstm", core_size: int = 128, burn_in: int = 0, stored_state: bool = True,
        precision: Precision = "auto", device: str = "cpu",
    ) -> None:  # fmt: skip
        super().__init__()
        actions = env.action.sizes[0]
        self.encoder = Encoder(env.observations, torso, hidden, "relu", fc=core != "none" or not dueling)
        self.core = RecurrentCore(core, self.encoder.features, core_size)
        features = self.core.features
        self.head = DuelingQHead(features, actions, behind_torso=False) if dueling else QHead(features, actions)
        self.precision = resolve(precision, device, self.encoder)
        self.device, self.burn_in, self.stored_state = device, burn_in, stored_state
        self.by_hand = self._recurrent_streams(actions)

    def initial_state(self, batch: int) -> Tensors:
        """The state before an episode: {} without a core."""
        return self.core.initial_state(batch)

    def step(self, obs: Tensors, first: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """obs [B, ...], first bool [B] -> values [B, A], next state."""
        y, state = self.core.step(self._encode(obs), first, state)
        return forbid(self.head(y), obs.get(MASK)), state

    def forward(self, items: Tensors) -> Tensor:
        """A batch of sequences, L rows of which ``burn_in`` come before those to learn from -> values
        [L - burn_in, B, A]."""
        burn_in, first = self.burn_in, items["first"]
        if self.by_hand is not None and not torch.is_grad_enabled() and readable(first):
            return self._forbid(self.by_hand.forward(*self._given(items))[0], items)
        before = {k: v[:burn_in] for k, v in observations(items).items()}
        learned = {k: v[burn_in:] for k, v in observations(items).items()}
        state = self._start(items)
        if burn_in and state:
            with torch.no_grad():
                _, state = self.core.unroll(self._encode(before), first[:burn_in], state)
        y, _ = self.core.unroll(self._encode(learned), first[burn_in:], state)
        return self._forbid(self.head(y), items)

    def outputs(self, items: Tensors) -> Outputs:
        """``forward`` of a batch, to learn from."""
        if self.by_hand is None or not readable(items["first"]):
            values, backward = detached(self(items))
        else:
            values, backward = self.by_hand.differentiable(*self._given(items))
            values = self._forbid(values, items)
        values.requires_grad_()
        return Outputs(values, values, backward)

    def _start(self, items: Tensors) -> Tensors:
        """The state before the first row of a batch."""
        state = self.initial_state(items["first"].shape[1])
        return {k: items[f"state/{k}"] for k in state} if self.stored_state else state

    def _forbid(self, values: Tensor, items: Tensors) -> Tensor:
        mask = items.get(MASK)
        return forbid(values, None if mask is None else mask[self.burn_in :])

    def _recurrent_streams(self, actions: int) -> RecurrentStreams | None:
        """The same function outside of autograd; None where the network is more than that, or large."""
        chain, rnn = self.encoder.chain(), self.core.rnn
        if chain is None or not isinstance(rnn, nn.LSTM) or rnn.hidden_size > SMALL or self.precision != "fp32":
            return None
        return RecurrentStreams(chain[0], rnn, self.head.streams, actions)

    def _given(self, items: Tensors) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor], int]:
        """What ``RecurrentStreams`` asks of a batch."""
        rows = {k: v.flatten(0, 1) for k, v in observations(items).items()}
        state = self._start(items)
        return self.encoder.vector(rows), items["first"], (state["h"], state["c"]), self.burn_in

    def _encode(self, obs: Tensors) -> Tensor:
        if self.precision == "fp32":
            return cast(Tensor, self.encoder(obs))
        with autocast(self.precision, self.device):
            return cast(Tensor, self.encoder(obs))


class RecurrentQLearning(OffPolicy):
    """The loss on sequences. ``beta`` is the exponent of the importance weights of prioritised replay, constant or a
    schedule."""

    cfg: RecurrentQConfig

    def __init__(self, cfg: RecurrentQConfig, nets: RecurrentQNetwork, beta: float) -> None:
        super().__init__(nets, cfg.target_period, beta if cfg.prioritised else None, cfg.reduction)
        self.cfg = cfg

    def loss(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Update]:
        """The squared or Huber loss of the TD errors, summed over a sequence's steps, weighted by importance; outputs:
        the values [m + 1, B, A] of the m steps that are learned from and of the observation after them."""
        cfg, begin = self.cfg, self.cfg.burn_in
        action, reward, terminated = (batch.items[k][begin:-1] for k in ("action", "reward", "terminated"))
        valid, discounts = batch.items["valid"][begin:], cfg.gamma * (~terminated).float()
        with torch.no_grad():
            target_q = self.target(batch.items)
        loss, error, priorities = sequence_td_loss(
            outputs, target_q, action, reward, discounts, valid, batch.items["weight"],
            double=cfg.double, n=cfg.n_step, eps=cfg.rescale, clip=cfg.td_clip, eta=cfg.priority_mix,
        )  # fmt: skip
        metrics: Tensors = {}
        if self.reports():
            real, q = valid[:-1], select(outputs.detach()[:-1], action)
            returns = q if cfg.rescale is None else signed_hyperbolic_inverse(q, cfg.rescale)
            steps = real.sum()
            metrics = {"q_mean": torch.where(real, returns, 0.0).sum() / steps, "td_error": error.sum() / steps}
            metrics |= self.staleness(outputs.detach(), batch.items)
        return loss, Update(metrics, priorities if cfg.prioritised else None)

    @torch.no_grad()
    def staleness(self, values: Tensor, items: Tensors) -> Tensors:
        """Delta Q: how far the stored states are from those that the network now comes to, at the first and at the last
        step that is learned from, as the distance of the values that follow from them over the sequence's largest
        value (section 3). Empty where the replay keeps no states to compare with."""
        begin, out = self.cfg.burn_in, {}
        last = len(values) - 2
        valid = items["valid"][begin:]
        largest = values.amax(-1).masked_fill(~_shown(valid), -torch.inf).amax(0).abs().clamp(min=1e-6)
        for name, row in (("first", 0), ("last", last)):
            state = {k: items[f"probe/{name}/{k}"] for k in self.nets.core.keys if f"probe/{name}/{k}" in items}
            if not state:
                continue
            obs = {k: v[begin + row] for k, v in observations(items).items()}
            q, _ = self.nets.step(obs, items["first"][begin + row], state)
            moved = (values[row] - q).nan_to_num(0.0)  # of actions that are forbidden there is no value
            distance = torch.linalg.vector_norm(moved, dim=-1) / largest
            if (real := valid[row]).any():
                out[f"delta_q_{name}"] = distance[real].mean()
        return out


def _shown(valid: Tensor) -> Tensor:
    """Rows of the steps, and of the observation after the last: valid [T, B]."""
    return valid | torch.cat((valid[:1], valid[:-1]))


class RecurrentQAgent(NetworkAgent[RecurrentQNetwork, np.random.Generator]):
    """Epsilon-greedy with a recurrent state. ``epsilon``: the exploration rate of each environment, or one for all.
    Stores ``q_taken`` and ``q_max``, from which the replay computes the initial priority with no further pass."""

    def __init__(self, nets: RecurrentQNetwork, epsilon: float | np.ndarray, seed: int) -> None:
        super().__init__(nets, np.random.default_rng(seed))
        self.epsilon = epsilon

    def initial_state(self, envs: int) -> Tensors:
        return self.nets.initial_state(envs)

    @torch.inference_mode()
    def act(self, obs: Arrays, first: np.ndarray, state: Tensors, greedy: bool = False) -> Act:
        tensors = {k: torch.from_numpy(v) for k, v in obs.items()}
        q, state = self.nets.step(tensors, torch.from_numpy(first), state)
        values = q.numpy()
        action = values.argmax(-1)
        envs = len(action)
        if not greedy:
            explore = self.rng.random(envs) < self.epsilon
            action = np.where(explore, random_actions(obs, values.shape[-1], self.rng), action)
        extras = {"q_taken": values[np.arange(envs), action], "q_max": values.max(-1)}
        return Act(action, state, extras)
