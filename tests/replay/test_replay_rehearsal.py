"""Whatever a replay table compiles is compiled before the first step. In a process of its own, where nothing has
been called yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import gc
from typing import Any

import numpy as np
from counting import Counting
from numba.core.dispatcher import Dispatcher

from shoal.api import Field
from shoal.replay import SequenceSpec, TableSpec

STATE = {"state/h": Field((7, 3, 2))}


def compiled():
    return sum(len(d.overloads) for d in gc.get_objects() if isinstance(d, Dispatcher))


def use(spec: Any, same_step: bool, image: bool, state: bool):
    lives = [Counting(i, 7, 3, same_step, image, seed=i) for i in range(2)]
    fields = {**lives[0].spec, **(STATE if state else {})}
    spec.rehearse(fields)
    before = compiled()
    table = spec.build(fields, 2, 0)
    for i in range(120):
        unroll = lives[i % 2].unroll()
        if state:
            unroll["state/h"] = np.zeros((7, 3, 2), np.float32)
        table.add(unroll, i % 2, i // 60)
        if table.size:
            batch = table.sample(16)
            table.reprioritise(batch.keys.numpy(), np.random.rand(16))
    assert table.evicted and table.check_valid()[0]
    return compiled() - before


for sampler in ("uniform", "rank"):
    for same_step in (False, True):
        assert use(TableSpec(100, 3, sampler=sampler), same_step, False, False) == 0, (sampler, same_step)
assert use(TableSpec(100, 30, sampler="proportional"), False, False, False) == 0
assert use(TableSpec(100, 3, evict="proportional", initial="given", evict_every=30, stack=4), True, True, False) == 0
for probes in (False, True):
    assert use(SequenceSpec(20, 8, 4, 4, probes=probes), probes, False, True) == 0, probes
assert use(SequenceSpec(20, 8, 4, 0, stack=4, sampler="uniform"), False, True, False) == 0
"""


@pytest.mark.timeout(600)  # where all has to be compiled
def test_nothing_is_compiled_after_the_first_step() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
