"""A signal ends a run within 25 s with a whole checkpoint, whatever its actors are doing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium import spaces as gs
from trainings import Training

from shoal.records import checkpoint
from shoal.records.checkpoint import part

FILE = str(Path(__file__).resolve())


class Dead(gym.Env[Any, Any]):
    """Its 500th step never ends; a file named by the process tells that it began (see Training)."""

    observation_space, action_space = gs.Box(-1, 1, (2,), np.float32), gs.Discrete(2)
    t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        if self.t == 500:
            Path(os.environ["SHOAL_TEST_PIDS"], f"dead-{os.getpid()}").touch()
            time.sleep(1_000)
        return np.zeros(2, np.float32), 0.0, False, self.t % 50 == 0, {}


@pytest.mark.timeout(120)
def test_actors_that_are_dead_slow_cost_no_checkpoint(tmp_path: Path) -> None:
    small = ["--actors", "2", "--envs", "2", "--unroll", "8", "--min-replay", "64", "--batch", "16"]
    training = Training(tmp_path / "t", "--env", f"{FILE}:Dead", *small, system="apex-dqn")
    process, end = training.process, time.monotonic() + 60
    while len(list(training.folder.glob("dead-*"))) < 2:
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.1)
    family = psutil.Process(process.pid).children(recursive=True)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, output = process.communicate(timeout=60)
    assert process.returncode == 143 and time.monotonic() - began < 25, output
    assert "killing actor[0], actor[1]" in output
    saved = checkpoint.newest(training.folder / "r" / checkpoint.FOLDER)
    assert saved.read(part("role", "learner", 0))["role"]["learner"]["step"] > 0
    assert not psutil.wait_procs(family, timeout=60)[1], "orphans"
