"""Seeds: each life of a replica has a block of its own, so that no two environments of a run ever share one."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

BLOCK = 4096  # seeds of one life: its own, and those of up to 4,095 environments
LIVES = 2**31 // BLOCK  # environment libraries want an int32


def replica_seed(seed: int, counts: Mapping[str, int], role: str, index: int, generation: int) -> int:
    """The first seed of a life's block; ``counts``: replicas of every role of the program, in declared order.

    Lives are numbered and the numbers permuted (by an odd multiplier and an offset, modulo a power of two), so blocks
    are distinct over roles, indices and generations as long as there are at most LIVES of them: 524,288. Independent
    of the order in which replicas start.
    """
    names = list(counts)
    number = sum(counts[name] for name in names[: names.index(role)]) + index
    life = generation * sum(counts.values()) + number
    multiplier, offset = np.random.SeedSequence(seed).generate_state(2).tolist()
    return int((life * (multiplier | 1) + offset) % LIVES) * BLOCK


def table_seed(seed: int, channel: str, generation: int) -> int:
    """Of a replay table: a stable function of run seed, channel and the generation of its reader."""
    entropy = [seed, zlib.crc32(channel.encode()), generation]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint32)[0])
