"""Replay: tables of transitions and the rate limiter. Compiled code is imported only where a table is built."""

from shoal.replay.limiter import RateLimiter, check
from shoal.replay.spec import TableSpec

__all__ = ["RateLimiter", "TableSpec", "check"]
