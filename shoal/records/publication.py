"""The newest parameters of a run that goes on, in its directory for whoever evaluates it meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from shoal.held import held
from shoal.records.param_files import NEWEST, save_params
from shoal.records.report import Report

PUBLISH_SECONDS = 10.0  # seconds between two publications
MAX_TIME_SHARE = 0.005  # of the time, at most, that they take
SOON = 0.5  # seconds until another look where nothing is published yet


class Publication:
    """Call ``look`` now and then: it writes ``newest/`` as soon as there are parameters, and every
    ``PUBLISH_SECONDS`` from then on, or less often where writing takes long. A disk that is full costs the
    publication, not the training.
    """

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / NEWEST
        self._due = 0.0

    def look(self, run: Callable[[], Report]) -> None:
        """Publish, if that is due, what ``run`` returns, with the parameters published last."""
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
