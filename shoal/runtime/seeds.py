"""Seeds: each process of a replica has its own block, also after a restart, so no two environments of a run share a
seed."""

from __future__ import annotations

import zlib

import numpy as np

BLOCK = 4096  # seeds of one life: its own, and those of up to 4,095 environments
LIVES = 2**31 // BLOCK  # environment libraries want an int32
LAUNCH = 4096  # lives that one launch of a run numbers: its replicas in order, then every restart


def life_seed(seed: int, life: int) -> int:
    """Return the first seed of a process's block; distinct for distinct processes below LIVES. The numbers are permuted
    by an odd multiplier and an offset, modulo a power of two, which depend on the run's ``seed``.

    LIVES are 128 launches. The next 128 number their lives from the middle of those, the next from their quarters, and
    so on: where launches have at most n lives each (a power of two), 128 * LAUNCH / n of them share no seed."""
    multiplier, offset = np.random.SeedSequence(seed).generate_state(2).tolist()
    lap, life = divmod(life, LIVES)
    life ^= int(f"{lap % LAUNCH:012b}"[::-1], 2)  # the digits of the lap reversed: 0, 1/2, 1/4, 3/4, 1/8, ... of LAUNCH
    return int((life * (multiplier | 1) + offset) % LIVES) * BLOCK


def table_name(channel: str, reader: int) -> str:
    """The name of a reader's table: the channel's for the first, CHANNEL/1, ... for the others."""
    return f"{channel}/{reader}" if reader else channel


def table_seed(seed: int, channel: str, generation: int) -> int:
    """Of a replay table: a stable function of run seed, channel and the generation of its reader."""
    entropy = [seed, zlib.crc32(channel.encode()), generation]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint32)[0])
