"""What is looked at in the files of a Minari data set before Minari reads them: each limit on both of its sides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from shoal.demonstrations import minari_files
from shoal.demonstrations.minari_files import MAX_ELEMENTS, MIN_BYTES, UNPACKED, check

BOX = {"type": "Box", "shape": [2]}


def data(folder: Path, episodes: int = 1, spaces: Mapping[str, Any] = MappingProxyType({})) -> Path:
    """The folder of a set without episodes' files."""
    facts = {"observation_space": BOX, "action_space": BOX, **spaces}
    text = {name: json.dumps(space) for name, space in facts.items() if space is not None}
    folder.mkdir(exist_ok=True)
    (folder / "metadata.json").write_text(json.dumps({**text, "total_episodes": episodes}))
    return folder


def large(space: str, n: int) -> dict[str, Any]:
    """A space of ``n`` elements, by itself or within another."""
    box, binary = {"type": "Box", "shape": [n // 2, 2]}, {"type": "MultiBinary", "n": n}
    spaces: dict[str, dict[str, Any]] = {
        "Box": box, "MultiBinary": binary, "Dict": {"type": "Dict", "subspaces": {"small": BOX, "large": box}},
        "Tuple": {"type": "Tuple", "subspaces": [{"type": "Tuple", "subspaces": [binary]}]},
    }  # fmt: skip
    return spaces[space]


@pytest.mark.parametrize("which", ["observation_space", "action_space"])
@pytest.mark.parametrize("space", ["Box", "MultiBinary", "Dict", "Tuple"])
def test_a_space_may_have_so_many_elements_and_no_more(tmp_path: Path, which: str, space: str) -> None:
    check(data(tmp_path, spaces={which: large(space, MAX_ELEMENTS)}))
    with pytest.raises(ValueError, match=r"has more than 67,108,864 elements"):
        check(data(tmp_path, spaces={which: large(space, MAX_ELEMENTS + 2)}))
    check(data(tmp_path, spaces={which: {"type": "Discrete", "n": 10**12}}))  # a number, whatever values it has


@pytest.mark.parametrize("which", ["observation_space", "action_space"])
def test_both_spaces_must_be_in_the_metadata(tmp_path: Path, which: str) -> None:
    with pytest.raises(ValueError, match=f"its metadata lacks '{which}'"):
        check(data(tmp_path, spaces={which: None}))


def test_a_set_of_folders_has_one_for_each_episode_at_least(tmp_path: Path) -> None:
    """The file of the metadata is in the same folder, and is counted."""
    (data(tmp_path, 3) / "0").mkdir()
    (tmp_path / "1").mkdir()
    check(tmp_path)
    with pytest.raises(ValueError, match="fewer than 4 episodes"):
        check(data(tmp_path, 4))


# ------------------------------------------------------------------------------- files of episodes
def written(folder: Path, kind: str = "", episodes: int = 2) -> Path:
    """A set of two episodes of three steps, of a ``kind``."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(data(folder, episodes) / "main_data.hdf5", "w") as file:
        for number in range(2):
            group = file.create_group(f"episode_{number}")
            group.attrs["total_steps"] = 3
            group["rewards"] = np.ones(2 if kind == "short" and number else 4 if kind == "long" and number else 3)
        if kind == "external":
            group.create_dataset("x", (3,), np.float64, external=[(str(folder / "beside"), 0, 24)])
        elif kind == "soft":
            group["x"] = h5py.SoftLink("/nowhere")
        elif kind == "deep":
            group.create_group("inner").create_dataset("x", (1 << 28,), np.float64, chunks=(1024,))
    return folder


@pytest.mark.parametrize(
    "kind, episodes, told",
    [
        ("", 3, "it has 2 of 3 episodes"), ("short", 2, r"says 3 steps and has rewards of the shape \(2,\)"),
        ("long", 2, r"says 3 steps and has rewards of the shape \(4,\)"), ("external", 2, "'x' lies in other files"),
        ("deep", 2, "declares 2,147,483,648 bytes, and 0 are stored"),
    ],
)  # fmt: skip
def test_files_that_lack_what_they_say_are_refused(tmp_path: Path, kind: str, episodes: int, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        check(written(tmp_path, kind, episodes))


@pytest.mark.parametrize("kind", ["", "soft"])
def test_whole_files_are_taken_and_a_link_within_one_is_not_followed(tmp_path: Path, kind: str) -> None:
    check(written(tmp_path, kind))
    check(written(tmp_path, kind, episodes=1))


def declared(size: int, stored: int, chunks: tuple[int, ...] = ()) -> Any:
    """A data set of so many bytes, of which some are stored."""
    ident = type("Id", (), {"get_storage_size": lambda self: stored})()
    fields = dict(external=None, is_virtual=False, chunks=chunks, size=size, shape=(size,), id=ident)
    return type("Dataset", (), {**fields, "dtype": np.dtype(np.uint8)})()


@pytest.mark.parametrize(
    "most, stored, chunks",
    [(MIN_BYTES, 0, ()), (MIN_BYTES + 1000 * UNPACKED, 1000, ()), (1 << 35, 1 << 30, ()), (MIN_BYTES, 0, (8,))],
    ids=["nothing stored", "a thousand", "as large as any may be", "in chunks"],
)
def test_an_array_may_be_as_large_as_what_is_stored_unpacks_to(most: int, stored: int, chunks: tuple[int, ...]) -> None:
    minari_files._check_array("x", declared(most, stored, chunks))
    with pytest.raises(ValueError, match=f"declares {most + 1:,} bytes"):
        minari_files._check_array("x", declared(most + 1, stored, chunks))
    with pytest.raises(ValueError, match=f"declares {most + 1:,} bytes"):  # a chunk is unpacked whole
        minari_files._check_array("x", declared(1, stored, (most + 1,)))
