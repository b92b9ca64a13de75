"""A replay in several tables, each in a process of its own, that is drawn from as if it were one table."""

from __future__ import annotations

from collections import deque
from typing import Protocol

import numpy as np
import torch

from shoal.api import Arrays, Batch, Board, Context, Field, Reader, Reducer, Spec, Tensors, Writer
from shoal.types import State

USED, KEYS, PROBS, SIZE, ROUND = (f"replay/{name}" for name in ("used", "keys", "probs", "size", "round"))
_Part = tuple[int, Tensors]  # number of the batch, items
BOARD_BATCHES = 16  # batches whose priorities are on the board: so many may pass between two looks of a shard


class Table(Reader, Protocol):
    """The end of a replay channel that has the table."""

    def mass(self) -> float: ...


def part_spec(items: Spec, batch: int) -> Spec:
    """Return the spec of a shard's part of each batch: ``items`` (a batch's), of which the first ``USED`` are there,
    and for each its key (int64) and the probability of having drawn it; the size of the whole replay; the number of the
    batch."""
    return {
        **items, KEYS: Field((batch,), "int64", 0), PROBS: Field((batch,), "float32", 0),
        USED: Field((1,), "int64", 0), SIZE: Field((1,), "int64", 0), ROUND: Field((1,), "int64", 0),
    }  # fmt: skip


def masses_spec(shards: int) -> Spec:
    """Return the spec of the reduction before each batch: everyone's mass, the sizes, and what draws the batch's
    parts."""
    return {
        "mass": Field((shards,), "float64", 0), "size": Field((1,), "int64", 0), "draw": Field((1,), "int64", 0),
    }  # fmt: skip


def learned_spec(batch: int) -> Spec:
    """The board on which a learner puts the priorities of its last ``BOARD_BATCHES`` batches; keys of -1 are none."""
    return {
        "keys": Field((BOARD_BATCHES, batch), "int64", 0), "priorities": Field((BOARD_BATCHES, batch), "float32", 0),
    }  # fmt: skip


class ShardRole:
    """One table of several. For each batch all shards tell each other the sum of their weights; from these sums and a
    common random number each works out how many of the batch's items are its own (a multinomial draw, whose
    probabilities are the shares of the sums), and sends so many of a batch that it drew from its table when it told its
    sum. An item of weight ``w`` is drawn with probability ``w / (sum over all shards)``, as from one table.

    A shard draws a whole batch of candidates for each batch, so its ratio of samples to inserts counts those. Wherever
    it waits, it is between two steps.
    """

    def __init__(
        self, ctx: Context, transitions: Table, masses: Reducer, learned: Board, samples: Writer, items: Spec,
        batch: int,
    ) -> None:  # fmt: skip
        self.ctx, self.transitions, self.masses, self.learned, self.samples = ctx, transitions, masses, learned, samples
        self.axis = {name: f.axis for name, f in items.items()}
        self.batch, self.seen, self.round = batch, 0, 0
        self.drawn: Batch | None = None  # candidates; what ``masses`` tells is of the moment when they were drawn
        self.count, self.shares, self.size = -1, np.zeros(0), 0  # of this batch, once it is known

    def step(self) -> None:
        if self.count >= 0:
            self._send()
        elif self.masses.pending:
            self._divide(self.masses.get())
            if self.count == 0 or self.samples.ready():
                self._send()
        else:
            self._draw()

    def _draw(self) -> None:
        """Draw candidates, and send the total weight that they were drawn from."""
        self.ctx.metrics.enter("priorities")
        self._learn()
        self.ctx.metrics.enter("batch")
        self.drawn = self.transitions.get()
        number = np.random.SeedSequence([self.ctx.seed, self.round]).generate_state(1, np.uint32).item()
        with self.masses.slot() as slot:
            slot["mass"][:], slot["size"][:] = 0.0, self.drawn.size
            slot["mass"][self.ctx.index] = self.transitions.mass()
            slot["draw"][:] = number if self.ctx.index == 0 else 0
        self.round += 1

    def _divide(self, told: Tensors) -> None:
        """Return the number of the batch's items that this shard provides."""
        mass = told["mass"].numpy()
        self.shares, self.size = mass / mass.sum(), int(told["size"])
        counts = np.random.default_rng(int(told["draw"])).multinomial(self.batch, self.shares)
        self.count = int(counts[self.ctx.index])

    def _send(self) -> None:
        metrics, drawn, n = self.ctx.metrics, self.drawn, self.count
        assert drawn is not None and drawn.keys is not None and drawn.probs is not None
        metrics.enter("publish")
        rng = np.random.default_rng([self.ctx.seed, self.round])
        chosen = torch.from_numpy(rng.permutation(self.batch)[:n])  # a table draws one in each part of its mass in turn
        index, shards = self.ctx.index, self.ctx.replicas
        with self.samples.slot() as slot:
            for name, items in drawn.items.items():
                axis = self.axis[name]
                torch.from_numpy(slot[name]).narrow(axis, 0, n).copy_(items.index_select(axis, chosen))
            slot[KEYS][:n] = drawn.keys[chosen].numpy() * shards + index
            slot[PROBS][:n] = drawn.probs[chosen].numpy() * self.shares[index]
            slot[USED][:], slot[SIZE][:], slot[ROUND][:] = n, self.size, self.round
        metrics.record("replay_share", float(self.shares[index]))
        self.count = -1

    def _learn(self) -> None:
        """Apply the priorities that the learner has written to the board since the last call."""
        rows = self.learned.get()
        puts, index, shards = int(rows.puts[0]), self.ctx.index, self.ctx.replicas
        for update in range(max(self.seen, puts - BOARD_BATCHES), puts):
            keys = rows.values["keys"][0, update % BOARD_BATCHES]
            own = (keys >= 0) & (keys % shards == index)
            priorities = rows.values["priorities"][0, update % BOARD_BATCHES][own]
            self.transitions.reprioritise(torch.from_numpy(keys[own] // shards), torch.from_numpy(priorities))
        self.seen = puts

    def state_dict(self) -> State:
        drawn = self.drawn
        return {
            "drawn": None if drawn is None else [dict(drawn.items), drawn.keys, drawn.probs, drawn.size],
            "seen": self.seen, "round": self.round, "count": self.count, "shares": self.shares, "size": self.size,
        }  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        self.drawn = None if state["drawn"] is None else Batch(*state["drawn"])
        self.seen, self.round, self.count = state["seen"], state["round"], state["count"]
        if not self.ctx.exact:  # what the other shards had sent of this batch is lost
            self.count = -1
        self.shares, self.size = np.asarray(state["shares"]), state["size"]


class Gathered:
    """The learner's end of a replay in shards (an ``api.Reader``): batches of their parts, and the board on which they
    find their priorities."""

    def __init__(self, samples: Reader, learned: Board, items: Spec, batch: int) -> None:
        self._samples, self._learned, self._items = samples, learned, list(items)
        self._axis = {name: f.axis for name, f in part_spec(items, batch).items() if name not in (USED, SIZE, ROUND)}
        self._batch = batch
        self._joined: Tensors = {}
        self._kept: list[deque[_Part]] = []  # of each shard, parts of batches of which others are missing
        self._count = 0  # batches whose priorities were put
        self._row: Arrays = {}

    def ready(self) -> bool:
        return self._samples.ready() and self._learned.ready()

    poll = ready

    def get(self) -> Batch:
        """The next batch, the items of shard 0 first; valid until the next."""
        while True:
            found = self._samples.get().items
            sizes, rounds = found[SIZE].tolist(), found[ROUND].tolist()
            self._kept = self._kept or [deque() for _ in rounds]
            for k, (n, round) in enumerate(zip(found[USED].tolist(), rounds, strict=True)):
                part = {name: found[name].narrow(axis, k * self._batch, n) for name, axis in self._axis.items()}
                self._kept[k].append((round, part))
            newest = max(parts[0][0] for parts in self._kept)
            for parts in self._kept:  # after a resume, some shards may be a batch ahead
                while parts and parts[0][0] < newest:
                    parts.popleft()
            if all(self._kept):
                return self._join([parts.popleft()[1] for parts in self._kept], sizes[0])
            self._keep()

    def _join(self, parts: list[Tensors], size: int) -> Batch:
        for name, axis in self._axis.items():
            arrays = [part[name] for part in parts]
            if name in self._joined:
                torch.cat(arrays, axis, out=self._joined[name])
            else:
                self._joined[name] = torch.cat(arrays, axis)
        self._keep()
        items = {name: self._joined[name] for name in self._items}
        return Batch(items, self._joined[KEYS], self._joined[PROBS], size)

    def _keep(self) -> None:
        """Copy what waits for its batch out of the channel's memory."""
        for parts in self._kept:
            for i, (round, part) in enumerate(parts):
                parts[i] = round, {name: t.clone() for name, t in part.items()}

    def reprioritise(self, keys: torch.Tensor, priorities: torch.Tensor) -> None:
        if not self._row:
            rows = self._learned.get()
            self._count = int(rows.puts[0])  # an earlier launch of the run may have put some
            self._row = {name: array[0].copy() for name, array in rows.values.items()}
            if not self._count:
                self._row["keys"][:] = -1
        at, n = self._count % BOARD_BATCHES, len(keys)
        self._row["keys"][at], self._row["priorities"][at] = -1, 0.0
        self._row["keys"][at, :n] = keys.cpu().numpy()
        self._row["priorities"][at, :n] = priorities.detach().float().cpu().numpy()
        self._learned.put(self._row)
        self._count += 1
