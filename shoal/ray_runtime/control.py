"""The first lines of every arena: what each replica has counted and what it does, copied to and fro between nodes."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from shoal.shm.arena import Arena
from shoal.shm.layout import ALIGN, CHECKPOINT, STOP, Plan

Replica = tuple[str, int]  # role and index


class Control:
    """The control lines of an arena: a status line and a pulse for each replica (see ``shm.layout.Plan``)."""

    def __init__(self, arena: Arena, plan: Plan) -> None:
        self._plan = plan
        self.replicas = [(role, i) for role, n in plan.counts.items() for i in range(n)]
        lines = [*plan.status.items(), *plan.pulses.items()]
        size = max((start + plan.counts[role] * ALIGN for role, start in lines), default=ALIGN)
        self._bytes = arena.array(0, (size,), np.uint8)
        self._words = arena.words

    def copy(self) -> np.ndarray:
        """All lines, as bytes."""
        out: np.ndarray = self._bytes.copy()
        return out

    def take(self, block: np.ndarray, replicas: Collection[Replica]) -> None:
        """Copy in the lines of some replicas from those of another arena."""
        for role, index in replicas:
            for start in (self._plan.status[role], self._plan.pulses[role]):
                at = slice(start + index * ALIGN, start + (index + 1) * ALIGN)
                self._bytes[at] = block[at]

    def status(self, replica: Replica) -> int:
        """The first word of a replica's status line."""
        return self._plan.status[replica[0]] // 8 + replica[1] * (ALIGN // 8)

    @property
    def stop(self) -> int:
        return int(self._words[STOP // 8])

    @property
    def checkpoint(self) -> int:
        return int(self._words[CHECKPOINT // 8])

    def order(self, stop: int, checkpoint: int) -> None:
        """What the driver asks of all replicas; a run that has been told to stop never goes on."""
        self._words[STOP // 8] |= stop
        self._words[CHECKPOINT // 8] = max(checkpoint, self._words[CHECKPOINT // 8])
