"""Parameters in shared memory that workers change in place, without a lock.

Recht et al. 2011, "Hogwild!"; with the optimiser's statistics shared too, as in A3C (Mnih et al. 2016, section 4).
Each worker counts its own steps on a line that nobody else writes, so that the number of steps is exact, whatever
the steps themselves have lost to each other. A worker killed in the middle of a step leaves a part of it behind.
"""

from __future__ import annotations

import numpy as np
import torch

from shoal import api
from shoal.shm import futex
from shoal.shm.arena import Arena
from shoal.shm.fields import LINE, FieldLayout
from shoal.shm.group_layout import SharedLayout
from shoal.shm.session import Session
from shoal.shm.store import tensors
from shoal.types import State
from shoal.untrusted import counter

_GIVEN, _WAITED = 0, 1  # words of the control line


class _Memory:
    """Memory of the parameters, the statistics and the counters, for both kinds of ends."""

    def __init__(self, session: Session, layout: SharedLayout) -> None:
        self._session, self._layout = session, layout
        self._arena, self._words = session.arena, session.arena.words
        self._at, self._address = layout.control // 8, session.arena.base + layout.control
        self._lines = [layout.lines // 8 + m * LINE for m in range(layout.members)]
        self._flat = session.arena.array(layout.params, (layout.params_bytes,), np.uint8)
        self._private = np.zeros(layout.params_bytes, np.uint8)
        self._copied = tensors(torch.from_numpy(self._private), layout.fields)

    def ready(self) -> bool:
        """Return whether there are parameters."""
        return bool(self._words[self._at + _GIVEN])

    def _steps(self) -> int:
        words = self._words
        return sum(words[line] for line in self._lines)

    def _copy(self) -> api.Tensors:
        if not self.ready():
            self._wait()
        self._session.fresh = False
        futex.fence()
        self._private[...] = self._flat
        return self._copied

    def _wait(self) -> None:
        phase = f"wait:{self._layout.channel.name}"
        while True:
            self._words[self._at + _WAITED] = 1
            futex.fence()
            if self.ready():
                return
            self._session.wait(phase, self._address, 0)


class SharedEnd(_Memory):
    """A worker's end (an ``api.SharedParams``)."""

    def __init__(self, session: Session, layout: SharedLayout, member: int) -> None:
        super().__init__(session, layout)
        assert layout.channel.rule is not None
        self._rule, self._line = layout.channel.rule, self._lines[member]
        self._params, self._statistics = _live(session.arena, layout)

    def offer(self, params: api.Tensors) -> None:
        if self.ready():
            return
        self._check(params)
        with torch.no_grad():
            for name, target in self._params.items():
                target.copy_(params[name])
        futex.fence()
        self._words[self._at + _GIVEN] = 1
        futex.fence()
        if self._words[self._at + _WAITED]:
            futex.wake(self._address)

    def copy(self) -> tuple[int, api.Tensors]:
        """Return the number of steps so far and private tensors, the same at each call: load or clone them before the
        next call."""
        steps = self._steps()
        return steps, self._copy()

    @torch.no_grad()
    def add(self, gradient: api.Tensors, lr: float) -> int:
        self._check(gradient)
        self._session.fresh = False
        self._rule.apply(self._params, self._statistics, gradient, lr)
        self._words[self._line] += 1
        return self._steps()

    def _check(self, given: api.Tensors) -> None:
        name, targets = self._layout.channel.name, self._params
        if given.keys() != targets.keys():
            raise api.UsageError(f"Channel {name!r} has the tensors {sorted(targets)}, got {sorted(given)}.")
        for key, target in targets.items():
            if given[key].shape != target.shape:
                raise api.UsageError(
                    f"Channel {name!r}, tensor {key!r}: expected shape {list(target.shape)}, "
                    f"got {list(given[key].shape)}."
                )


class SharedReader(_Memory):
    """A read end (an ``api.ParamsReader``); a version is one more than the number of steps added before it."""

    def latest(self, newer_than: int = -1) -> tuple[int, api.Tensors] | None:
        if not self.ready():
            self._wait()
        version = self.newest()
        return None if version <= newer_than else (version, self._copy())

    def newest(self) -> int:
        return self._steps() + 1 if self.ready() else 0


def read(arena: Arena, layout: SharedLayout) -> api.Tensors | None:
    """A private copy of the parameters; None before the first."""
    if not arena.words[layout.control // 8 + _GIVEN]:
        return None
    return {name: tensor.clone() for name, tensor in _live(arena, layout)[0].items()}


def state_dict(arena: Arena, layout: SharedLayout) -> State:
    """Version 0 has no tensors."""
    params, steps = read(arena, layout), [arena.words[layout.lines // 8 + m * LINE] for m in range(layout.members)]
    statistics = {name: tensor.clone() for name, tensor in _live(arena, layout)[1].items()}
    version = sum(steps) + 1 if params is not None else 0
    return {"version": version, "tensors": params or {}, "statistics": statistics, "steps": steps}


def load_state_dict(arena: Arena, layout: SharedLayout, state: State) -> None:
    """Before any worker starts."""
    if not state["version"]:
        return
    for live, saved in zip(_live(arena, layout), (state["tensors"], state["statistics"]), strict=True):
        for name, tensor in live.items():
            if saved[name].shape != tensor.shape:
                raise ValueError(
                    f"expected '{name}' of the shape {list(tensor.shape)}, found {list(saved[name].shape)}"
                )
            tensor.copy_(saved[name])
    for member, steps in zip(range(layout.members), state["steps"], strict=True):
        arena.words[layout.lines // 8 + member * LINE] = counter(steps)
    arena.words[layout.control // 8 + _GIVEN] = 1


def _live(arena: Arena, layout: SharedLayout) -> tuple[api.Tensors, api.Tensors]:
    """The parameters and the statistics in place."""

    def at(start: int, nbytes: int, fields: tuple[FieldLayout, ...]) -> api.Tensors:
        return tensors(torch.from_numpy(arena.array(start, (nbytes,), np.uint8)), fields)

    return (
        at(layout.params, layout.params_bytes, layout.fields),
        at(layout.statistics, layout.statistics_bytes, layout.statistics_fields),
    )
