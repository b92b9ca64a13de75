"""TableSpec and SequenceSpec: the options of a replay table, able to build it."""

from __future__ import annotations

from dataclasses import replace

from shoal.api import Replay, Spec
from shoal.replay.options import TableOptions
from shoal.replay.sequence_options import SequenceOptions


class TableSpec(TableOptions):
    """See ``TableOptions``."""

    def build(self, unroll: Spec, writers: int, seed: int) -> Replay:
        """The table of unrolls of this spec from ``writers`` streams."""
        from shoal.replay.table import Table  # numba is imported, and compiles, only where a table lives

        return Table(self, unroll, writers, seed)

    def rehearse(self, unroll: Spec) -> None:
        """Compile (or load) whatever such a table will call, so that no step waits for the compiler."""
        from shoal.replay.table import Table

        Table(replace(self, capacity=8, evict_every=0), unroll, 1, 0).rehearse()


class SequenceSpec(SequenceOptions):
    """See ``SequenceOptions``."""

    def build(self, unroll: Spec, writers: int, seed: int) -> Replay:
        """The table of unrolls of this spec from ``writers`` streams."""
        from shoal.replay.sequence_table import SequenceTable

        return SequenceTable(self, unroll, writers, seed)

    def rehearse(self, unroll: Spec) -> None:
        """As ``TableSpec.rehearse``."""
        from shoal.replay.sequence_table import SequenceTable

        SequenceTable(replace(self, capacity=8), unroll, 1, 0).rehearse()
