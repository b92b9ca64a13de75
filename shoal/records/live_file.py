"""``live.json``: what the replicas and channels of a running program do at this moment, for whoever watches the run."""

from __future__ import annotations

import json
from pathlib import Path

from shoal.metering.aggregator import Snapshot
from shoal.records.whole_files import write_whole
from shoal.untrusted import RUN_FORMAT

NAME = "live.json"


class LiveFile:
    """Write the file anew for each snapshot; not at all where the runtime tells nothing of its replicas."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._before: Snapshot | None = None

    def update(self, snapshot: Snapshot) -> None:
        """Write what ``snapshot`` says; OSError where that cannot be written."""
        if not snapshot.phases:
            return
        before, self._before = self._before, snapshot
        rates: dict[str, float] = {}
        if before is not None and snapshot.seconds > before.seconds:
            seconds = snapshot.seconds - before.seconds
            rates = {name: round((n - before.moved.get(name, 0)) / seconds, 3) for name, n in snapshot.moved.items()}
        facts = {
            "format": RUN_FORMAT, "row": snapshot.row, "seconds": round(snapshot.seconds, 3),
            "phases": snapshot.phases, "items_per_second": rates,
        }  # fmt: skip
        write_whole(self._path, json.dumps(facts) + "\n")
