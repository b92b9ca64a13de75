"""TableSpec and SequenceSpec: the options of a replay table, with methods that build the table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.api import Spec
from shoal.replay.options import TableOptions
from shoal.replay.sequence_options import SequenceOptions

if TYPE_CHECKING:  # they import numba, which is needed only where a table is built
    from shoal.replay.sequence_table import SequenceTable
    from shoal.replay.table import Table


class TableSpec(TableOptions):
    """Options of a replay of transitions that build a ``Table``; see ``TableOptions``."""

    def build(self, unroll: Spec, writers: int, seed: int) -> Table:
        """Return a new table for unrolls of this spec from ``writers`` writers."""
        from shoal.replay.table import Table

        return Table(self, unroll, writers, seed)

    def rehearse(self, unroll: Spec) -> None:
        """Compile (or load) every function that such a table will call, so that no training step waits for the
        compiler."""
        from shoal.replay.table import Table

        Table(replace(self, capacity=8, evict_every=0), unroll, 1, 0).rehearse()


class SequenceSpec(SequenceOptions):
    """Options of a replay of sequences that build a ``SequenceTable``; see ``SequenceOptions``."""

    def build(self, unroll: Spec, writers: int, seed: int) -> SequenceTable:
        """Return a new table for unrolls of this spec from ``writers`` writers."""
        from shoal.replay.sequence_table import SequenceTable

        return SequenceTable(self, unroll, writers, seed)

    def rehearse(self, unroll: Spec) -> None:
        """Compile (or load) every function that such a table will call, so that no training step waits for the
        compiler."""
        from shoal.replay.sequence_table import SequenceTable

        SequenceTable(replace(self, capacity=8), unroll, 1, 0).rehearse()
