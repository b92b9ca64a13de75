"""Recording: whole episodes of a policy, as the environment itself shows them, written as a Minari data set."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode

from shoal.api import UsageError
from shoal.demonstrations.episodes import Episode
from shoal.envs import EnvOptions, autoreset_mode, one, sub_seeds
from shoal.extras import pip_install
from shoal.types import Values

log = logging.getLogger("shoal.envs")
ID = re.compile(r"(?:[\w-]+/)*[\w-]+-v\d+")
Choose = Callable[[Any, float, Any], Any]  # (observation, reward of the step before, the environment) -> action


def play(
    env: str, options: EnvOptions, choose: Choose, episodes: int, seed: int, begin: Callable[[], None] | None = None,
    inform: Callable[[Values], None] = lambda info: None, max_steps: int = 27_000,
) -> Iterator[Episode]:  # fmt: skip
    """``episodes`` whole episodes of ``choose`` in ``env``; ``begin`` is called before each, ``inform`` before each
    choice with what the vector environment gave as ``info``. An episode that has not ended after ``max_steps`` is
    truncated there. Seeds are those of an evaluation in one environment.
    UsageError for an action that the environment does not take."""
    vector = one(env, options)
    space, mode = vector.single_action_space, autoreset_mode(env, vector)
    if isinstance(space, (gs.Dict, gs.Tuple)):
        vector.close()
        raise UsageError(f"{env} has actions of several parts ({space}), which are not recorded yet")
    inside = vector.envs[0].unwrapped if hasattr(vector, "envs") else vector
    try:
        obs, info = vector.reset(seed=sub_seeds(seed, 1)[0])
        for number in range(episodes):
            if begin is not None:
                begin()
            actions: list[np.ndarray] = []
            seen, rewards, reward, ended = [_first(obs)], list[float](), 0.0, False
            while not ended and len(actions) < max_steps:
                inform(info)
                action = _action(choose(seen[-1], reward, inside), space, env)
                obs, gained, terminated, truncated, info = vector.step(action[None])
                reward, ended = float(gained[0]), bool(terminated[0] or truncated[0])
                actions.append(action)
                rewards.append(reward)
                seen.append(_final(info) if ended and mode is AutoresetMode.SAME_STEP else _first(obs))
            if not ended:
                log.warning(
                    "an episode of %s has not ended after %s steps: it is truncated there", env, f"{max_steps:,}"
                )
            cut = not ended or bool(truncated[0])
            yield Episode(joined(seen), np.stack(actions), np.array(rewards), bool(terminated[0]), cut)
            if number + 1 == episodes:
                return
            if not ended:
                obs, info = vector.reset()
            elif mode is AutoresetMode.DISABLED:
                obs, info = vector.reset(options={"reset_mask": np.ones(1, np.bool_)})
            elif mode is AutoresetMode.NEXT_STEP:
                obs, *_, info = vector.step(action[None])  # the action is ignored: the next episode begins
    finally:
        vector.close()


def _action(chosen: Any, space: gs.Space[Any], env: str) -> np.ndarray:
    """A policy's choice as an action of the space, which is not rounded to be one; UsageError if it is none."""
    raw = np.asarray(chosen)
    if raw.dtype.kind in "biuf" and np.can_cast(raw.dtype, space.dtype or raw.dtype, "same_kind"):
        action = raw.astype(space.dtype)
        if space.contains(action if action.shape else action[()]):
            return action
    raise UsageError(f"a policy chose {chosen!r}, but the actions of {env} are {space}")


def write(
    episodes: Iterable[Episode], spaces: tuple[gs.Space[Any], gs.Space[Any]], out: str, about: dict[str, str],
    env: str = "",
) -> tuple[Path, list[float]]:  # fmt: skip
    """Write them, one after the other, as a Minari data set: ``out`` is its ID (``namespace/name-v0``) or a directory
    that is not there yet. It is there whole or not at all. env: an ID that Gymnasium has, so that Minari finds the
    environment again. Returns where it lies and the episodes' returns. Raises UsageError where it cannot be."""
    try:
        import minari
        from minari.data_collector import EpisodeBuffer
        from minari.dataset.minari_storage import MinariStorage
        from minari.storage.datasets_root_dir import get_dataset_path
    except ImportError as error:
        raise UsageError(f"to record a Minari data set, install Minari: {pip_install('minari')}") from error
    named = ID.fullmatch(out) is not None
    folder = Path(get_dataset_path(out)) if named else Path(out)
    if folder.exists():
        raise UsageError(f"'{folder}' is there already: record under another name, or remove it")
    unfinished = folder.absolute().with_name(f".{folder.name}.tmp")  # Minari joins a relative path to itself
    shutil.rmtree(unfinished, ignore_errors=True)
    returns: list[float] = []
    try:
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        unfinished.mkdir()  # not through a link of that name
        (unfinished / "data").mkdir()
        kept = MinariStorage.new(
            unfinished / "data", *spaces, gym.registry.get(env), data_format="hdf5", jpeg_encoding=False
        )
        name = out if named else f"{re.sub(r'[^A-Za-z0-9_-]', '-', folder.name)}-v0"
        kept.update_metadata({"dataset_id": name, "minari_version": minari.__version__, **about})
        for number, e in enumerate(episodes):
            last = np.arange(len(e.rewards)) == len(e.rewards) - 1
            buffer = EpisodeBuffer(
                id=number, observations=e.observations, actions=e.actions, rewards=e.rewards,
                terminations=last & e.terminated, truncations=last & e.truncated, infos={},
            )  # fmt: skip
            kept.update_episodes([buffer])
            returns.append(float(np.sum(e.rewards)))
        if not returns:
            raise UsageError("no episode was played to its end: nothing is written")
        unfinished.rename(folder)
    except OSError as error:
        raise UsageError(f"the data set cannot be written to '{folder}': {error.strerror or error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder, returns


def _final(info: Values) -> Any:
    """The true last observation of an environment that shows the next episode's first already."""
    last = info["final_obs"]
    return last[0] if isinstance(last, np.ndarray) and last.dtype == object else _first(last)


def _first(obs: Any) -> Any:
    """The first of a batch of observations, as arrays of its own."""
    if isinstance(obs, dict):
        return {key: _first(part) for key, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_first(part) for part in obs)
    return np.array(obs[0])


def joined(seen: list[Any]) -> Any:
    """Observations one after the other, leaf by leaf."""
    if isinstance(seen[0], dict):
        return {key: joined([obs[key] for obs in seen]) for key in seen[0]}
    if isinstance(seen[0], tuple):
        return tuple(joined([obs[i] for obs in seen]) for i in range(len(seen[0])))
    return np.stack(seen)
