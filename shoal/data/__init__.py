"""Replay: tables of transitions and the rate limiter. Compiled code is imported only where a table is built."""

from shoal.data.limiter import RateLimiter, check
from shoal.data.spec import TableSpec

__all__ = ["RateLimiter", "TableSpec", "check"]
