"""Replay tables of transitions, sequences or plain items, and their rate limiter. PyTorch and Numba are imported only
when a table is built."""

from shoal.replay.limiter import RateLimiter, Ratio, check
from shoal.replay.spec import ItemSpec, SequenceSpec, TableSpec

__all__ = ["ItemSpec", "RateLimiter", "Ratio", "SequenceSpec", "TableSpec", "check"]
