"""What processes of torchrun tell each other: with every item that they reduce, and as rows of boards, by the store.

With every item that a rank puts travel a few numbers of its own, the ``Remarks``. All ranks read their sums after the
same round, so that whatever these decide (the end of the run, a report, a checkpoint), all do it at the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from shoal.api import Arrays, Rows, ShoalError, Tensors, UsageError
from shoal.program import Channel
from shoal.runtime.channel_checks import check_item
from shoal.serial.channels import SerialParamsReader
from shoal.torchrun.group import Group

REMARKS = ("steps", "updates", "interrupted", "terminated", "ended", "report", "save")
WISHES = slice(REMARKS.index("report"), None)  # that all have heard when they were said once


class Remarks:
    """What this rank says with its next item, by the names of ``REMARKS``, and what all said with the last, added up.

    steps, updates: counted so far; interrupted, terminated: whether a signal came; and, of the first rank alone, ended:
    the number of the limit that the run has reached, or 0; report, save: whether it wants figures, or a checkpoint.
    """

    size = len(REMARKS)

    def __init__(self, now: Callable[[], Mapping[str, float]]) -> None:
        self._now, self._mine = now, np.zeros(len(REMARKS))  # now: asked with every item
        self._heard: np.ndarray | None = None

    def say(self, **values: float) -> None:
        for name, value in values.items():
            self._mine[REMARKS.index(name)] = value

    def said(self) -> np.ndarray:
        """Return the remarks that are sent with an item that is put now."""
        self.say(**self._now())
        return self._mine

    def hear(self, sums: np.ndarray) -> None:
        """What all ranks said with the items of a round."""
        self._mine[WISHES][sums[WISHES] > 0] = 0
        self._heard = sums.copy() if self._heard is None else np.maximum(self._heard, sums)

    def news(self) -> dict[str, int] | None:
        """Return the remarks received since the last call, by name, or None if there are none."""
        heard, self._heard = self._heard, None
        return None if heard is None else dict(zip(REMARKS, heard.astype(np.int64).tolist(), strict=True))


class FirstParams(SerialParamsReader):
    """A rank's read end of a params channel: of what the first rank had published when the ranks began, once."""

    def latest(self, newer_than: int = -1) -> tuple[int, Tensors] | None:
        if self.seen:
            raise UsageError(
                f"channel '{self.store.channel.name}' is read again, but under torchrun ranks get the parameters that "
                "the first rank begins with, and none later: let each keep its own, moved by what all reduce"
            )
        return super().latest(newer_than)


class BoardEnd:
    """A rank's end of a board (an ``api.Board``): its row is a value in the store that torchrun started."""

    def __init__(self, group: Group, channel: Channel, life: str) -> None:
        self.channel, self._group, self._life = channel, group, life
        self.row: tuple[Arrays, int] = ({k: np.zeros(f.shape, f.dtype) for k, f in channel.spec.items()}, 0)
        fields = [(f"{number}", f.dtype, f.shape) for number, f in enumerate(channel.spec.values())]
        self._format = np.dtype([("puts", np.int64), *fields])  # of a row in the store

    def ready(self) -> bool:
        return True

    def put(self, row: Arrays) -> None:
        check_item(self.channel, row)
        copied = {name: np.array(row[name], f.dtype) for name, f in self.channel.spec.items()}
        self.place(copied, self.row[1] + 1)

    def get(self) -> Rows:
        found = self._group.get([self._key(rank) for rank in range(self._group.place.world)])
        if {len(row) for row in found} != {self._format.itemsize}:
            raise ShoalError(f"a row of the board '{self.channel.name}' in torchrun's store is damaged")
        rows = np.frombuffer(b"".join(found), self._format)
        return Rows(
            {name: rows[f"{number}"].copy() for number, name in enumerate(self.channel.spec)}, rows["puts"].copy()
        )

    def place(self, row: Arrays, puts: int) -> None:
        """Let this be its row, the last of so many."""
        self.row = row, puts
        packed = np.array((puts, *(row[name] for name in self.channel.spec)), self._format)
        self._group.set(self._key(self._group.place.rank), packed.tobytes())

    def _key(self, rank: int) -> str:
        return f"board/{self._life}/{self.channel.name}/{rank}"
