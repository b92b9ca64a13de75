"""Action values of observations and a recurrent state: the network of R2D2.

Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning".
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from shoal.api import MASK, EnvSpec, Tensors, observations
from shoal.fast.lstm import MAX_UNITS, RecurrentStreams
from shoal.fast.pixels import readable
from shoal.nets.encoder import Encoder
from shoal.nets.heads import DuelingQHead, QHead
from shoal.nets.outputs import Outputs, detached
from shoal.nets.precision import Precision, autocast, resolve
from shoal.nets.recurrent import Kind, RecurrentCore
from shoal.ops import forbid


class RecurrentQNetwork(nn.Module):
    """Network from observations and a recurrent state to action values: torso, recurrent core, (dueling) head.

    burn_in: rows at the beginning of a sequence that update the recurrent state without a gradient. stored_state:
    sequences start from the recurrent state stored with them, otherwise from zero.
    """

    def __init__(
        self, env: EnvSpec, *, torso: str = "auto", hidden: tuple[int, ...] = (64,), dueling: bool = True,
        core: Kind = "lstm", core_size: int = 128, burn_in: int = 0, stored_state: bool = True,
        precision: Precision = "auto", device: str = "cpu",
    ) -> None:  # fmt: skip
        super().__init__()
        actions = self.actions = env.action.sizes[0]
        self.encoder = Encoder(env.observations, torso, hidden, "relu", fc=core != "none" or not dueling)
        self.core = RecurrentCore(core, self.encoder.features, core_size)
        features = self.core.features
        self.head = DuelingQHead(features, actions, behind_torso=False) if dueling else QHead(features, actions)
        self.precision = resolve(precision, device, self.encoder)
        self.device, self.burn_in, self.stored_state = device, burn_in, stored_state
        self.by_hand = self._recurrent_streams(actions)

    def initial_state(self, batch: int) -> Tensors:
        """Return the state before an episode: {} without a core."""
        return self.core.initial_state(batch)

    def step(self, obs: Tensors, first: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """Return values [B, A] and the next state for obs [B, ...] and first bool [B]."""
        y, state = self.core.step(self._encode(obs), first, state)
        return forbid(self.head(y), obs.get(MASK)), state

    def forward(self, items: Tensors) -> Tensor:
        """Return the values [L - burn_in, B, A] of a batch of sequences of L rows, without their ``burn_in`` rows."""
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
        """Return ``forward`` of a batch, for the loss."""
        if self.by_hand is None or not readable(items["first"]):
            values, backward = detached(self(items))
        else:
            values, backward = self.by_hand.differentiable(*self._given(items))
            values = self._forbid(values, items)
        values.requires_grad_()
        return Outputs(values, values, backward)

    def _start(self, items: Tensors) -> Tensors:
        """Return the recurrent state before the first row of a batch."""
        state = self.initial_state(items["first"].shape[1])
        return {k: items[f"state/{k}"] for k in state} if self.stored_state else state

    def _forbid(self, values: Tensor, items: Tensors) -> Tensor:
        mask = items.get(MASK)
        return forbid(values, None if mask is None else mask[self.burn_in :])

    def _recurrent_streams(self, actions: int) -> RecurrentStreams | None:
        """Return a compiled version that computes outside autograd, or None if the network is large or has other
        parts."""
        chain, rnn = self.encoder.chain(), self.core.rnn
        if chain is None or not isinstance(rnn, nn.LSTM) or rnn.hidden_size > MAX_UNITS or self.precision != "fp32":
            return None
        return RecurrentStreams(chain[0], rnn, self.head.streams, actions)

    def _given(self, items: Tensors) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor], int]:
        """Return the arguments of ``RecurrentStreams`` for a batch."""
        rows = {k: v.flatten(0, 1) for k, v in observations(items).items()}
        state = self._start(items)
        return self.encoder.vector(rows), items["first"], (state["h"], state["c"]), self.burn_in

    def _encode(self, obs: Tensors) -> Tensor:
        if self.precision == "fp32":
            return cast(Tensor, self.encoder(obs))
        with autocast(self.precision, self.device):
            return cast(Tensor, self.encoder(obs))
