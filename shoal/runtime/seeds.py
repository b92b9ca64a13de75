"""One seed per replica life: a stable function of (run seed, role, index, generation)."""

from __future__ import annotations

import zlib

import numpy as np


def replica_seed(seed: int, role: str, index: int, generation: int) -> int:
    """A seed below 2**31 (environment libraries want an int32), independent of launch order and of Python's hash."""
    entropy = [seed, zlib.crc32(role.encode()), index, generation]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint32)[0]) >> 1
