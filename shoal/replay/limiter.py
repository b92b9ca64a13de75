"""The rate limiter of a replay: it holds back whichever of writers and reader is ahead. ``check`` rejects ratios that
would deadlock."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.api import WiringError

ROUNDING = 1e-12  # tolerance in samples; without it, rounding could block both sides where their limits meet


@dataclass(frozen=True)
class Ratio:
    """Ratio of sampled to inserted items (samples per insert, as in Reverb).

    Sampling waits for ``min_size`` items. Then ``|samples_per_insert * (inserted - min_size) - sampled| <= slack`` is
    maintained by holding back whichever side is ahead. ``slack`` is counted in samples. If ``samples_per_insert`` is
    None, neither side ever waits for the other.
    """

    min_size: int = 1
    samples_per_insert: float | None = None
    slack: float = 64.0


class RateLimiter:
    """Decides whether one channel may insert or sample now. ``items_per_insert`` is the largest number of items of one
    insertion.

    Counts are items since the start. An insertion that leaves at most ``min_size`` items is always allowed, as in
    Reverb (Cassirer et al. 2021), because the slack is never negative.
    """

    def __init__(self, ratio: Ratio, items_per_insert: int = 1):
        self.ratio, self.items_per_insert = ratio, items_per_insert

    def can_insert(self, inserted: int, sampled: int) -> bool:
        ratio = self.ratio
        if ratio.samples_per_insert is None:
            return True
        after = inserted + self.items_per_insert - ratio.min_size
        return ratio.samples_per_insert * after - sampled <= self._slack(sampled)

    def can_sample(self, size: int, inserted: int, sampled: int, n: int) -> bool:
        ratio = self.ratio
        if size < 1 or inserted < ratio.min_size:
            return False
        if ratio.samples_per_insert is None:
            return True
        return sampled + n - ratio.samples_per_insert * (inserted - ratio.min_size) <= self._slack(sampled)

    def _slack(self, sampled: int) -> float:
        return self.ratio.slack + ROUNDING * (1 + sampled)

    def samples_per_insert(self, inserted: int, sampled: int) -> float | None:
        """Return the ratio of samples to inserts so far, or None until there are more than ``min_size`` items."""
        beyond = inserted - self.ratio.min_size
        return sampled / beyond if beyond > 0 else None


def check(ratio: Ratio, batch: int, items_per_insert: int, capacity: int | None = None) -> None:
    """Raise WiringError if a run with this ratio could deadlock, with writers and reader waiting for each other.

    Let ``d = samples_per_insert * (inserted - min_size) - sampled``. Sampling waits while ``d < batch - slack``, and
    inserting waits while ``d > slack - samples_per_insert * items``. If the first bound is above the second, some d
    blocks both sides. At the start, one item short of ``min_size``, an insertion may bring all of its items but one
    beyond ``min_size``.
    """
    if batch < 1 or ratio.min_size < 1:
        raise WiringError(f"a replay needs a batch and a min_size of at least 1, got {batch} and {ratio.min_size}")
    if capacity is not None and ratio.min_size > capacity:
        raise WiringError(f"sampling would wait for {ratio.min_size} items, but the table holds {capacity}")
    if ratio.samples_per_insert is None:
        return
    if ratio.samples_per_insert <= 0:
        raise WiringError(f"samples_per_insert must be positive, got {ratio.samples_per_insert}")
    need = (batch + ratio.samples_per_insert * items_per_insert) / 2
    need = max(need, ratio.samples_per_insert * (items_per_insert - 1))
    if ratio.slack < need:
        raise WiringError(
            f"a slack of {ratio.slack:g} samples deadlocks: one batch samples {batch} items and one insertion brings "
            f"{items_per_insert} items worth {ratio.samples_per_insert * items_per_insert:g} samples, so writers and "
            f"reader could wait for each other; it must be at least {need:g}"
        )
