"""The ring of plain items: what is in it is the newest, drawn uniformly; a restored one goes on identically."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.api import Field, ShoalError, WiringError
from shoal.replay import ItemSpec

ITEM = {"n": Field((3,), "int64", 0), "x": Field((3, 2), axis=0)}


def message(begin: int) -> dict[str, np.ndarray]:
    n = np.arange(begin, begin + 3)
    return {"n": n, "x": np.stack([n, -n], 1).astype(np.float32)}


def test_the_newest_overwrite_the_oldest() -> None:
    """Also across the end of the ring, whose capacity is no multiple of a message."""
    table = ItemSpec(7).build(ITEM, 2, 0)
    for k in range(1, 12):
        assert table.add(message(3 * k), writer=k % 2) == 3
        items = table.sample(500).items
        end, size = 3 * k + 3, min(7, 3 * k)
        assert (table.size, table.inserted) == (size, 3 * k)
        assert set(items["n"].tolist()) == set(range(end - size, end))
        assert (items["x"][:, 0] == items["n"]).all() and (items["x"][:, 1] == -items["n"]).all()
    assert table.sampled == 11 * 500


def test_items_are_drawn_uniformly() -> None:
    table = ItemSpec(6).build(ITEM, 1, 3)
    table.add(message(0))
    table.add(message(3))
    counts = np.bincount(table.sample(60_000).items["n"].numpy(), minlength=6)
    assert abs(counts - 10_000).max() < 5 * np.sqrt(10_000 * 5 / 6)


def test_a_restored_table_goes_on_identically() -> None:
    one, other = ItemSpec(7).build(ITEM, 1, 0), ItemSpec(7).build(ITEM, 1, 9)
    for k in range(4):
        one.add(message(3 * k))
    one.sample(5)
    state = one.state()
    other.restore({**state, "items": {name: array.copy() for name, array in state["items"].items()}})
    one.add(message(50))
    other.add(message(50))
    assert one.sample(20).items["n"].tolist() == other.sample(20).items["n"].tolist()
    assert (one.size, one.inserted, one.sampled) == (other.size, other.inserted, other.sampled)
    with pytest.raises(ShoalError, match="the table holds"):
        ItemSpec(5).build(ITEM, 1, 0).restore(state)


def test_what_it_cannot_hold_is_refused() -> None:
    with pytest.raises(WiringError, match="cannot take 3 at a time"):
        ItemSpec(2).items_per_insert(ITEM)
    with pytest.raises(WiringError, match="the same number of rows"):
        ItemSpec(9).items_per_insert({**ITEM, "y": Field((2,))})
    with pytest.raises(ShoalError, match="before it held one"):
        ItemSpec(9).build(ITEM, 1, 0).sample(1)
    assert ItemSpec(9).nbytes(ITEM) == 9 * (8 + 8)
