"""TableOptions: the contents and the size of a replay table of n-step transitions, as plain data.

This module does not import numba, so that drawing a program and counting its bytes stay instant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shoal.api import Field, Spec, WiringError
from shoal.replay.layout import (
    Arrays,
    Layout,
    Options,
    make_layout,
    prefixed,
    sampled_shape,
    steps_and_envs,
    tree_arrays,
)

ROW = {
    "previous": "int32", "depth": "int8", "refs": "int32", "end": "int32", "reward": "float32", "discount": "float32",
    "key": "int64", "priority": "float32", "position": "int32", "order": "int32", "free": "int32",
}  # fmt: skip


@dataclass(frozen=True)
class TableOptions(Options):
    """Options of a replay table of n-step transitions that are cut from streams of steps.

    Each observation is stored once per step, neither once per stack nor again as the next observation. With ``stack`` >
    1, every observation of shape ``[T, E, 1, H, W]`` is stacked to ``[B, stack, H, W]`` when it is sampled.

    capacity: items (transitions). The table holds at most this many after each eviction.
    sampler: ``uniform``, ``proportional``, ``rank``, ``greedy``, or ``MODULE:CLASS``, a class of your own
        (``sampler.Sampler``).
    alpha, eps: a priority is ``|delta| + eps``; an item is sampled with weight ``priority ** alpha`` (rank: ``rank **
        -alpha``). The power is taken when the priority is written.
    initial: priority of a new item: ``max`` (the largest recent priority) or ``given`` (the actor's own n-step TD
        error, from the per-step fields ``q_taken`` and ``q_max``).
    evict: ``fifo``, or ``proportional``: surplus items are drawn with weight ``priority ** alpha_evict``.
    evict_every: items inserted between two evictions. The capacity may be exceeded by as many, plus one unroll. 0
        evicts at every ``add``. ``Table.evict`` evicts at once.
    batches: how many batches of one size stay valid at a time (2 for a reader that fetches one ahead).

    Memory is allocated as rows, one per step: for ``capacity`` items, for the slack above, for the open windows of all
    streams, and 1/64 more (1/8 if a row has at most 1 KB) for steps that are no item (reset rows, final observations).
    Proportional eviction needs twice ``capacity``, because both observations of an item may be kept for that item
    alone. When rows run out because episodes are very short, items are evicted early, so that adding never fails.
    """

    capacity: int
    n_step: int = 1
    gamma: float = 0.99
    stack: int = 1
    pad: Literal["repeat", "zero"] = "repeat"
    sampler: str = "uniform"
    alpha: float = 0.6
    eps: float = 0.01
    initial: Literal["max", "given"] = "max"
    evict: Literal["fifo", "proportional"] = "fifo"
    alpha_evict: float = -0.4
    evict_every: int = 0
    batches: int = 1

    def __post_init__(self) -> None:
        self.check("A replay table", evict=("fifo", "proportional"))
        if self.stack > 100:
            raise WiringError(f"A replay table stacks at most 100 frames, got {self.stack}.")
        if self.eps <= 0 or self.evict_every < 0:
            raise WiringError(f"A replay table needs eps > 0 and evict_every >= 0, got {self.eps}, {self.evict_every}.")

    def layout(self, unroll: Spec) -> Layout:
        return make_layout(unroll, self.initial == "given")

    def items_per_insert(self, unroll: Spec) -> int:
        """Return the number of transitions that one unroll brings."""
        steps, envs = steps_and_envs(unroll)
        return steps * envs

    def batch(self, unroll: Spec, items: int) -> Spec:
        """Return the fields of a batch of ``items`` sampled transitions, [items, ...] each."""
        layout = self.layout(unroll)
        out: dict[str, Field] = {}
        for column in layout.obs:
            shape = (items, *sampled_shape(column, self.stack))
            out |= {name: Field(shape, column.dtype, axis=0) for name in (column.name, f"next/{column.name}")}
        out |= {column.name: Field((items, *column.shape), column.dtype, axis=0) for column in layout.rest}
        return out | {name: Field((items,), axis=0) for name in ("reward", "discount")}

    def rows(self, layout: Layout, writers: int) -> int:
        """Return the number of allocated rows; see the class docstring."""
        streams = writers * layout.envs
        items = self.capacity * (2 if self.evict == "proportional" else 1)
        unroll = layout.steps * layout.envs * (2 if layout.same_step else 1)
        extra = items // (64 if layout.row_bytes > 1024 else 8)
        rows = items + extra + self.evict_every + unroll + streams * (self.n_step + 2 * self.stack)
        if rows > 2**31 - 1:
            raise WiringError(f"A replay table holds at most 2**31 - 1 rows, this one needs {rows}.")
        return rows

    def arrays(self, unroll: Spec, writers: int = 1) -> Arrays:
        """Return the shape and dtype of every array that the table allocates, by name."""
        layout = self.layout(unroll)
        rows, streams, chunk = self.rows(layout, writers), writers * layout.envs, layout.steps * layout.envs
        hold, news = self.n_step + self.stack, chunk + layout.envs * self.n_step
        out = self.common_arrays(layout, rows, rows, writers, counters=8)
        out |= prefixed("rows", (rows,), ROW)
        out |= prefixed("streams", (streams, hold), {"hold": "int32", "reward": "float32", "q": "float32"})
        out |= prefixed("scratch", (news,), {"new_rows": "int32", "new_deltas": "float32"})
        out["scratch/victims"] = ((rows,), "int32")
        if self.evict == "proportional":
            for name, array in tree_arrays(rows).items():
                out[f"evictor/{name}"] = array
        return out
