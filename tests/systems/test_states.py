"""Whatever is saved between two sweeps of the serial runtime, every role, channel and generator goes on from it as if
nothing had been: in all systems, at several moments, among them some at which roles wait in the middle of something."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from test_resume import SMALL, SYSTEMS, same

from shoal.program import Program
from shoal.records.checkpoint import Saving
from shoal.runtime.launch import Launch
from shoal.serial import checkpoint
from shoal.serial.runtime import _Run
from shoal.settings.config import build, coerce_all
from shoal.systems import load

UPDATES, MOMENTS, AHEAD = 4, 6, 4  # sweeps: saved after each of the moments, compared so far ahead


class Kept:
    """A checkpoint that was never written."""

    def __init__(self, run: _Run, saving: Saving) -> None:
        self.parts = copy.deepcopy(checkpoint._parts(saving, run.instance, run.aggregator))
        del self.parts["run"]["aggregator"]["seconds"]
        self.manifest = {"exact": True}

    def check_fits(self, program: Program) -> None: ...

    def has(self, part: str) -> bool:
        return part in self.parts

    def read(self, part: str) -> Any:
        found = copy.deepcopy(self.parts[part])
        if part == "run":
            found["aggregator"]["seconds"] = 0.0
        return found

    @contextlib.contextmanager
    def fitting(self, part: str) -> Iterator[None]:
        yield


def begun(case: str, saving: Saving) -> _Run:
    module, settings = load(case.partition(",")[0]), {**SMALL, **SYSTEMS[case], "steps": 3_500}
    seed, _ = settings.pop("seed"), settings.pop("preset")
    program = module.program(build(module.Config, coerce_all(module.Config, settings, "test")))
    return _Run(program, Launch(seed=seed, saving=saving), SimpleNamespace(reason=""))  # type: ignore[arg-type]


def leaves(state: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(state, dict):
        for key, value in state.items():
            yield from leaves(value, f"{path}/{key}")
    elif isinstance(state, (list, tuple)):
        for i, value in enumerate(state):
            yield from leaves(value, f"{path}/{i}")
    else:
        yield path, state


def equal(a: Any, b: Any) -> bool:
    with contextlib.suppress(AssertionError):
        same(a, b)
        return True
    return False


@pytest.mark.parametrize("case", SYSTEMS)
def test_every_state_goes_on_as_if_nothing_had_been(case: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    saving = Saving(tmp_path)
    whole = begun(case, saving)
    for replica in whole.instance.replicas:
        getattr(replica.role, "start", lambda: None)()
    while whole.aggregator.updates < UPDATES:
        whole._sweep(whole.instance.replicas)
    kept = []
    for _ in range(MOMENTS + AHEAD):
        whole._sweep(whole.instance.replicas)
        kept.append(Kept(whole, saving))
    for at in range(MOMENTS):
        again = begun(case, saving)
        checkpoint.load(kept[at], again.instance, again.aggregator)  # type: ignore[arg-type]
        for _ in range(AHEAD):
            again._sweep(again.instance.replicas)
        same(Kept(again, saving).parts, kept[at + AHEAD].parts)
