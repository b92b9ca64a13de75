"""The recurrent core, which clears its state at the start of an episode both when acting and when training."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, cast

import torch
from torch import Tensor, nn

from shoal import transfer
from shoal.api import Tensors, UsageError
from shoal.nets.init import orthogonal
from shoal.nets.precision import full

Kind = Literal["lstm", "gru", "none"]
WEIGHTS = ("weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l")  # followed by the layer's number


class RecurrentCore(nn.Module):
    """LSTM, GRU, or nothing (``none``: ``y`` is ``x``, the state is an empty dict). Always float32.

    ``first`` marks inputs that start an episode. Those rows of the state are set to zero *before* the step. Each array
    of the state is [B, size], or [B, layers, size] with several ``layers``.
    """

    def __init__(self, kind: Kind, inputs: int, size: int, orthogonal_init: bool = True, layers: int = 1):
        super().__init__()
        if kind not in ("lstm", "gru", "none"):
            raise UsageError(f"the recurrent core must be lstm, gru or none, not {kind!r}")
        self.kind: Kind = kind
        self.layers = layers
        # if a fused call covers fewer steps on average, single cells are faster
        self._stretch = 4 if kind == "lstm" else 1
        self.features = inputs if kind == "none" else size
        self.keys: tuple[str, ...] = {"lstm": ("h", "c"), "gru": ("h",), "none": ()}[kind]
        self.rnn: nn.LSTM | nn.GRU | None = None
        if kind != "none":
            self.rnn = nn.LSTM(inputs, size, layers) if kind == "lstm" else nn.GRU(inputs, size, layers)
            if orthogonal_init:
                orthogonal(self.rnn)

    def initial_state(self, batch: int) -> Tensors:
        device = next(self.parameters()).device if self.rnn is not None else None
        shape = (batch, self.features) if self.layers == 1 else (batch, self.layers, self.features)
        return {k: torch.zeros(shape, device=device) for k in self.keys}

    def step(self, x: Tensor, first: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """Return y [B, size] and the next state for x [B, F] and first bool [B]."""
        if self.rnn is None:
            return x, state
        with full(x.device):
            return self._cell(x.float(), clear(state, first))

    def unroll(self, x: Tensor, first: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """Return y [T, B, size] and the state after the last step for x [T, B, F], first bool [T, B] and the state
        before t=0.

        The results equal those of ``step`` in a loop. One fused call processes each stretch of time without a
        ``first``; if the stretches are short, single steps are taken, which is then faster.
        """
        if self.rnn is None:
            return x, state
        length = x.shape[0]
        starts = [0, *(transfer.on_host(first)[1:].any(1).nonzero().flatten() + 1).tolist()]
        pieces: list[Tensor] = []
        with full(x.device):
            x = x.float()
            if len(starts) * self._stretch > length + self._stretch:
                for t in range(length):
                    y, state = self._cell(x[t], clear(state, first[t]))
                    pieces.append(y)
                return torch.stack(pieces), state
            for begin, end in pairwise([*starts, length]):
                y, state = self._fused(x[begin:end], clear(state, first[begin]))
                pieces.append(y)
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces), state

    def _fused(self, x: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """Return y and the last state for x [T, B, F] without an episode start after t=0."""
        if isinstance(self.rnn, nn.LSTM):
            y, (h, c) = self.rnn(x, (self._by_layer(state["h"]), self._by_layer(state["c"])))
            return y, {"h": self._by_row(h), "c": self._by_row(c)}
        assert self.rnn is not None
        y, h = self.rnn(x, self._by_layer(state["h"]))
        return y, {"h": self._by_row(h)}

    def _by_layer(self, state: Tensor) -> Tensor:
        return state[None] if self.layers == 1 else state.transpose(0, 1).contiguous()

    def _by_row(self, state: Tensor) -> Tensor:
        return state[0] if self.layers == 1 else state.transpose(0, 1)

    def _cell(self, x: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """Return y and the next state for x [B, F]. On small batches a cell takes half the time of a fused call over
        one step."""
        if self.layers == 1:
            return self._layer(0, x, state)
        states: list[Tensors] = []
        for layer in range(self.layers):
            x, after = self._layer(layer, x, {k: v[:, layer] for k, v in state.items()})
            states.append(after)
        return x, {k: torch.stack([one[k] for one in states], 1) for k in self.keys}

    def _layer(self, layer: int, x: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """Return y and the next state of one layer's cell for x [B, F] and state [B, size]."""
        w_ih, w_hh, b_ih, b_hh = (cast(Tensor, getattr(self.rnn, f"{name}{layer}")) for name in WEIGHTS)
        if self.kind == "lstm":
            h, c = torch.lstm_cell(x, (state["h"], state["c"]), w_ih, w_hh, b_ih, b_hh)
            return h, {"h": h, "c": c}
        h = torch.gru_cell(x, state["h"], w_ih, w_hh, b_ih, b_hh)
        return h, {"h": h}


def clear(state: Tensors, first: Tensor) -> Tensors:
    """Return ``state`` with the rows of each [B, ...] array set to zero where ``first`` [B] is True."""
    return {k: v.masked_fill(first.view(-1, *[1] * (v.dim() - 1)), 0.0) for k, v in state.items()}


def start_state(items: Tensors) -> Tensors:
    """Return the recurrent state before each trajectory's first observation."""
    return {k.removeprefix("state/"): v for k, v in items.items() if k.startswith("state/")}


def column_axis(name: str) -> int:
    """Return the axis of a trajectory's field that counts the environments. Fields that exist once per unroll have no
    time axis."""
    return 0 if name.startswith("state/") else 1
