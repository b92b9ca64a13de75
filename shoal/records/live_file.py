"""``live.json``: the current activity of a running program's replicas and channels, for the web page and ``shoal
watch``."""

from __future__ import annotations

import json
from pathlib import Path

from shoal.metering.aggregator import Snapshot
from shoal.records.atomic_write import write_atomic
from shoal.untrusted import RUN_FORMAT

NAME = "live.json"


class LiveFile:
    """Rewrites the file for each snapshot, or never if the runtime reports on neither its replicas nor its
    channels."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._before: Snapshot | None = None

    def update(self, snapshot: Snapshot) -> None:
        """Write the file for ``snapshot``. Raises OSError if it cannot be written."""
        if not snapshot.phases and not snapshot.moved:
            return
        before, self._before = self._before, snapshot
        rates: dict[str, float] = {}
        if before is not None and snapshot.seconds > before.seconds:
            seconds = snapshot.seconds - before.seconds
            for name, n in snapshot.moved.items():  # fewer than before, where a node of a cluster was lost
                rates[name] = round(max(0, n - before.moved.get(name, 0)) / seconds, 3)
        facts = {
            "format": RUN_FORMAT, "row": snapshot.row, "seconds": round(snapshot.seconds, 3),
            "phases": snapshot.phases, "items_per_second": rates,
        }  # fmt: skip
        write_atomic(self._path, json.dumps(facts) + "\n")
