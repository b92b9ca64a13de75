"""RateLimiter: who waits for whom between the writers and the reader of a replay; ``check`` finds deadlocks early."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.api import WiringError

ROUNDING = 1e-12  # of a count of samples: without, both sides may wait where they should just meet


@dataclass(frozen=True)
class Ratio:
    """Ratio of sampled to inserted items (samples per insert, as in Reverb). Sampling waits for ``min_size`` items, and
    afterwards keeps ``|samples_per_insert * (inserted - min_size) - sampled| <= slack`` by holding back whichever side
    is ahead; ``slack`` is in samples. None: neither side ever waits for the other.
    """

    min_size: int = 1
    samples_per_insert: float | None = None
    slack: float = 64.0


class RateLimiter:
    """Decides for one channel; ``items_per_insert`` is how many items one insertion may bring.

    Counts are items since the start. An insertion after which there are no more than ``min_size`` items is always
    allowed (as in Reverb: Cassirer et al. 2021), as the slack is no less than 0.
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
        """Return the ratio so far; None before more than ``min_size`` items."""
        beyond = inserted - self.ratio.min_size
        return sampled / beyond if beyond > 0 else None


def check(ratio: Ratio, batch: int, items_per_insert: int, capacity: int | None = None) -> None:
    """WiringError if a run with this ratio could come to a stand: both sides waiting for each other.

    Sampling waits while ``d < batch - slack`` and inserting while ``d > slack - samples_per_insert * items``, where
    ``d = samples_per_insert * (inserted - min_size) - sampled``; some d does both unless the two meet. At the start,
    one item short of ``min_size``, an insertion may bring all of its items but one beyond it.
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
