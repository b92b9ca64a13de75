"""How many files this process may hold open: three for each of its replicas, beside its own."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator

from shoal.errors import UsageError
from shoal.words import counted

EACH = 3  # of a replica: the end of its pipe, of what tells its death, and of what tells it ours
SPARE_DESCRIPTORS = 128  # for files, logs and libraries
MOST = 1 << 16  # that anybody needs


def room() -> int:
    """Return how many replicas ``make_room`` has room for."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return max(0, ((MOST if hard == resource.RLIM_INFINITY else hard) - _open() - SPARE_DESCRIPTORS) // EACH)


def make_room(replicas: int) -> None:
    """Raise this process's soft limit to what so many replicas need; UsageError if the hard limit is lower."""
    needed = EACH * replicas + _open() + SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UsageError(
            f"{counted(replicas, 'process')} need {counted(needed, 'open file')}, and this machine allows {hard:,} "
            f"(ulimit -Hn): "
            "start fewer actors, or raise the limit"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """What is started in this block may hold as many as the hard limit allows, up to ``MOST``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _open() -> int:
    """Return the number of file descriptors that this process holds now."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return SPARE_DESCRIPTORS
