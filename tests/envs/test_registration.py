"""Ids that a user's program registers reach actors, evaluators and later processes, however they were registered."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from shoal.api import UsageError
from shoal.cli.main import main
from shoal.envs import EnvOptions, installed as installed_packages, spec
from shoal.envs.from_callable import given
from shoal.envs.installed import import_package
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

        def __reduce__(self) -> tuple[Any, ...]:
            return _not_there, ()

    gym.register("Lost-v0", entry_point=Lost())  # type: ignore[arg-type]
    gym.register("Untold-v0", entry_point=threading.Lock())  # type: ignore[arg-type]
    gym.register("Kept-v0", entry_point=lambda: None)  # type: ignore[arg-type]  # nobody makes it
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


def installed(folder: Path, name: str, text: str, below: str = "") -> None:
    """A package as an installer leaves it: one that needs Gymnasium, whose file ``below`` it has the text."""
    module = folder / name / below
    module.mkdir(parents=True)
    (folder / name / "__init__.py").touch()
    (module / "__init__.py").write_text(text)
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: gymnasium>=1\n")
    (about / "top_level.txt").write_text(f"{name}\n")


REGISTER = "import gymnasium\ngymnasium.register(id={}, entry_point='gymnasium.envs.classic_control:CartPoleEnv')\n"


@pytest.mark.parametrize(
    "env, told",
    [
        ("Zeppelin-v0", "did you mean 'test_airships:Zeppelin-v0'?"),
        ("CartPolePlus-v0", "did you mean 'test_parts.wrapper:CartPolePlus-v0'?"),
        ("Submarine7Crew-v2", "did you mean 'test_boats:Submarine7Crew-v2'?"),
        ("CartPola-v1", "did you mean 'CartPole-v1'?"), ("CartPol-v1", "did you mean 'CartPole-v1'?"),
        ("Acrobot", "did you mean 'Acrobot-v1'?"), ("Acrobot-v9", "did you mean 'test_parts.wrapper:Acrobot-v9'?"),
        ("Zep-v0", "unknown environment 'Zep-v0' (an id"),
        ("big-Zeppelin-v0", "did you mean 'test_airships:Zeppelin-v0'?"),
        ("Gliders-v0", "did you mean 'test_gym_gliders:Gliders-v0'?"),
        ("CartPole-v1\r", r"unknown environment 'CartPole-v1\r'; did you mean 'CartPole-v1'?"),
        ("a\nb", r"unknown environment 'a\nb'"), ("Q" * 10_000, "unknown environment 'QQQ"),
    ],
)  # fmt: skip
def test_an_id_of_an_installed_package_is_suggested_with_its_module(
    env: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, "test_airships", REGISTER.format("'Zeppelin-v0'"))
    installed(
        tmp_path, "test_boats", "for n in range(0):\n    " + REGISTER.format("f'Submarine{n}Crew-v2'").splitlines()[1]
    )
    installed(tmp_path, "test_parts", REGISTER.format('"CartPolePlus-v0"') + "# 'Acrobot-v9'\n", below="wrapper")
    installed(tmp_path, "test_gym_gliders", "import test_no_such_package\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match=re.escape(told)) as refused:
        spec(env, EnvOptions())
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400
    assert not {"test_airships", "test_boats", "test_parts", "test_gym_gliders"} & sys.modules.keys(), (
        "nothing is imported"
    )


def test_a_package_that_registers_when_asked_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = REGISTER.format("'OnDemand-v0'").splitlines()
    installed(tmp_path, "test_on_demand", f"{lines[0]}\ndef register_envs():\n    {lines[1]}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert spec("test_on_demand:OnDemand-v0", EnvOptions()).action.sizes == (2,)
    with pytest.raises(UsageError, match="module 'test_on_demand' has no 'OnDemnd-v0'; did you mean 'OnDemand-v0'"):
        spec("test_on_demand:OnDemnd-v0", EnvOptions())
    gym.registry.pop("OnDemand-v0")


def test_a_search_that_takes_long_says_what_it_looks_for_and_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(tmp_path, "test_airships", REGISTER.format("'Zeppelin-v0'"))
    monkeypatch.syspath_prepend(str(tmp_path))
    read = installed_packages._text

    def slow(file: Any) -> str:
        time.sleep(0.05)
        return read(file)

    monkeypatch.setattr(installed_packages, "_text", slow)
    monkeypatch.setattr(installed_packages, "NOTICE_SECONDS", 0.01)
    monkeypatch.setattr(installed_packages, "SECONDS", 0.0)
    with pytest.raises(UsageError, match=r"'Zeppelin-v0'; the search .* was given up after 5 s"):
        spec("Zeppelin-v0", EnvOptions())
    assert "shoal: 'Zeppelin-v0' is being looked for among the installed packages" in capsys.readouterr().err


def test_envs_lists_what_a_package_registers_and_names_packages_that_may_have_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(tmp_path, "test_airships", REGISTER.format("'Zeppelin-v0'"))
    installed(tmp_path, "test_rafts", "import test_no_such_package\n")
    installed(tmp_path, "test_dinghies", "import pkg_resources\n")
    installed(tmp_path, "test_canoes", "")
    installed(tmp_path, "test_ferries", REGISTER.format("'Ferry-v0'"))
    (tmp_path / "test_ferries" / "harbour_v1.py").write_text("def parallel_env(): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert main(["envs", "zeppelin"]) == 0
        assert capsys.readouterr().out.endswith("in packages that `shoal envs PACKAGE` imports: test_airships\n")
        assert main(["envs", "test-airships"]) == 0
        assert capsys.readouterr().out.split()[0] == "test_airships:Zeppelin-v0"
        for package, told in (
            ("test_rafts", "package 'test_rafts' cannot be imported: No module named 'test_no_such_package'"),
            ("test_dinghies", "; pip install 'setuptools<81' brings it"),
            ("test_canoes", "; a class or a function of it that makes one is named as --env test_canoes:NAME"),
        ):
            assert main(["envs", package]) == 2
            assert told in capsys.readouterr().err
        assert main(["envs", "test_ferries"]) == 0  # games of PettingZoo hide nothing that Gymnasium has
        listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
        assert listed == ["test_ferries.harbour_v1:parallel_env", "test_ferries:Ferry-v0"]
    finally:
        for id in ("Zeppelin-v0", "Ferry-v0"):
            gym.registry.pop(id, None)
        for name in ("test_airships", "test_canoes", "test_ferries"):
            sys.modules.pop(name, None)


def test_minatar_is_registered_as_it_registers_itself() -> None:
    pytest.importorskip("minatar")
    assert import_package("minatar")
    ours = {id: (entry.entry_point, entry.kwargs) for id, entry in gym.registry.items() if id.startswith("MinAtar/")}
    for id in ours:
        del gym.registry[id]
    importlib.import_module("minatar.gym").register_envs()
    theirs = {id: (entry.entry_point, entry.kwargs) for id, entry in gym.registry.items() if id.startswith("MinAtar/")}
    assert len(ours) == 10 and ours == theirs
