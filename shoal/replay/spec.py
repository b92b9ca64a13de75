"""TableSpec: the options of a replay table, able to build it."""

from __future__ import annotations

from shoal.api import Replay, Spec
from shoal.replay.options import TableOptions


class TableSpec(TableOptions):
    """See ``TableOptions``."""

    def build(self, unroll: Spec, writers: int, seed: int) -> Replay:
        """The table of unrolls of this spec from ``writers`` streams."""
        from shoal.replay.table import Table  # numba is imported, and compiles, only where a table lives

        return Table(self, unroll, writers, seed)
