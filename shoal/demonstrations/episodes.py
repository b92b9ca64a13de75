"""Episodes and where they are read from: Minari data sets, or a function of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces as gs

from shoal import own_code
from shoal.api import UsageError
from shoal.demonstrations import minari_files
from shoal.extras import pip_install
from shoal.untrusted import excerpt


class Episode(NamedTuple):
    """``T`` steps as the environment gave them: observations of its space, ``T + 1`` of each leaf; raw rewards."""

    observations: Any  # an array, or dicts and tuples of arrays
    actions: np.ndarray
    rewards: np.ndarray
    terminated: bool
    truncated: bool = False


@dataclass(frozen=True)
class Demonstrations:
    """A set of episodes. ``lengths``: steps of each, known without reading them. Spaces: None where nobody says."""

    name: str
    lengths: Sequence[int]
    episodes: Callable[[], Iterator[Episode]]
    observation_space: gs.Space[Any] | None = None
    action_space: gs.Space[Any] | None = None


def read(source: str) -> Demonstrations:
    """The set called ``source``: a directory or an ID of a Minari data set (of version 0.5, on this machine), or
    ``module:function`` that returns a list of ``Episode``. Raises UsageError where there is none."""
    if not Path(source).exists() and ":" in source:
        return _called(source)
    try:
        import minari
        from minari.dataset.minari_dataset import MinariDataset
        from minari.storage.datasets_root_dir import get_dataset_path
    except ImportError as error:
        raise UsageError(f"to read the demonstrations '{source}', install Minari: {pip_install('minari')}") from error
    folder = Path(source) if Path(source).is_dir() else Path(get_dataset_path(source))
    data = folder / "data" if (folder / "data").is_dir() else folder
    if not (data / "metadata.json").is_file():
        known = sorted(minari.list_local_datasets())
        raise UsageError(
            f"no demonstrations '{source}': expected a Minari data set's directory, or the ID of one on this machine "
            f"({', '.join(known) or 'there is none'})"
        )
    with _reading(source):
        minari_files.check(data)
        stored = MinariDataset(data)
        facts = stored.storage.get_episode_metadata(stored.episode_indices)
        lengths = [int(found["total_steps"]) for found in facts]
        spaces = stored.observation_space, stored.action_space

    def episodes() -> Iterator[Episode]:
        stored_episodes = stored.iterate_episodes()
        while True:
            with _reading(source):
                e = next(stored_episodes, None)
                if e is None:
                    return
                ends = bool(e.terminations[-1])
                made = Episode(e.observations, np.asarray(e.actions), np.asarray(e.rewards), ends, not ends)
            yield made

    return Demonstrations(source, lengths, episodes, *spaces)


@contextmanager
def _reading(source: str) -> Iterator[None]:
    """Whatever a Minari data set fails with is a UsageError."""
    try:
        yield
    except Exception as error:
        told = excerpt(f"{type(error).__name__}: {error}".removesuffix(": "))
        raise UsageError(f"the demonstrations '{source}' cannot be read ({told}): a data set of Minari?") from error


def _called(source: str) -> Demonstrations:
    found = own_code.attribute(source, f"the demonstrations '{source}'")
    expected = "take no arguments and return a list of (observations, actions, rewards, terminated, truncated)"
    with own_code.failing(f"'{source}' should {expected}"):
        episodes = [Episode(*episode) for episode in found()]
        lengths = [len(e.rewards) for e in episodes]
    return Demonstrations(source, lengths, lambda: iter(episodes))
