"""TableSpec, SequenceSpec and ItemSpec: the options of a replay table, with methods that build the table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shoal.api import Field, Spec, WiringError
from shoal.replay.options import TableOptions
from shoal.replay.sequence_options import SequenceOptions

if TYPE_CHECKING:  # they import torch and numba, which are needed only where a table is built
    from shoal.replay.items import ItemTable
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


@dataclass(frozen=True)
class ItemSpec:
    """Options of a table of plain items. Every message brings a batch of items: the first axis of each of its fields
    counts them.

    capacity: the number of items that the table holds.
    """

    capacity: int

    def items_per_insert(self, item: Spec) -> int:
        """Return the number of items in one message. Raises WiringError if its fields disagree, or if the table is
        smaller."""
        rows = {name: f.shape[0] if f.shape else 0 for name, f in item.items()}
        count = min(rows.values())
        if max(rows.values()) != count or not count:
            raise WiringError(f"a table of items needs fields with the same number of rows each, found {rows}")
        if count > self.capacity:
            raise WiringError(f"a table of {self.capacity} items cannot take {count} at a time")
        return count

    def arrays(self, item: Spec) -> dict[str, Field]:
        """Return the fields that the table allocates."""
        return {name: Field((self.capacity, *f.shape[1:]), f.dtype) for name, f in item.items()}

    def nbytes(self, unroll: Spec, writers: int = 1) -> int:
        """Return the bytes that the table allocates. The batches that it returns are not included."""
        return sum(f.nbytes for f in self.arrays(unroll).values())

    def build(self, unroll: Spec, writers: int, seed: int) -> ItemTable:
        """Return a new table for messages of the spec ``unroll``. ``writers`` makes no difference."""
        from shoal.replay.items import ItemTable

        return ItemTable(self.items_per_insert(unroll), self.capacity, self.arrays(unroll), seed)
