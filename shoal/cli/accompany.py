"""What goes beside a training: ``--watch``, a page of it, and ``--alert``, a command that is told of its end."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.api import UsageError
from shoal.paths import fixed
from shoal.settings.ranges import Positive
from shoal.types import Values

if TYPE_CHECKING:
    from shoal.run import Run, RunOptions
    from shoal.run.observers import Observer

FLAGS: Values = {"watch": bool, "alert": str, "alert-after": Positive}
Placed = tuple["RunOptions", Sequence["Observer"], Callable[["Run"], "Run"]]


@dataclass(frozen=True)
class Beside:
    """What a command was asked for beside its training."""

    watch: bool
    alert: str | None
    after: float | None

    @contextlib.contextmanager
    def of(self, system: str, env: str, options: RunOptions) -> Iterator[Placed]:
        """(the options with a directory, observers of the run, what is to be told of its end)."""
        if not self.watch and self.alert is None:
            yield options, (), lambda run: run
            return
        from shoal.run import ranks
        from shoal.run.alerts import AFTER, Alarm

        with contextlib.ExitStack() as stack:
            if options.run_dir is None:
                options = replace(options, run_dir=stack.enter_context(ranks.new_directory(system, env, options.seed)))
            assert options.run_dir is not None, "it was named or made"
            path = fixed(Path(options.run_dir))
            observers: list[Observer] = []
            if self.watch and not ranks.follows():
                from shoal.watch.beside import page

                observers.append(page_of_it := stack.enter_context(page(path)))
                print(f"shoal: watch this run at {page_of_it.address}", file=sys.stderr)
            alarm = None
            if self.alert is not None and not ranks.follows():
                alarm = stack.enter_context(Alarm(self.alert, path, self.after or AFTER))
                observers.append(alarm)

            def told(run: Run) -> Run:
                if alarm is not None:
                    alarm.result = run
                return run

            yield options, observers, told


def read(opts: Values) -> Beside:
    """Take the flags of this file out of ``opts``."""
    alert, after = opts.pop("alert", None), opts.pop("alert-after", None)
    if after is not None and alert is None:
        raise UsageError("--alert-after expects --alert COMMAND beside it")
    if alert is not None and not alert.strip():
        raise UsageError("--alert expects a command, found nothing")
    return Beside(bool(opts.pop("watch", False)), alert, after)
