"""A rehearsal calls all that a table's use will call, so that no step waits for the compiler."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from counting import Counting
from naive_sequences import Recurrent

from shoal.replay import SequenceSpec, TableSpec, copies, rows, sampling_kernels, sequence_rows, store


class Calls:
    """Notes which compiled functions are called from outside them, and with how many rows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: set[str] = set()
        for module in (copies, rows, sampling_kernels, sequence_rows):
            for name, function in vars(module).copy().items():
                if hasattr(function, "py_func") and not name.startswith("_"):
                    monkeypatch.setattr(module, name, self.noting(f"{module.__name__}.{name}", function))

    def noting(self, name: str, function: Any) -> Any:
        def call(*args: Any) -> Any:
            self.names.add(name)
            return function(*args)

        return call

    def of(self, use: Any) -> set[str]:
        self.names.clear()
        use()
        return set(self.names)


def used(spec: Any, life: Counting) -> None:
    table = spec.build(life.spec, 1, 0)
    for i in range(60):
        table.add(life.unroll(), 0, i // 30)
        if table.size:
            batch = table.sample(16)
            table.reprioritise(batch.keys.numpy(), np.random.default_rng(i).random(16, np.float32))
    assert table.evicted > 20


@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize(
    "spec",
    [
        *(TableSpec(30, 3, sampler=sampler) for sampler in ("uniform", "proportional", "rank", "greedy")),
        TableSpec(30, 30, sampler="proportional"), TableSpec(30, 3, evict="proportional", evict_every=20, stack=4),
        TableSpec(30, 3, initial="given", stack=4, pad="zero"), SequenceSpec(20, 4, 2, 2, probes=True),
        SequenceSpec(20, 4, 4, 0, stack=4, sampler="uniform"), SequenceSpec(20, 4, 4, 3, sampler="rank"),
    ],
    ids=str,
)  # fmt: skip
def test_a_rehearsal_calls_what_a_table_in_use_calls(
    spec: Any, same_step: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Recurrent(0, 7, 2, same_step, True, 3) if isinstance(spec, SequenceSpec) else Counting(
        0, 7, 2, same_step, True, 3
    )  # fmt: skip
    calls = Calls(monkeypatch)
    rehearsed, needed = calls.of(lambda: spec.rehearse(life.spec)), calls.of(lambda: used(spec, life))
    assert needed <= rehearsed and len(needed) > 4


@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize("spec", [TableSpec(1_000, 3, stack=2, evict_every=500), SequenceSpec(900, 3, 2, 2)], ids=str)
def test_a_rehearsal_is_small_and_makes_items_of_both_kinds(
    spec: Any, same_step: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are whole, and those at the end of an episode; of two lives of a writer."""
    life = Recurrent(0, 7, 2, same_step, True, 3)
    made: list[Any] = []
    rehearse = store.Store.rehearse

    def noting(table: Any) -> None:
        made.append(table)
        rehearse(table)

    monkeypatch.setattr(store.Store, "rehearse", noting)
    spec.rehearse(life.spec)
    (table,) = made
    assert (table.spec.capacity, table.sampled, table._generation.tolist()) == (8, 1, [1])
    table._count()  # which a removal alone leaves to its caller
    assert table.check_valid() == (True, "") and table.evicted > 0
