"""Replay: tables of transitions, sequences or plain items, the rate limiter. Compiled code is imported only to build a
table."""

from shoal.replay.items import ItemSpec
from shoal.replay.limiter import RateLimiter, Ratio, check
from shoal.replay.spec import SequenceSpec, TableSpec

__all__ = ["ItemSpec", "RateLimiter", "Ratio", "SequenceSpec", "TableSpec", "check"]
