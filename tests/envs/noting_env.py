"""An environment that notes in which processes it is made and stepped, and may leave a thread that never ends."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs


class Noting(gym.Env[Any, Any]):
    """Its observation is [0, 0]; an episode has five steps."""

    observation_space, action_space = gs.Box(-1.0, 1.0, (2,), np.float32), gs.Discrete(2)

    def __init__(self, folder: str, thread: bool = False):
        self.folder, self.t = Path(folder), 0
        self._note("made")
        if thread:
            threading.Thread(target=threading.Event().wait).start()  # not a daemon: it keeps its process alive

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self._note("stepped")
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t == 5, False, {}

    def _note(self, what: str) -> None:
        (self.folder / f"{what} {os.getpid()}").touch()


def noted(folder: Path, what: str) -> set[int]:
    """The processes in which it was ``made`` or ``stepped``."""
    return {int(path.name.split()[1]) for path in folder.glob(f"{what} *")}
