"""Environments that do what few do, and some that nobody should: each class says what."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode, SyncVectorEnv

MASK = np.array([1, 0, 1, 0], np.int8)


class Plain(gym.Env[Any, Any]):
    """Three numbers, two actions, five steps."""

    observation_space: gs.Space[Any] = gs.Box(-1, 1, (3,), np.float32)
    action_space: gs.Space[Any] = gs.Discrete(2)
    time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self.show(), self.tell()

    def step(self, action: Any) -> Any:
        self.time += 1
        return self.show(), 1.0, False, self.time == 5, self.tell()

    def show(self) -> Any:
        return np.full(3, 0.1 * self.time, np.float32)

    def tell(self) -> Any:
        return {}


class Masked(Plain):
    """A Dict with a mask, of which the environment says that it is none; another mask is in ``info``."""

    observation_space: gs.Space[Any] = gs.Dict({"x": gs.Box(-1, 1, (2,), np.float32), "action_mask": gs.MultiBinary(4)})
    action_space = gs.Discrete(4)

    def show(self) -> Any:
        return {"x": np.zeros(2, np.float32), "action_mask": np.zeros(4, np.int8)}

    def tell(self) -> Any:
        return {"action_mask": MASK}

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, float(MASK[action]), *rest


class InInfo(Masked):
    """A mask in ``info`` alone."""

    metadata: dict[str, Any] = {"action_mask": True}  # noqa: RUF012 - Gymnasium's
    observation_space = Plain.observation_space

    def show(self) -> Any:
        return Plain.show(self)


class Pushed(Plain):
    """Continuous actions, and an observation that is called like a mask."""

    observation_space = Masked.observation_space
    action_space = gs.Box(-1, 1, (2,), np.float32)
    show = Masked.show


class CloseRaises(Plain):
    """Fails when it is closed."""

    def close(self) -> None:
        raise OSError("the door is stuck")


class Differs(Plain):
    """Has another space each time it is made."""

    made = 0

    def __init__(self) -> None:
        Differs.made += 1
        self.observation_space = gs.Box(-1, 1, (2 + Differs.made % 2,), np.float32)


class Exits(Plain):
    """Ends its process instead of being made."""

    def __init__(self) -> None:
        sys.exit(3)


class Rewards(Plain):
    """Rewards are arrays ``[size]``."""

    def __init__(self, size: int = 1) -> None:
        self.size = size

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, np.full(self.size, 2.5), *rest


class Old(Plain):
    """Steps and resets as before Gymnasium 0.26: ``bad`` says which."""

    def __init__(self, bad: str) -> None:
        self.bad = bad

    def reset(self, **given: Any) -> Any:
        obs, info = super().reset(**given)
        return {"reset": obs, "none": (obs, None)}.get(self.bad, (obs, info))

    def step(self, action: Any) -> Any:
        obs, reward, _, done, info = super().step(action)
        return (obs, reward, done, info) if self.bad == "step" else (obs, reward, False, done, info)


class Twins(Plain):
    """Two observations that are one when they are flat."""

    observation_space = gs.Dict({"a": gs.Dict({"b": gs.Discrete(2)}), "a/b": gs.Discrete(3)})


class OwnLast(Plain):
    """Shows its last action itself."""

    observation_space = gs.Dict({"last_action": gs.Discrete(2), "x": gs.Discrete(2)})

    def show(self) -> Any:
        return {"last_action": 0, "x": 1}


class Tells(Plain):
    """An ``info`` with names that mean something elsewhere."""

    def tell(self) -> Any:
        return {"success": 1.0, "return": 4.0, "final_info": 2.0, 3: 1.0}


class Wide(Plain):
    """Actions between the largest numbers of 64 bits."""

    action_space = gs.Box(-1e300, 1e300, (2,), np.float64)


class Huge(Plain):
    """Pictures of which no replay holds many."""

    observation_space = gs.Box(0, 255, (600, 600, 3), np.uint8)

    def show(self) -> Any:
        return np.zeros((600, 600, 3), np.uint8)


class Filmed(Plain):
    """``picture`` says what it draws."""

    metadata: dict[str, Any] = {"render_fps": "fast"}  # noqa: RUF012

    def __init__(self, picture: str = "rgb", render_mode: str | None = None) -> None:
        self.picture, self.render_mode = picture, render_mode

    def render(self) -> Any:
        if self.picture == "raises":
            raise NotImplementedError("nothing to see")
        grows = 32 + 2 * self.time * (self.picture == "grows")
        frame = np.full((grows, 32, {"rgba": 4, "grey": 1}.get(self.picture, 3)), 200, np.uint8)
        return frame.astype(np.float32) if self.picture == "floats" else frame


class Sized(Plain):
    """``numbers`` are shown."""

    def __init__(self, numbers: int = 3) -> None:
        self.numbers = numbers
        self.observation_space = gs.Box(-1, 1, (numbers,), np.float32)

    def show(self) -> Any:
        return np.zeros(self.numbers, np.float32)


class Batch(SyncVectorEnv):
    """A vector environment; ``bad`` says what is wrong with it."""

    def __init__(self, num_envs: int, bad: str = "") -> None:
        base = Masked if bad == "array" else Plain
        super().__init__([base] * (num_envs + (bad == "number")), autoreset_mode=AutoresetMode.SAME_STEP)
        self.bad = bad
        metadata: dict[str, Any] = {
            "text": {"autoreset_mode": "SAME_STEP"}, "nonsense": {"autoreset_mode": "sometimes"}, "none": None
        }  # fmt: skip
        self.metadata = metadata.get(bad, self.metadata)
        if bad == "spaces":
            del self.single_action_space

    def step(self, actions: Any) -> Any:
        obs, rewards, terminated, truncated, info = super().step(actions)
        actions[...] = 0  # into what it was given
        bad: dict[str, Any] = {"list": [info], "short": {**info, "x": np.zeros(2)}, "final": {"final_info": None}}
        info = bad.get(self.bad, info)
        if self.bad == "flags":
            return obs, rewards, terminated[:1], truncated[:1], info
        return np.zeros((self.num_envs, 2)) if self.bad == "array" else obs, rewards, terminated, truncated, info


def one(num_envs: int) -> Any:
    """One environment, though it takes ``num_envs``."""
    return Plain()
