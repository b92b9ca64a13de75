"""A sampler class of the user's: its errors are reported in one sentence, and its draws are checked against the
table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from shoal import own_code
from shoal.errors import ShoalError, UsageError
from shoal.replay.sampler import Sampler, live_rows


class UserSampler(Sampler):
    """Wraps an object of the user's class ``cls`` and checks what it draws, because the table reads drawn rows without
    bounds checks."""

    def __init__(self, cls: Any, *given: Any) -> None:
        super().__init__(*given)
        self._name = cls.__qualname__
        with self._reporting_errors("__init__"):
            self._sampler = cls(*given)
        # may be outdated, as after a restore; updated before a draw is refused
        self._live = np.zeros(len(self.order), bool)

    def insert(self, rows: np.ndarray, priorities: np.ndarray) -> None:
        self._live[rows] = True
        with self._reporting_errors("insert"):
            self._sampler.insert(rows, priorities)

    def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
        with self._reporting_errors("update"):
            self._sampler.update(rows, priorities)

    def remove(self, rows: np.ndarray) -> None:
        self._live[rows] = False
        with self._reporting_errors("remove"):
            self._sampler.remove(rows)

    def draw(self, rows: np.ndarray, probs: np.ndarray) -> None:
        """Draw by the user's method. Raises ShoalError if a row holds no live item, or if a probability is outside (0,
        1]."""
        rows.fill(-1)
        probs.fill(-1)
        with self._reporting_errors("draw"):
            self._sampler.draw(rows, probs)
        if not self._all_live(rows):
            wrong = next(int(row) for row in rows if not self._all_live(np.array([row])))
            raise ShoalError(self._bad_draw("every row that of a live item (live_rows)", "rows", wrong))
        likely = (probs > 0) & (probs <= 1)
        if not likely.all():
            found = float(probs[~likely][0])
            raise ShoalError(self._bad_draw("every probability above 0 and at most 1", "probs", found))

    def mass(self) -> float:
        with self._reporting_errors("mass"):
            return float(self._sampler.mass())

    def check_valid(self) -> tuple[bool, str]:
        with self._reporting_errors("check_valid"):
            found: tuple[bool, str] = getattr(self._sampler, "check_valid", super().check_valid)()
            return found

    def rehearse(self) -> None:
        with self._reporting_errors("rehearse"):
            getattr(self._sampler, "rehearse", super().rehearse)()

    def _all_live(self, rows: np.ndarray) -> bool:
        if rows.min() < 0 or rows.max() >= len(self._live):
            return False
        if not self._live[rows].all():
            self._live[:] = False
            self._live[live_rows(self.order, self.counters)] = True
        return bool(self._live[rows].all())

    def _bad_draw(self, what: str, array: str, found: float) -> str:
        return (
            f"the sampler '{self._name}': draw must fill in {what}, found {found:g} in {array} (-1: nothing was "
            f"written: assign to {array}[:])"
        )

    @contextmanager
    def _reporting_errors(self, method: str) -> Iterator[None]:
        """Turn any exception that the user's method raises into a ShoalError of one sentence."""
        try:
            yield
        except (ShoalError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            said = f"raised {type(error).__name__} in {method}: {own_code.told(error)}"
            raise ShoalError(f"the sampler '{self._name}' {said}") from error


def user_arrays(cls: Any, items: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the arrays that ``cls.arrays(items)`` asks for. Raises UsageError if it does not return shapes and dtypes
    by name."""
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
