"""The user's observers: functions that receive the metrics of a run while it trains, and may end it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from shoal.api import ShoalError, UsageError
from shoal.metering.aggregator import Snapshot
from shoal.records.metric_files import performance_row, training_row
from shoal.run.alerts import Alarm
from shoal.types import Values

Observer = Callable[[Values], object]


def observing(functions: Any) -> Sequence[Observer]:
    """Return the functions in the argument ``observers``, which may be a single one. Raises UsageError for anything
    else."""
    several = [functions] if callable(functions) else functions
    if not isinstance(several, Sequence) or not all(map(callable, several)):
        raise UsageError(f"'observers' expects functions, found {functions!r}")
    return several


class Observers:
    """Passes each row to ``functions``, as a dict of its own. A function that returns True ends the run normally. One
    that raises ends it too, and ``check`` then raises an error that names it."""

    def __init__(self, functions: Sequence[Observer]) -> None:
        self.functions = functions
        self._ends = False
        self._looked = 0.0  # monotonic seconds of the last check
        self._failed: tuple[str, Exception] | None = None

    def update(self, snapshot: Snapshot) -> None:
        row = training_row(snapshot) | performance_row(snapshot)
        for function in self.functions:
            if self._failed is not None:
                return
            try:
                answer = function(dict(row))
                if isinstance(function, Alarm):
                    function.failed(snapshot.failed)
            except Exception as error:  # noqa: BLE001 - a user's function may raise anything
                self._failed = (_name(function), error)
            else:
                self._ends |= isinstance(answer, (bool, np.bool_)) and bool(answer)

    def end(self) -> bool:
        """Return True if the run should end. The runtime asks repeatedly."""
        self._looked = time.monotonic()
        return self._ends or self._failed is not None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Return a context in which the runtime runs. An ``Alarm`` among the functions then detects a runtime that
        hangs."""
        self._looked = time.monotonic()
        with contextlib.ExitStack() as stack:
            for function in self.functions:
                if isinstance(function, Alarm):
                    stack.enter_context(function.listening(lambda: self._looked))
            yield

    def check(self) -> None:
        """Raise ShoalError if one of the functions has raised."""
        if self._failed is not None:
            name, error = self._failed
            raise ShoalError(f"the observer {name} raised {type(error).__name__}: {error}") from error


def _name(function: Observer) -> str:
    return f"'{getattr(function, '__qualname__', type(function).__qualname__)}'"
