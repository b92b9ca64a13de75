"""Files of a Minari data set, looked at before Minari reads them: it makes the environment that they name where they
lack a space, allocates what they declare, and waits for a pipe."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from shoal.types import Values
from shoal.untrusted import brief, counter, open_bytes, parse_json, read_text
from shoal.words import counted

MAX_ELEMENTS = 1 << 26  # of an observation or an action
MAX_BYTES = 1 << 35  # of an array of one episode
UNPACKED = 1_100  # bytes that one stored byte can become: those of gzip at most 1,032
MIN_BYTES = 1 << 20  # that an array may always have


def check(data: Path) -> None:
    """Raise ValueError for a data set whose spaces are not in its metadata or are too large, that lacks episodes, that
    declares arrays far larger than what is stored of them, or that takes what it holds from other files."""
    facts = parse_json(read_text(data / "metadata.json"))
    for name in ("observation_space", "action_space"):  # without one, Minari makes the environment: code of anybody's
        if not isinstance(facts.get(name), str):
            raise ValueError(f"its metadata lacks '{name}'")
        _check_space(parse_json(facts[name]))
    episodes = counter(facts["total_episodes"])
    files = sorted(data.glob("*.hdf5"))
    for path in files:
        open_bytes(path).close()
        _check_file(path, episodes)
    if not files and episodes > sum(1 for _ in data.iterdir()):
        raise ValueError(f"it has fewer than {counted(episodes, 'episode')}")


def _check_space(space: Any) -> None:
    """Raise ValueError for a space with more than ``MAX_ELEMENTS`` elements, or with a part like that."""
    size = space.get("shape", space.get("n") if space["type"] == "MultiBinary" else [])
    if math.prod(map(counter, size if isinstance(size, list) else [size])) > MAX_ELEMENTS:
        raise ValueError(f"a space of the shape {brief(size)} has more than {MAX_ELEMENTS:,} elements")
    inner = space.get("subspaces", [])
    for one in inner.values() if isinstance(inner, dict) else inner:
        _check_space(one)


def _check_file(path: Path, episodes: int) -> None:
    import h5py

    with h5py.File(path) as file:
        if len(file) < episodes:
            raise ValueError(f"it has {len(file):,} of {counted(episodes, 'episode')}")
        for group in (file[name] for name in file if not _elsewhere(file, name)):
            _check_length(group)
        waiting, seen = [file], set()
        while waiting:
            group = waiting.pop()
            for name in group:
                if _elsewhere(group, name):
                    continue
                found = group[name]
                if isinstance(found, h5py.Dataset):
                    _check_array(name, found)
                elif isinstance(found, h5py.Group) and (at := h5py.h5o.get_info(found.id).addr) not in seen:
                    seen.add(at)
                    waiting.append(found)


def _elsewhere(group: Any, name: str) -> bool:
    """Return True for a link to what is found in its own place. ValueError for one to another file."""
    import h5py

    link = group.get(name, getlink=True)
    if isinstance(link, h5py.ExternalLink):
        raise ValueError(f"'{name}' lies in another file, '{link.filename}'")
    return isinstance(link, h5py.SoftLink)


def _check_array(name: str, found: Any) -> None:
    """Raise ValueError for an array whose memory nothing in the file accounts for."""
    if found.external or found.is_virtual:
        raise ValueError(f"'{name}' lies in other files")
    chunk = math.prod(found.chunks or ()) * found.dtype.itemsize
    stored, needed = found.id.get_storage_size(), max(found.size * found.dtype.itemsize, chunk) if found.shape else 0
    if needed > min(MAX_BYTES, MIN_BYTES + UNPACKED * stored):
        raise ValueError(f"{brief(name)} declares {needed:,} bytes, and {stored:,} are stored")


def _check_length(group: Any) -> None:
    """Raise ValueError for an episode that does not have the steps that it says."""
    attributes: Values = getattr(group, "attrs", {})
    if "total_steps" in attributes and "rewards" in group:
        said, found = counter(int(attributes["total_steps"])), group["rewards"].shape
        if found != (said,):
            raise ValueError(f"an episode says {counted(said, 'step')} and has rewards of the shape {brief(found)}")
