"""The recurrent core: one line clears the state where an episode starts, when acting and when training."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, cast

import torch
from torch import Tensor, nn

from shoal.api import Tensors, UsageError
from shoal.nets.init import orthogonal
from shoal.nets.precision import full

Kind = Literal["lstm", "gru", "none"]
WEIGHTS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


class RecurrentCore(nn.Module):
    """LSTM, GRU, or nothing (``none``: ``y`` is ``x``, the state is an empty dict). Always float32.

    ``first`` marks inputs that start an episode; those rows of the state are zeroed *before* the step.
    """

    def __init__(self, kind: Kind, inputs: int, size: int, orthogonal_init: bool = True):
        super().__init__()
        if kind not in ("lstm", "gru", "none"):
            raise UsageError(f"the recurrent core must be lstm, gru or none, not {kind!r}")
        self.kind: Kind = kind
        self._stretch = 4 if kind == "lstm" else 1  # mean steps per fused call below which cells are faster
        self.features = inputs if kind == "none" else size
        self.keys: tuple[str, ...] = {"lstm": ("h", "c"), "gru": ("h",), "none": ()}[kind]
        self.rnn: nn.LSTM | nn.GRU | None = None
        if kind != "none":
            self.rnn = nn.LSTM(inputs, size) if kind == "lstm" else nn.GRU(inputs, size)
            if orthogonal_init:
                orthogonal(self.rnn)

    def initial_state(self, batch: int) -> Tensors:
        device = next(self.parameters()).device if self.rnn is not None else None
        return {k: torch.zeros(batch, self.features, device=device) for k in self.keys}

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
        starts = [0, *(first[1:].any(1).nonzero().flatten() + 1).tolist()]
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
            y, (h, c) = self.rnn(x, (state["h"][None], state["c"][None]))
            return y, {"h": h[0], "c": c[0]}
        assert self.rnn is not None
        y, h = self.rnn(x, state["h"][None])
        return y, {"h": h[0]}

    def _cell(self, x: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """x [B, F]. On small batches a cell costs half of a fused call over one step."""
        w_ih, w_hh, b_ih, b_hh = self._weights()
        if self.kind == "lstm":
            h, c = torch.lstm_cell(x, (state["h"], state["c"]), w_ih, w_hh, b_ih, b_hh)
            return h, {"h": h, "c": c}
        h = torch.gru_cell(x, state["h"], w_ih, w_hh, b_ih, b_hh)
        return h, {"h": h}

    def _weights(self) -> tuple[Tensor, ...]:
        assert self.rnn is not None
        return tuple(cast(Tensor, getattr(self.rnn, name)) for name in WEIGHTS)


def clear(state: Tensors, first: Tensor) -> Tensors:
    """Zero the rows of each [B, ...] array of ``state`` where ``first`` [B] is True."""
    return {k: v.masked_fill(first.view(-1, *[1] * (v.dim() - 1)), 0.0) for k, v in state.items()}
