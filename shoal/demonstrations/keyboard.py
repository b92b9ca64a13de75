"""Recording a person at the keyboard, by Gymnasium's ``play``."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from shoal.api import UsageError
from shoal.demonstrations.episodes import Episode
from shoal.demonstrations.recording import joined
from shoal.envs import EnvOptions, playable
from shoal.types import Values


def by_hand(
    env: str, options: EnvOptions, episodes: int, seed: int, keys: Mapping[str, Any], noop: int = 0, wait: bool = False
) -> list[Episode]:
    """Up to ``episodes`` whole episodes, fewer if the window is closed or ESC pressed before.

    keys: names of keys as SDL has them (``left``, ``space``, ``a``; several at once joined by ``+``) with their
    actions; none: those that the environment says (``get_keys_to_action``). noop: the action while no key is pressed.
    wait: nothing moves until a key is pressed, for games that are played in turns. UsageError without a screen or
    without pygame, for an environment without pictures, and where nobody says which key does what.
    """
    screens = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    if sys.platform.startswith("linux") and not any(map(os.environ.get, screens)):
        raise UsageError(
            "to record from the keyboard there must be a screen, and here is none (DISPLAY is not set): "
            "record a run or a scripted policy"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of matplotlib, which is for its plots
            import pygame
            from gymnasium.utils.play import play
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise UsageError("to record from the keyboard, install pygame: pip install pygame") from error
    game = Recorder(playable(env, options), episodes, seed)
    try:
        play(game, keys_to_action=_codes(env, game, keys) or None, noop=noop, wait_on_player=wait)
    except pygame.error as error:
        raise UsageError(
            f"to record from the keyboard there must be a screen, and none can be opened: {error}"
        ) from error
    finally:
        game.close()
    return game.episodes


def _codes(env: str, game: gym.Env[Any, Any], keys: Mapping[str, Any]) -> dict[tuple[int, ...], Any]:
    import pygame

    if not keys and not game.has_wrapper_attr("get_keys_to_action"):
        raise UsageError(f"{env} does not say which key does what: say it, as in --keys left=0 right=1")
    pygame.display.init()
    out = {}
    for names, action in keys.items():
        try:
            out[tuple(pygame.key.key_code(name) for name in names.split("+"))] = action
        except ValueError:
            raise UsageError(f"--keys expects names of keys such as left, space or a, found '{names}'") from None
        if not game.action_space.contains(np.int64(action)):
            raise UsageError(f"--keys {names}={action}: the actions of {env} are {game.action_space}")
    return out


class Recorder(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps every whole episode that is played in ``env``; after so many it asks for the window to be closed."""

    def __init__(self, env: gym.Env[Any, Any], wanted: int, seed: int) -> None:
        super().__init__(env)
        self.wanted, self.seed = wanted, seed
        self.episodes: list[Episode] = []
        self._seen: list[Any] = []
        self._actions: list[Any] = []
        self._rewards: list[float] = []

    def reset(self, *, seed: int | None = None, options: Values | None = None) -> Any:
        obs, info = super().reset(seed=self.seed + len(self.episodes), options=options)
        self._seen, self._actions, self._rewards = [_copied(obs)], [], []
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        self._seen.append(_copied(obs))
        self._actions.append(np.asarray(action))
        self._rewards.append(float(reward))
        if (terminated or truncated) and len(self.episodes) < self.wanted:
            rewards = np.array(self._rewards)
            self.episodes.append(
                Episode(joined(self._seen), np.stack(self._actions), rewards, bool(terminated), bool(truncated))
            )
            if len(self.episodes) == self.wanted:
                import pygame

                pygame.event.post(pygame.event.Event(pygame.QUIT))
        return obs, reward, terminated, truncated, info


def _copied(obs: Any) -> Any:
    if isinstance(obs, dict):
        return {key: _copied(part) for key, part in obs.items()}
    return tuple(map(_copied, obs)) if isinstance(obs, tuple) else np.array(obs)
