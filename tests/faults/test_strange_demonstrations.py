"""Whatever the files of a set of demonstrations hold, reading them ends with its episodes or with one sentence, and
opens nothing outside of the set."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from mutations import mutate, scramble

from shoal.api import UsageError
from shoal.demonstrations.episodes import Episode, read
from shoal.demonstrations.recording import write

pytest.importorskip("minari", reason="the extra 'minari' is not installed")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    env = gym.make("CartPole-v1")
    episodes = [
        Episode(np.zeros((n + 1, 4), np.float32), np.zeros(n, np.int64), np.ones(n), True, False) for n in (3, 5)
    ]
    out = tmp_path_factory.mktemp("sets") / "d"
    write(iter(episodes), (env.observation_space, env.action_space), str(out), {}, "CartPole-v1")
    return out


def attempt(folder: Path) -> str:
    """Read a set; the sentence that is told, or ""."""
    try:
        for _ in read(str(folder)).episodes():
            pass
    except UsageError as error:
        told = str(error)
        assert "\n" not in told and len(told) < 600 and "\x1b" not in told
        return told
    return ""


@pytest.mark.timeout(110)
def test_a_set_that_was_changed_at_random_is_read_or_told_of_in_a_sentence(whole: Path, tmp_path: Path) -> None:
    (outside := tmp_path / "outside").write_text("mine\n")
    told = set()
    for seed in range(40):
        draw, place = random.Random(seed), tmp_path / f"{seed}"
        shutil.copytree(whole, place)
        file = draw.choice(sorted(path for path in place.rglob("*") if path.is_file()))
        if file.suffix == ".hdf5":
            file.write_bytes(scramble(file.read_bytes(), draw))
        else:
            mutate(file, outside, draw)
            if file.is_fifo():  # of a directory that its user names
                continue
        told.add(attempt(place))
    assert len(told) > 5 and outside.read_text() == "mine\n"


@pytest.mark.parametrize("kind", ["external link", "external storage", "virtual"])
def test_a_set_does_not_open_files_beside_it(kind: str, whole: Path, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    place, outside = Path(shutil.copytree(whole, tmp_path / "d")), tmp_path / "outside.hdf5"
    (file,) = place.rglob("*.hdf5")
    with h5py.File(outside, "w") as other:
        other["rewards"] = np.ones(3)
    with h5py.File(file, "a") as opened:
        group = opened["episode_0"]
        del group["rewards"]
        if kind == "external link":
            group["rewards"] = h5py.ExternalLink(str(outside), "/rewards")
        elif kind == "external storage":
            group.create_dataset("rewards", (3,), np.float64, external=[(str(outside), 0, 24)])
        else:
            layout = h5py.VirtualLayout((3,), np.float64)
            layout[:] = h5py.VirtualSource(str(outside), "rewards", (3,))
            group.create_virtual_dataset("rewards", layout)
    assert "in another file" in attempt(place) or "in other files" in attempt(place)
    assert attempt(whole) == ""


def test_groups_that_hold_one_another_end(whole: Path, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    place = Path(shutil.copytree(whole, tmp_path / "d"))
    (file,) = place.rglob("*.hdf5")
    with h5py.File(file, "a") as opened:
        opened["episode_0"]["again"] = opened["episode_0"]
        opened["episode_1"]["soft"] = h5py.SoftLink("/nowhere")
    attempt(place)


def changed(whole: Path, place: Path, **facts: object) -> Path:
    """Copy a set, with other ``facts`` in its metadata; None: without that one."""
    shutil.copytree(whole, place)
    (file,) = place.rglob("metadata.json")
    found = {**json.loads(file.read_text()), **facts}
    file.write_text(json.dumps({name: value for name, value in found.items() if value is not None}))
    return place


@pytest.mark.parametrize("space", ["observation_space", "action_space"])
def test_a_set_without_a_space_does_not_make_the_environment_that_it_names(
    space: str, whole: Path, tmp_path: Path
) -> None:
    spec = json.loads(gym.spec("CartPole-v1").to_json())
    spec |= {"id": "Evil-v0", "entry_point": "os:system", "kwargs": {"command": f"touch {tmp_path / 'owned'}"}}
    told = attempt(changed(whole, tmp_path / "d", env_spec=json.dumps(spec), **{space: None}))
    assert f"its metadata lacks '{space}'" in told and not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    "facts, told",
    [
        ({"total_episodes": 10**9}, "it has 2 of 1,000,000,000 episodes"),
        ({"total_episodes": -1}, "expected a count"),
        ({"observation_space": '{"type": "Box", "dtype": "float32", "shape": [100000000], "low": 0, "high": 1}'},
         "has more than"),
        ({"action_space": '{"type": "Tuple", "subspaces": [{"type": "MultiBinary", "n": 100000000}]}'},
         "has more than"),
        ({"action_space": "[" * 100_000}, "nested more than"),
        ({"action_space": '{"type": "Discrete", "start": 0, "n": ' + "9" * 5000 + "}"}, "cannot be read"),
        ({"data_format": "\x1b[2J" * 1_000_000}, "cannot be read"),
    ],
)  # fmt: skip
def test_metadata_that_lie(facts: dict[str, Any], told: str, whole: Path, tmp_path: Path) -> None:
    assert told in attempt(changed(whole, tmp_path / "d", **facts))


@pytest.mark.parametrize("kind", ["not stored", "a chunk", "too long", "negative"])
def test_arrays_that_declare_more_than_is_stored_are_not_read(kind: str, whole: Path, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    place = Path(shutil.copytree(whole, tmp_path / "d"))
    (file,) = place.rglob("*.hdf5")
    with h5py.File(file, "a") as opened:
        group = opened["episode_0"]
        if kind in ("too long", "negative"):
            group.attrs["total_steps"] = 10**15 if kind == "too long" else -5
        else:
            del group["observations"]
            large = 1 << 28
            rows, chunk, most = (large, 1024, large) if kind == "not stored" else (4, large // 16, None)
            group.create_dataset("observations", (rows, 4), np.float32, chunks=(chunk, 4), maxshape=(most, 4))
    told = {"too long": "says 1,000,000,000,000,000 steps", "negative": "expected a count"}
    assert told.get(kind, "bytes, and 0 are stored") in attempt(place)


def test_a_pipe_in_the_place_of_the_episodes_is_not_waited_for(whole: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(whole, tmp_path / "d"))
    (file,) = place.rglob("*.hdf5")
    file.unlink()
    os.mkfifo(file)
    assert "it is no file" in attempt(place)
