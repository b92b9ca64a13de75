"""What monitors a training or a population: its web page, and alerts."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from shoal.api import UsageError
from shoal.run import ranks
from shoal.run.alerts import AFTER, Alarm
from shoal.run.observers import Observer
from shoal.settings.flags import expect
from shoal.settings.ranges import Positive
from shoal.types import Values

FLAGS: Values = {"watch": bool, "alert": str, "alert-after": Positive}


class HasEnded(Protocol):
    """A training or a population that has ended."""

    @property
    def ending(self) -> str:
        """Return how it ended, in words."""


Ended = TypeVar("Ended", bound=HasEnded)


@dataclass
class Monitors:
    """The monitors of one run: ``observers`` of its rows, and the alarm that is told how it ended."""

    observers: Sequence[Observer] = ()
    alarm: Alarm | None = None

    def row(self, row: Values) -> None:
        """Pass a row to the observers, if no run does."""
        for observer in self.observers:
            observer(dict(row))

    def failed(self, parts: Mapping[str, str]) -> None:
        """Report members of a population that failed, see ``Alarm.failed``."""
        if self.alarm is not None:
            self.alarm.failed(parts)

    def ended(self, run: Ended) -> Ended:
        """Report the ``ending`` of a run that ended normally, and return the run."""
        if self.alarm is not None:
            self.alarm.ended = run.ending
        return run


@dataclass(frozen=True)
class MonitorOptions:
    """Which monitors a training has. Raises UsageError for values of the wrong kind.

    alert: a shell command. alert_after: seconds without progress before an alert; None: ``alerts.AFTER``. watch:
    whether to serve a web page until the end.
    """

    alert: str | None = None
    alert_after: float | None = None
    watch: bool = False
    flags: bool = field(default=False, compare=False)  # whether error messages name flags

    def __post_init__(self) -> None:
        alert, after = ("--alert", "--alert-after") if self.flags else ("'alert'", "'alert_after'")
        if self.alert is not None and not expect(str, self.alert, alert).strip():
            raise UsageError(f"{alert} expects a command, found nothing")
        if self.alert_after is not None:
            expect(Positive, self.alert_after, after)
            if self.alert is None:
                raise UsageError(f"{after} expects {alert} COMMAND beside it")
        expect(bool, self.watch, "--watch" if self.flags else "'watch'")

    @contextlib.contextmanager
    def running(self, path: Path) -> Iterator[Monitors]:
        """Yield the monitors of the run in the directory ``path`` within the block; of several ranks, only the first
        has any."""
        if ranks.follows() or (self.alert is None and not self.watch):
            yield Monitors()
            return
        with contextlib.ExitStack() as stack:
            observers: list[Observer] = []
            if self.watch:
                from shoal.watch.page_process import page

                observers.append(page_of_it := stack.enter_context(page(path)))
                print(f"shoal: watch this run at {page_of_it.address}", file=sys.stderr)
            alarm = None
            if self.alert is not None:
                alarm = stack.enter_context(Alarm(self.alert, path, self.alert_after or AFTER))
                observers.append(alarm)
            yield Monitors(observers, alarm)


NO_MONITORS = MonitorOptions()


def read(opts: Values) -> MonitorOptions:
    """Remove the flags of this module from ``opts`` and return their values."""
    alert, after, watch = (opts.pop(name, None) for name in ("alert", "alert-after", "watch"))
    return MonitorOptions(alert, after, bool(watch), flags=True)
