"""A sampler of the user's own: whatever goes wrong in it is one sentence, and it cannot lead outside of the table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from shoal import own_code
from shoal.errors import ShoalError, UsageError
from shoal.replay.sampler import Sampler, live_rows


class OwnSampler(Sampler):
    """A sampler of the class ``cls``, whose draws are checked: the rows that it fills in are read without a look."""

    def __init__(self, cls: Any, *given: Any) -> None:
        super().__init__(*given)
        self._name = cls.__qualname__
        with self._asked("__init__"):
            self._own = cls(*given)
        self._live = np.zeros(len(self.order), bool)  # found out anew before a draw is refused, as after a restore

    def insert(self, rows: np.ndarray, priorities: np.ndarray) -> None:
        self._live[rows] = True
        with self._asked("insert"):
            self._own.insert(rows, priorities)

    def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
        with self._asked("update"):
            self._own.update(rows, priorities)

    def remove(self, rows: np.ndarray) -> None:
        self._live[rows] = False
        with self._asked("remove"):
            self._own.remove(rows)

    def draw(self, rows: np.ndarray, probs: np.ndarray) -> None:
        """Let it draw. ShoalError where a row is not that of a live item, or a probability not one."""
        rows.fill(-1)
        probs.fill(-1)
        with self._asked("draw"):
            self._own.draw(rows, probs)
        if not self._all_live(rows):
            wrong = next(int(row) for row in rows if not self._all_live(np.array([row])))
            raise ShoalError(self._expected("every row that of a live item (live_rows)", "rows", wrong))
        likely = (probs > 0) & (probs <= 1)
        if not likely.all():
            found = float(probs[~likely][0])
            raise ShoalError(self._expected("every probability above 0 and at most 1", "probs", found))

    def mass(self) -> float:
        with self._asked("mass"):
            return float(self._own.mass())

    def check_valid(self) -> tuple[bool, str]:
        with self._asked("check_valid"):
            found: tuple[bool, str] = getattr(self._own, "check_valid", super().check_valid)()
            return found

    def rehearse(self) -> None:
        with self._asked("rehearse"):
            getattr(self._own, "rehearse", super().rehearse)()

    def _all_live(self, rows: np.ndarray) -> bool:
        if rows.min() < 0 or rows.max() >= len(self._live):
            return False
        if not self._live[rows].all():
            self._live[:] = False
            self._live[live_rows(self.order, self.counters)] = True
        return bool(self._live[rows].all())

    def _expected(self, what: str, array: str, found: float) -> str:
        return (
            f"the sampler '{self._name}': draw must fill in {what}, found {found:g} in {array} (-1: nothing was "
            f"written: assign to {array}[:])"
        )

    @contextmanager
    def _asked(self, method: str) -> Iterator[None]:
        """Whatever the user's method raises is one sentence."""
        try:
            yield
        except (ShoalError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            said = f"raised {type(error).__name__} in {method}: {own_code.told(error)}"
            raise ShoalError(f"the sampler '{self._name}' {said}") from error


def own_arrays(cls: Any, items: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return what ``cls.arrays(items)`` says, checked. UsageError where that is no shapes and dtypes by name."""
    name = cls.__qualname__
    with own_code.failing(f"the sampler '{name}': arrays({items})"):
        said = cls.arrays(items) if hasattr(cls, "arrays") else {}
    try:
        return {str(key): (tuple(map(int, shape)), np.dtype(kind).name) for key, (shape, kind) in said.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise UsageError(
            f"the sampler '{name}': arrays({items}) expects the shape and the dtype of each array by its name, such as "
            f"{{'sum': (({items},), 'float64')}}, found {said!r:.80}"
        ) from error
