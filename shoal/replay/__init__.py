"""Replay: tables of transitions and of sequences, the rate limiter. Compiled code is imported only to build a table."""

from shoal.replay.limiter import RateLimiter, check
from shoal.replay.spec import SequenceSpec, TableSpec

__all__ = ["RateLimiter", "SequenceSpec", "TableSpec", "check"]
