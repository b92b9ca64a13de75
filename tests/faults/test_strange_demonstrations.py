"""Whatever the files of a set of demonstrations hold, reading them ends with its episodes or with one sentence, and
opens nothing outside of the set."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

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
