"""The newest parameters of a running training, written to its directory for evaluation meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from shoal.held import held
from shoal.records.param_files import NEWEST, save_params
from shoal.records.report import Report

PUBLISH_SECONDS = 10.0  # seconds between two publications
MAX_TIME_SHARE = 0.005  # largest share of the time that publications may take
SOON = 0.5  # seconds between attempts before the first publication


class Publication:
    """Publishes parameters when ``look`` is called: as soon as there are any and then every ``PUBLISH_SECONDS``, or
    less often if writing is slow. A full disk skips the publication and does not stop training."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / NEWEST
        self._due = 0.0

    def look(self, run: Callable[[], Report]) -> None:
        """If a publication is due, write the parameters of the report that ``run`` returns."""
        if (began := time.monotonic()) < self._due:
            return
        report = run()
        if not report.params:
            self._due = began + SOON
            return
        with contextlib.suppress(OSError), held(self._folder, make=True) as folder:
            save_params(folder, report)
        now = time.monotonic()
        self._due = now + max(PUBLISH_SECONDS, (now - began) / MAX_TIME_SHARE)
