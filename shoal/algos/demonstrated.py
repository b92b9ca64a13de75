"""A learner some of whose batches' elements are demonstrations, from a second, read-only prioritised replay.

Paine et al. 2019, "Making Efficient Use of Demonstrations to Solve Hard Exploration Problems" (R2D3).
"""

from __future__ import annotations

import hashlib

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
        state = self.table.state()
        del state["rows/data"]
        return {
            "learner": self.learner.state_dict(), "table": state, "rng": self.rng.bit_generator.state,
            "sha256": self._hash(),
        }  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        if self._hash() != state["sha256"]:
            raise ShoalError("the demonstrations are not those that the checkpoint was made with")
        self.learner.load_state_dict(state["learner"])
        self.table.restore({**state["table"], "rows/data": self.table.state()["rows/data"].copy()})
        self.rng.bit_generator.state, self.step = state["rng"], self.learner.step

    def _hash(self) -> str:
        return hashlib.sha256(self.table.state()["rows/data"].tobytes()).hexdigest()


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
