"""Ids that a user's program registers reach actors, evaluators and later processes, however they were registered."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import pytest

from shoal.envs.given import given
from shoal.envs.registration import MAIN, registration

PROGRAM = """
import sys
import gymnasium as gym, numpy as np
import shoal

class Steps(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)
    def __init__(self, gain=1.0):
        self.gain = gain
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}
    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), self.gain, self.t == 5, False, {}

class Doubled(gym.RewardWrapper):
    def reward(self, reward):
        return 2 * reward

def made(**given):
    return Steps(**given)

gym.register("ByClass-v0", entry_point=Steps)
gym.register("ByName-v0", entry_point="__main__:Steps", kwargs={"gain": 3.0})
gym.register("ByLambda-v0", entry_point=lambda **given: Steps(4.0))
gym.register("ByFunction-v0", entry_point=made, max_episode_steps=2)
gym.register("Wrapped-v0", entry_point="__main__:Steps", additional_wrappers=(
    gym.envs.registration.WrapperSpec("Doubled", "__main__:Doubled", {}),))

expected = {"ByClass-v0": 5.0, "ByName-v0": 15.0, "ByLambda-v0": 20.0, "ByFunction-v0": 2.0, "Wrapped-v0": 10.0}
small = dict(preset="none", actors=1, envs=2, unroll=8, hidden=(8,), min_replay=64, batch=8, quiet=True)
for name, wanted in expected.items():
    if name not in sys.argv[2:]:
        continue
    run = shoal.train("dqn", env=name, steps=400, runtime="local", run_dir=f"{sys.argv[1]}/{name}",
                      evaluation=shoal.Evaluation(every=200, episodes=1), **small)
    assert run.report.episode_return == wanted, (name, run.report.episode_return)
    run = shoal.resume(run.path, steps=500, quiet=True)
    assert run.report.reason == "steps" and list(run.evaluate(1)) == [wanted], name
    assert list(shoal.evaluate(run.path, episodes=1)) == [wanted]
print("ALL RIGHT")
"""


def output(command: list[str], given: str | None, tmp_path: Path) -> str:
    done = subprocess.run(
        [sys.executable, *command], input=given, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False
    )
    return done.stdout or done.stderr


def test_a_script_trains_what_it_registered(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PROGRAM)
    names = ["ByClass-v0", "ByName-v0", "ByLambda-v0", "ByFunction-v0", "Wrapped-v0"]
    assert output(["mine.py", "runs", *names], None, tmp_path) == "ALL RIGHT\n"


def test_a_program_from_standard_input_trains_what_it_registered(tmp_path: Path) -> None:
    assert output(["-", "runs", "ByName-v0"], PROGRAM, tmp_path) == "ALL RIGHT\n"


def test_a_registration_of_another_process_is_entered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "made_here", lambda: None, raising=False)
    gym.register("Mine-v0", entry_point="__main__:made_here")
    try:
        sent = registration("some.module:Mine-v0")
        assert sent is not None and list(sent.objects) == ["made_here"] and sent.asked == "Mine-v0"
        assert gym.registry["Mine-v0"].entry_point == "__main__:made_here", "the program's own entry stays"
        sent.enter()  # of this process: there is nothing to do
        assert gym.registry["Mine-v0"].entry_point == "__main__:made_here" and MAIN not in sys.modules
        other = replace(sent, process="another")
        other.enter()
        assert gym.registry["Mine-v0"].entry_point == f"{MAIN}:made_here"
        assert sys.modules[MAIN].made_here is sent.objects["made_here"]
    finally:
        gym.registry.pop("Mine-v0", None)
        sys.modules.pop(MAIN, None)
    assert registration("Unknown-v0") is None


def test_a_function_gets_the_entries_that_can_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may make any of them by its id; one whose module the other process lacks keeps none of the others back."""

    class Lost:
        def __init__(self, **given: object) -> None: ...

        def __reduce__(self) -> object:
            return _not_there, ()

    gym.register("Lost-v0", entry_point=Lost())  # type: ignore[arg-type]
    gym.register("Untold-v0", entry_point=threading.Lock())  # type: ignore[arg-type]
    gym.register("Kept-v0", entry_point=lambda: None)
    try:
        sent = registration(given(lambda: None))
        assert sent is not None and sent.asked == ""
        for id in ("Lost-v0", "Untold-v0", "Kept-v0"):
            gym.registry.pop(id)
        replace(sent, process="another").enter()
        assert "Kept-v0" in gym.registry and not {"Lost-v0", "Untold-v0"} & gym.registry.keys()
        gym.register("Lost-v0", entry_point=Lost())  # type: ignore[arg-type]
        asked = registration("Lost-v0")
        assert asked is not None
        with pytest.raises(ModuleNotFoundError, match="as another process would"):
            replace(asked, process="another").enter()
    finally:
        for id in ("Lost-v0", "Untold-v0", "Kept-v0"):
            gym.registry.pop(id, None)


def _not_there() -> None:
    raise ModuleNotFoundError("as another process would")
