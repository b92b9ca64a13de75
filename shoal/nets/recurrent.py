"""The recurrent core: one line clears the state where an episode starts, when acting and when training."""

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
WEIGHTS = ("weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l")  # then the layer's number


class RecurrentCore(nn.Module):
    """LSTM, GRU, or nothing (``none``: ``y`` is ``x``, the state is an empty dict). Always float32.

    ``first`` marks inputs that start an episode; those rows of the state are zeroed *before* the step. Each array of
    the state is [B, size]; with several ``layers``, each fed by the one before, [B, layers, size].
    """

    def __init__(self, kind: Kind, inputs: int, size: int, orthogonal_init: bool = True, layers: int = 1):
        super().__init__()
        if kind not in ("lstm", "gru", "none"):
            raise UsageError(f"the recurrent core must be lstm, gru or none, not {kind!r}")
        self.kind: Kind = kind
        self.layers = layers
        self._stretch = 4 if kind == "lstm" else 1  # mean steps per fused call below which cells are faster
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
        """x [B, F], first bool [B] -> y [B, size] and the next state."""
        if self.rnn is None:
            return x, state
        with full(x.device):
            return self._cell(x.float(), clear(state, first))

    def unroll(self, x: Tensor, first: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """x [T, B, F], first bool [T, B], state before t=0 -> y [T, B, size] and the state after the last step.

        The same numbers as ``step`` in a loop, but one fused call per stretch of time without a ``first``; where those
        are short, step by step, which is then faster.
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
        """x [T, B, F] with no episode start after t=0."""
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
        """x [B, F]. On small batches a cell costs half of a fused call over one step."""
        if self.layers == 1:
            return self._layer(0, x, state)
        states: list[Tensors] = []
        for layer in range(self.layers):
            x, after = self._layer(layer, x, {k: v[:, layer] for k, v in state.items()})
            states.append(after)
        return x, {k: torch.stack([one[k] for one in states], 1) for k in self.keys}

    def _layer(self, layer: int, x: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """One layer's cell: x [B, F], state [B, size]."""
        w_ih, w_hh, b_ih, b_hh = (cast(Tensor, getattr(self.rnn, f"{name}{layer}")) for name in WEIGHTS)
        if self.kind == "lstm":
            h, c = torch.lstm_cell(x, (state["h"], state["c"]), w_ih, w_hh, b_ih, b_hh)
            return h, {"h": h, "c": c}
        h = torch.gru_cell(x, state["h"], w_ih, w_hh, b_ih, b_hh)
        return h, {"h": h}


def clear(state: Tensors, first: Tensor) -> Tensors:
    """Zero the rows of each [B, ...] array of ``state`` where ``first`` [B] is True."""
    return {k: v.masked_fill(first.view(-1, *[1] * (v.dim() - 1)), 0.0) for k, v in state.items()}


def start_state(items: Tensors) -> Tensors:
    """Return the recurrent state before each trajectory's first observation."""
    return {k.removeprefix("state/"): v for k, v in items.items() if k.startswith("state/")}


def column_axis(name: str) -> int:
    """Return which axis of a trajectory's item counts the environments: what is there once per unroll has no time
    axis."""
    return 0 if name.startswith("state/") else 1
