"""What goes beside a training, or a population of them: a page of it, and a command that is told of its end."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
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
    """What a training, or a population, leaves behind."""

    @property
    def ending(self) -> str:
        """How it ended, in words."""


Ended = TypeVar("Ended", bound=HasEnded)


@dataclass
class Company:
    """What goes beside one run: ``observers`` of its rows, and who is told how it ended."""

    observers: Sequence[Observer] = ()
    alarm: Alarm | None = None

    def row(self, row: Values) -> None:
        """Tell the observers of a row, where no run does."""
        for observer in self.observers:
            observer(dict(row))

    def ended(self, run: Ended) -> Ended:
        """Return the run, which has ended in order; its ``ending`` is what is told of it."""
        if self.alarm is not None:
            self.alarm.ended = run.ending
        return run


@dataclass(frozen=True)
class Beside:
    """What was asked for beside a training. UsageError for values of other kinds.

    alert: a command of the shell. alert_after: seconds without progress of which it is told; None: ``alerts.AFTER``.
    watch: serve a page until the end.
    """

    alert: str | None = None
    alert_after: float | None = None
    watch: bool = False
    flags: bool = field(default=False, compare=False)  # whether errors name flags

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
    def of(self, path: Path, part: str = "a replica") -> Iterator[Company]:
        """What goes beside the run in the directory ``path``, within the block; of several ranks, beside the first.
        part: what is restarted of it."""
        if ranks.follows() or (self.alert is None and not self.watch):
            yield Company()
            return
        with contextlib.ExitStack() as stack:
            observers: list[Observer] = []
            if self.watch:
                from shoal.watch.beside import page

                observers.append(page_of_it := stack.enter_context(page(path)))
                print(f"shoal: watch this run at {page_of_it.address}", file=sys.stderr)
            alarm = None
            if self.alert is not None:
                alarm = stack.enter_context(Alarm(self.alert, path, self.alert_after or AFTER, part))
                observers.append(alarm)
            yield Company(observers, alarm)


ALONE = Beside()


def read(opts: Values) -> Beside:
    """Take the flags of this file out of ``opts``."""
    alert, after, watch = (opts.pop(name, None) for name in ("alert", "alert-after", "watch"))
    return Beside(alert, after, bool(watch), flags=True)
