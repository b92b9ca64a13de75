"""On a stand-in for a GPU: what is saved on one device goes on on another, and an updater waits once for its labels."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import config, run, spy
from stand_in import DEVICE, stand_in
from test_device_pipeline import UPDATES, waits_noted
from test_snapshots import SEED

from shoal.api import Batch
from shoal.records import checkpoint_state as files
from shoal.runtime.launch import Launch
from shoal.serial.instance import Instance
from shoal.systems import load

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
from states import same

ROLES = {"qt-opt": ("learner", "updater")}
PLACES = (DEVICE.type, "cpu")


def program(system: str, device: str) -> Any:
    return load(system).program(config(system, device=device, precision="fp32", steps=20_000))


def written(state: Any, folder: Path, name: str) -> Any:
    """The state as a checkpoint gives it back."""
    folder.mkdir(exist_ok=True)
    files.write(files.pack(state), folder, name)
    return files.read(folder, name)


def moved(learner: Any, batch: Batch) -> dict[str, torch.Tensor]:
    """The parameters after one more update from a batch of the host."""
    learner.update(batch._replace(items={k: v.clone() for k, v in batch.items.items()}))
    return {name: value.cpu() for name, value in learner.params().items()}


@pytest.mark.parametrize("before, after", [PLACES, PLACES[::-1]])
@pytest.mark.parametrize("system", ["dqn", "qt-opt", "d4pg"])
def test_what_is_saved_on_one_device_goes_on_on_the_other(system: str, before: str, after: str, tmp_path: Path) -> None:
    made: dict[str, Any] = {}
    batches: list[Batch] = []
    with stand_in():
        first = program(system, before)
        for name in ROLES.get(system, ("learner",)):
            spy(first, name, lambda role, name=name: made.setdefault(name, role))

        def recorded(role: Any) -> None:
            update = role.learner.update

            def updated(batch: Batch) -> Any:
                batches.append(batch._replace(items={k: v.clone() for k, v in batch.items.items()}))
                return update(batch)

            role.learner.update = updated

        spy(first, "learner", recorded)
        run(first, UPDATES, SEED)
        for role in made.values():
            if hasattr(role, "versions"):
                role.versions = [-1, -1]  # elsewhere those of the channels are others
        saved = {name: written(role.state_dict(), tmp_path / "a", name) for name, role in made.items()}
        again = {}
        for replica in Instance(program(system, after), Launch(seed=SEED)).replicas:
            if replica.name in saved:
                one: Any = replica.role
                one.load_state_dict(saved[replica.name])
                same(saved[replica.name], written(one.state_dict(), tmp_path / "b", replica.name), replica.name)
                again[replica.name] = one
        assert {value.device.type for value in again["learner"].learner.params().values()} == {after}
        batch = batches[-1]
        here, there = (moved(roles["learner"].learner, batch) for roles in (made, again))
        for name, value in here.items():
            assert torch.allclose(value, there[name], rtol=1e-4, atol=1e-6), name
        assert any(
            not torch.equal(value, saved["learner"]["learner"]["nets"][name])
            for name, value in here.items()
            if name in saved["learner"]["learner"]["nets"]
        )


def test_an_updater_waits_once_for_its_labels() -> None:
    waits: list[list[str]] = []

    def counted(role: Any) -> None:
        role.step = waits_noted(role.step, device, waits)

    with stand_in() as device:
        run(spy(program("qt-opt", DEVICE.type), "updater", counted), UPDATES, SEED)
    assert len(waits) > 2 and max(len(step) for step in waits[1:]) == 1, waits
