"""Batches of trajectories: their parts, and a learner's own memory of them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from shoal.api import Batch, Spec, Tensors, UsageError, spec_nbytes
from shoal.nets.recurrent import column_axis
from shoal.types import State


def split(batch: Batch, parts: int) -> list[Batch]:
    """A batch of trajectories as ``parts`` batches of fewer columns (views)."""
    columns = {k: v.chunk(parts, column_axis(k)) for k, v in batch.items.items()}
    return [batch._replace(items={k: v[i] for k, v in columns.items()}, versions=()) for i in range(parts)]


class TrajectoryReplay:
    """IMPALA's replay (Espeholt et al. 2018, section 5.2.2): the last ``capacity`` trajectories, first in first out.
    Each gradient step learns from the fresh ones and from ``ratio`` times as many drawn uniformly, with replacement,
    from all that are kept (the fresh ones among them).

    Tensors are stored as they come, [T, columns, ...] and recurrent states [columns, ...]; but of observations that are
    stacks of ``stack`` frames, each frame once.
    """

    def __init__(self, capacity: int, ratio: float, seed: int, stack: int = 1) -> None:
        self.capacity, self.ratio, self.stack = capacity, ratio, stack
        self.random = torch.Generator().manual_seed(seed)
        self.kept: Tensors = {}
        self.size = self.next = 0

    def mix(self, batch: Batch) -> Batch:
        """The batch, followed by columns from the memory; a copy. ``fresh`` [1, columns] says which are the batch's."""
        items = dict(batch.items)
        if self.stack > 1:
            items["obs"] = frames_of(items["obs"])
        if not self.kept:
            self.kept = {k: _room(k, v, self.capacity) for k, v in items.items()}
        count = next(v.shape[column_axis(k)] for k, v in items.items())
        fresh = torch.arange(self.next, self.next + count) % self.capacity
        for k, v in items.items():
            self.kept[k].index_copy_(column_axis(k), fresh.to(v.device), v)
        self.next = (self.next + count) % self.capacity
        self.size = min(self.size + count, self.capacity)
        drawn = torch.randint(self.size, (round(self.ratio * count),), generator=self.random)
        columns = torch.cat([fresh, drawn])
        mixed = {k: v.index_select(column_axis(k), columns.to(v.device)) for k, v in self.kept.items()}
        if self.stack > 1:
            mixed["obs"] = stacks_of(mixed["obs"], mixed["first"])
        device = next(iter(mixed.values())).device
        mixed["fresh"] = (torch.arange(len(columns), device=device) < count)[None]
        return batch._replace(items=mixed, versions=())

    def state_dict(self) -> State:
        return {"kept": self.kept, "size": self.size, "next": self.next, "random": self.random.get_state()}

    def load_state_dict(self, state: State, device: torch.device | str = "cpu") -> None:
        """Go on from a state; ``device``: where the batches are."""
        self.kept = {k: v.to(device) for k, v in state["kept"].items()}
        self.size, self.next = state["size"], state["next"]
        self.random.set_state(state["random"])


def frames_of(stacks: Tensor) -> Tensor:
    """Stacks of S frames, the newest last, [T, columns, S, ...] -> each frame once, [S - 1 + T, columns, ...]."""
    return torch.cat([stacks[0, :, :-1].transpose(0, 1), stacks[:, :, -1]])


def stacks_of(frames: Tensor, first: Tensor) -> Tensor:
    """The stacks that ``frames_of`` took apart. first [T, columns]: where an episode begins; frames before it are 0."""
    steps = len(first)
    older = len(frames) - steps
    out = torch.stack([frames[k : k + steps] for k in range(older + 1)], 2)
    for t, column in first[1:].nonzero().tolist():  # few; the first stack was stored with its own blanks
        for age in range(min(older, steps - 1 - t)):
            out[t + 1 + age, column, : older - age] = 0
    return out


def replay_nbytes(capacity: int, step: int, spec: Spec, envs: int, stack: int = 1) -> int:
    """Bytes of a TrajectoryReplay of ``capacity`` trajectories (0: none), where an item of ``spec`` brings ``envs``.
    UsageError if it cannot hold the ``step`` fresh ones of one gradient step."""
    if capacity and capacity < step:
        raise UsageError(f"replay ({capacity} trajectories) must hold at least one gradient step's ({step})")
    if stack > 1:
        rows, columns, _, *frame = spec["obs"].shape
        spec = {**spec, "obs": replace(spec["obs"], shape=(rows + stack - 1, columns, *frame))}
    return capacity * spec_nbytes(spec) // envs


def _room(name: str, like: Tensor, columns: int) -> Tensor:
    shape = list(like.shape)
    shape[column_axis(name)] = columns
    return like.new_zeros(shape)
