"""A replay in a process of its own: many actors fill it, and several readers draw from it."""

from __future__ import annotations

from shoal.api import Arrays, Context, PartsWriter, Reader
from shoal.types import State


class ReplayRole:
    """One step = one sample of the replay, of which each reader gets its part, as a batch without priorities. Where a
    reader has no room for it, the next step waits, and does nothing else: so that the role is between two steps, and
    can be saved, wherever it waits.

    readers: of ``batches``, a divided queue.
    """

    def __init__(self, ctx: Context, transitions: Reader, batches: PartsWriter, readers: int) -> None:
        self.ctx, self.transitions, self.batches = ctx, transitions, batches
        self.versions = (0,) * readers  # of parameters: transitions are of many
        self.held: Arrays | None = None  # drawn, and not yet sent

    def step(self) -> None:
        metrics = self.ctx.metrics
        if self.held is None:
            metrics.enter("batch")
            batch = self.transitions.get()
            metrics.record("replay_size", batch.size)
            self.held = {name: tensor.numpy() for name, tensor in batch.items.items()}
            if not self.batches.ready():
                return
        metrics.enter("publish")
        self.batches.put(self.held, self.versions)
        metrics.count("bytes", sum(array.nbytes for array in self.held.values()))
        self.held = None

    def state_dict(self) -> State:
        return {"held": self.held}

    def load_state_dict(self, state: State) -> None:
        self.held = state["held"]
