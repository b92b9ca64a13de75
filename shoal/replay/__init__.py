"""Replay tables of transitions, sequences or plain items, and their rate limiter. Numba is imported only when a table
is built."""

from shoal.replay.items import ItemSpec
from shoal.replay.limiter import RateLimiter, Ratio, check
from shoal.replay.spec import SequenceSpec, TableSpec

__all__ = ["ItemSpec", "RateLimiter", "Ratio", "SequenceSpec", "TableSpec", "check"]
