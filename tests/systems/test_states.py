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
from shoal.records.checkpoint import SaveOptions
from shoal.runtime.launch import Launch
from shoal.serial import checkpoint
from shoal.serial.runtime import _Run
from shoal.settings.config import build, coerce_all
from shoal.systems import load

UPDATES, MOMENTS, AHEAD = 4, 4, 4  # sweeps: saved after each of the moments, compared so far ahead


class Kept:
    """A checkpoint that was never written."""

    def __init__(self, run: _Run, saving: SaveOptions) -> None:
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


def begun(case: str, saving: SaveOptions) -> _Run:
    module, settings = load(case.partition(",")[0]), {**SMALL, **SYSTEMS[case], "steps": 3_500}
    settings |= {name: 3 for name in ("target_period", "target_lag") if settings.get(name, 500) < 500}  # updates
    seed, _ = settings.pop("seed"), settings.pop("preset")
    program = module.program(build(module.Config, coerce_all(module.Config, settings, "test")))
    return _Run(program, Launch(seed=seed, saving=saving), SimpleNamespace(reason=""))  # type: ignore[arg-type]


UNTOUCHED = {"rng", "random", "env", "table", "param_groups", "replay", "memory"}  # what fits to other things


def perturbed(state: Any, path: str = "") -> Any:
    """The state with every number changed that may be changed alone."""
    last = path.rpartition("/")[2]
    if last in UNTOUCHED:
        return state
    if isinstance(state, dict):
        return {key: perturbed(value, f"{path}/{key}") for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(perturbed(value, f"{path}/{i}") for i, value in enumerate(state))
    if isinstance(state, bool):
        return not state
    if isinstance(state, (int, float)):
        return state + 1
    if isinstance(state, (torch.Tensor, np.ndarray)):
        return ~state if str(state.dtype).endswith("bool") else state + 1
    return state


def numbers(state: Any) -> Any:
    """The state without what ``perturbed`` leaves as it is."""
    if isinstance(state, dict):
        return {key: numbers(value) for key, value in state.items() if key not in UNTOUCHED}
    return type(state)(map(numbers, state)) if isinstance(state, (list, tuple)) else state


@pytest.mark.parametrize("case", SYSTEMS)
def test_every_state_goes_on_as_if_nothing_had_been(case: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    saving = SaveOptions(tmp_path)
    whole = begun(case, saving)
    while whole.aggregator.updates < UPDATES:
        whole._sweep(whole.instance.replicas)
    kept = []
    ahead = 4 * AHEAD if "server" in case else AHEAD  # a sweep is one row of an unroll there: an update takes several
    for _ in range(MOMENTS + ahead):
        whole._sweep(whole.instance.replicas)
        kept.append(Kept(whole, saving))
    for at in range(MOMENTS):
        again = begun(case, saving)
        checkpoint.load(kept[at], again.instance, again.aggregator)  # type: ignore[arg-type]
        for _ in range(ahead):
            again._sweep(again.instance.replicas)
        same(Kept(again, saving).parts, kept[at + ahead].parts)


@pytest.mark.parametrize("case", SYSTEMS)
def test_every_number_of_a_role_is_loaded(case: str, tmp_path: Path) -> None:
    """Those too that nothing has changed at the moments above, such as a count of skipped updates."""
    torch.set_num_threads(1)
    saving = SaveOptions(tmp_path)
    run, again = begun(case, saving), begun(case, saving)
    while run.aggregator.updates < UPDATES:
        run._sweep(run.instance.replicas)
    for one, other in zip(run.instance.replicas, again.instance.replicas, strict=True):
        state: Any = perturbed(copy.deepcopy(one.role.state_dict()))  # type: ignore[attr-defined]
        other.role.load_state_dict(copy.deepcopy(state))  # type: ignore[attr-defined]
        found = other.role.state_dict()  # type: ignore[attr-defined]
        if one.name == "server":  # its version is its channel's
            del state["version"], found["version"]
        same(numbers(found), numbers(state), one.name)
