"""Replay: tables of transitions and of sequences, the rate limiter. Compiled code is imported only to build a table."""

from shoal.replay.limiter import RateLimiter, Ratio, check
from shoal.replay.spec import SequenceSpec, TableSpec

__all__ = ["RateLimiter", "Ratio", "SequenceSpec", "TableSpec", "check"]
