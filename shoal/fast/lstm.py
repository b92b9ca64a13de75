"""A torso, an LSTM and head streams, unrolled over sequences outside autograd, with a hand-written gradient. The
input's contribution to the gates is one matrix product over all steps; the recurrence is one compiled function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from shoal.fast.streams import Layer, Streams, Used, side_by_side

MAX_UNITS = 128  # largest number of units for which this is faster


class Steps(NamedTuple):
    """Intermediate results of an LSTM's forward pass: inputs [T, B, F], gates [T, B, 4 H], steps that start an episode
    [T, B], states before each step and after the last [T + 1, B, H], and tanh of the cells after each step [T, B,
    H]."""

    x: Tensor
    gates: Tensor
    first: Tensor
    hidden: Tensor
    cells: Tensor
    squashed: Tensor


class LSTM(Layer):
    """An LSTM of one layer, whose state is cleared before a step that starts an episode (``nets.RecurrentCore``)."""

    def __init__(self, rnn: nn.LSTM) -> None:
        super().__init__(rnn)
        self._scale = np.repeat(np.array([0.5, 0.5, 1.0, 0.5], np.float32), rnn.hidden_size)

    def unroll(self, x: Tensor, first: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Steps]:
        """Return y [T, B, H], and the intermediate results for ``back``, for x [T, B, F], first bool [T, B] and the
        state before t=0."""
        from shoal.fast import lstm_kernels

        by_input, by_state, *biases = self.parameters
        (length, batch), size = first.shape, by_state.shape[1]
        gates = torch.addmm(biases[0] + biases[1], x.flatten(0, 1), by_input.t()).view(length, batch, -1)
        hidden, cells = x.new_empty(2, length + 1, batch, size).unbind()
        squashed, y = x.new_empty(2, length, batch, size).unbind()
        hidden[0], cells[0] = state
        steps = Steps(x, gates, first.contiguous(), hidden, cells, squashed)
        lstm_kernels.unroll(
            gates.numpy(), by_state.t().contiguous().numpy(), steps.first.numpy(), self._scale, hidden.numpy(),
            cells.numpy(), squashed.numpy(), y.numpy(),
        )  # fmt: skip
        return y, steps

    def back(self, steps: Steps, begin: int, gradient: Tensor) -> Tensor:
        """Set ``grad`` of the parameters and return the gradient with respect to ``x`` [T - begin, B, F]. gradient: of
        the loss with respect to ``y`` from step ``begin`` on; earlier steps get none. Overwrites the gates."""
        from shoal.fast import lstm_kernels

        by_input, by_state, *_ = self.parameters
        x, gates, first, hidden, cells, squashed = (part[begin:] for part in steps)
        by_step = gradient.new_zeros(2, *gradient.shape[1:]).numpy()
        lstm_kernels.back(
            gradient.contiguous().numpy(), gates.numpy(), by_state.detach().numpy(), first.numpy(), cells.numpy(),
            squashed.numpy(), by_step[0], by_step[1],
        )  # fmt: skip
        by_gates = gates.flatten(0, 1)
        torch.mm(by_gates.t(), x.flatten(0, 1), out=self.grads[0])
        torch.mm(by_gates.t(), hidden[:-1].flatten(0, 1), out=self.grads[1])
        torch.sum(by_gates, 0, out=self.grads[2])
        self.grads[3].copy_(self.grads[2])
        self.set_grads()
        return by_gates.mm(by_input).view(x.shape)


class Kept(NamedTuple):
    """Intermediate results of a forward pass of ``RecurrentStreams``, and the number of steps without a gradient."""

    torso: list[Used]
    steps: Steps
    streams: list[list[Used]]
    skip: int


class RecurrentStreams:
    """A torso, an LSTM and the streams of a plain or dueling head, computed outside autograd."""

    def __init__(
        self, torso: Sequence[nn.Linear], rnn: nn.LSTM, streams: Sequence[Sequence[nn.Linear]], actions: int
    ) -> None:  # fmt: skip
        self._around, self._lstm = Streams(torso, streams, (actions, 1)), LSTM(rnn)
        self._gradient = torch.empty(0)  # of all parameters

    def forward(self, x: Tensor, first: Tensor, state: tuple[Tensor, Tensor], skip: int) -> tuple[Tensor, Kept]:
        """Return values ``[L - skip, B, A]`` of all but the first ``skip`` steps, and the intermediate results for
        ``backward``, for rows ``[L * B, inputs]``, first ``[L, B]`` and the state before them. Call it outside
        autograd."""
        features, of_torso = self._around.features(x, iter(()))
        y, steps = self._lstm.unroll(features.view(*first.shape, -1), first, state)
        described, of_streams = self._around.described(y[skip:].flatten(0, 1), iter(()))
        return described.view(-1, first.shape[1], described.shape[1]), Kept(of_torso, steps, of_streams, skip)

    def differentiable(
        self, x: Tensor, first: Tensor, state: tuple[Tensor, Tensor], skip: int
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Return the outputs, computed outside autograd, and the function that propagates their gradient."""
        with torch.no_grad():
            values, kept = self.forward(x, first, state, skip)
        return values, partial(self.backward, kept)

    @torch.no_grad()
    def backward(self, kept: Kept, gradient: Tensor) -> Tensor:
        """Set ``grad`` of every parameter and return all gradients as one vector, which is valid until the next call.
        kept: the results of ``forward``, which are overwritten; gradient: of the loss with respect to the values."""
        if not len(self._gradient):
            self._gradient = side_by_side([*self._around.layers, self._lstm], gradient)
        by_y = self._around.back_to_features(kept.streams, gradient.flatten(0, 1).unsqueeze(-1), True)
        by_features = self._lstm.back(kept.steps, kept.skip, by_y.view(*gradient.shape[:2], -1)).flatten(0, 1)
        of_torso = [used._replace(x=used.x[-len(by_features) :]) for used in kept.torso]
        self._around.back_to_input(of_torso, kept.steps.x[kept.skip :].flatten(0, 1), by_features)
        return self._gradient
