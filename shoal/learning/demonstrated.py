"""Demonstrations from a second, read-only replay, among the elements of a batch from that of the actors.

Paine et al. 2019, "Making Efficient Use of Demonstrations to Solve Hard Exploration Problems" (R2D3): a fixed share, in
a learner. Kalashnikov et al. 2018 (QT-Opt): a share that falls, before labels are made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from shoal.api import Batch, Learner, Replay, ShoalError, Tensors, Update
from shoal.types import State


class Demonstrated:
    """``learner``, but each element of a batch is, with probability ``ratio``, one from ``table`` instead of one from
    the replay of the actors (section 2). The loss is the same for both; importance weights and priorities are each
    replay's own."""

    def __init__(self, learner: Learner, table: Replay, ratio: float, seed: int) -> None:
        self.learner, self.table, self.ratio = learner, table, ratio
        self.rng, self.step = np.random.default_rng(seed), learner.step

    def update(self, batch: Batch) -> Update:
        update = self._update(batch)
        self.step = self.learner.step
        return update

    def _update(self, batch: Batch) -> Update:
        chosen = torch.from_numpy(self.rng.random(batch.items["reward"].shape[1]) < self.ratio)
        share = {"demonstrations": float(chosen.float().mean())}
        if not share["demonstrations"]:
            update = self.learner.update(batch)
            return Update({**update.metrics, **share}, update.priorities)
        shown = self.table.sample(len(chosen))
        assert shown.keys is not None and shown.probs is not None
        keys = shown.keys.clone()
        update = self.learner.update(mix(batch, shown, chosen))
        priorities = update.priorities
        if priorities is not None:
            priorities = priorities.detach().cpu().float()
            self.table.reprioritise(keys[chosen].numpy(), priorities[chosen].numpy())
            priorities = priorities.masked_fill(chosen, torch.nan)  # which the actors' replay ignores
        return Update({**update.metrics, **share}, priorities)

    def params(self) -> Tensors:
        return self.learner.params()

    def state_dict(self) -> State:
        """Priorities and generators; the demonstrations themselves are read again, and known by a hash."""
        return {
            "learner": self.learner.state_dict(), "rng": self.rng.bit_generator.state, **_table_state(self.table),
        }  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        _restore_table(self.table, state)
        self.learner.load_state_dict(state["learner"])
        self.rng.bit_generator.state, self.step = state["rng"], self.learner.step


class Offline:
    """Each element of a batch is a transition of ``table`` instead of one of the actors, with a probability that
    depends on the gradient steps so far (``share``)."""

    def __init__(self, table: Replay, share: Callable[[int], float], seed: int) -> None:
        self.table, self.share = table, share
        self.rng = np.random.default_rng(seed)

    def mix(self, batch: Batch, step: int) -> tuple[Batch, float]:
        """The batch [B, ...] with such elements, and how many of it they are."""
        chosen = torch.from_numpy(self.rng.random(len(batch.items["reward"])) < self.share(step))
        shown = self.table.sample(len(chosen)).items
        items = {
            name: torch.where(chosen.view(-1, *[1] * (value.ndim - 1)), shown[name], value)
            for name, value in batch.items.items()
        }
        return batch._replace(items=items), float(chosen.float().mean())

    def state_dict(self) -> State:
        """As ``Demonstrated``'s."""
        return {"rng": self.rng.bit_generator.state, **_table_state(self.table)}

    def load_state_dict(self, state: State) -> None:
        _restore_table(self.table, state)
        self.rng.bit_generator.state = state["rng"]


def _table_state(table: Replay) -> State:
    """Of a replay that nobody fills: all but its rows, of which there is a hash."""
    state = table.state()
    rows = state.pop("rows/data")
    return {"table": state, "sha256": hashlib.sha256(rows.tobytes()).hexdigest()}


def _restore_table(table: Replay, state: State) -> None:
    rows = table.state()["rows/data"]
    if hashlib.sha256(rows.tobytes()).hexdigest() != state["sha256"]:
        raise ShoalError("the demonstrations are not those that the checkpoint was made with")
    table.restore({**state["table"], "rows/data": rows.copy()})


def mix(batch: Batch, shown: Batch, chosen: Tensor) -> Batch:
    """The batch [L, B, ...] with the elements ``chosen`` (bool ``[B]``) from ``shown``. Their probabilities are scaled
    so that N P of either replay gives its importance weights: w is proportional to (N P)^-beta."""
    items = dict(batch.items)
    for name, value in batch.items.items():
        if name in shown.items:  # all but recurrent states, which demonstrations do not have
            where = chosen.view(1, -1, *[1] * (value.ndim - 2))
            items[name] = torch.where(where, shown.items[name], value)
    probs = batch.probs
    if probs is not None and shown.probs is not None:
        probs = torch.where(chosen, shown.probs * (shown.size / max(1, batch.size)), probs)
    return batch._replace(items=items, probs=probs)
