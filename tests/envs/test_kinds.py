"""Which kind of environment a name or a function stands for, whatever its spelling and what is around it."""

from __future__ import annotations

import sys
import warnings
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces, wrappers

import shoal
from shoal import systems
from shoal.api import UsageError
from shoal.cli.main import main
from shoal.envs import EnvOptions, given, plays, spec
from shoal.run.kinds import playing
from shoal.settings.config import resolve
from shoal.settings.kinds import ATARI, env_kind, envpool_id, gymnasium_id

gym.register_envs(ale_py)


class Pictures(gym.ObservationWrapper[Any, Any, Any]):
    """Shows noise in place of an observation."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(0, 255, (40, 40, 3), np.uint8)

    def observation(self, observation: Any) -> Any:
        return np.zeros((40, 40, 3), np.uint8)


class Own(gym.Env[Any, Any]):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)


def wrapped() -> gym.Env[Any, Any]:
    inner = wrappers.TransformReward(gym.make("CartPole-v1"), lambda reward: reward)
    return wrappers.TimeLimit(inner, 50)


def vector(num_envs: int) -> Any:
    return gym.make_vec("CartPole-v1", num_envs)


def synchronised(num_envs: int) -> Any:
    return gym.vector.SyncVectorEnv([lambda: gym.make("Pendulum-v1")] * num_envs)


@pytest.mark.parametrize(
    "env, id",
    [
        (lambda: gym.make("CartPole-v1"), "CartPole-v1"), (wrapped, "CartPole-v1"), (vector, "CartPole-v1"),
        (synchronised, "Pendulum-v1"), (gym.envs.classic_control.AcrobotEnv, "Acrobot-v1"), (Own, ""),
        (lambda: Pictures(gym.make("CartPole-v1")), ""),
        (lambda: wrappers.TimeLimit(gym.make("ALE/Pong-v5"), 9), "ALE/Pong-v5"),
        (f"{__name__}:wrapped", "CartPole-v1"), ("CartPole-v1", "CartPole-v1"), ("toy:chain", "toy:chain"),
    ],
)  # fmt: skip
def test_a_function_plays_the_environment_that_it_makes(env: Any, id: str) -> None:
    assert plays(given(env), EnvOptions()) == id


@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_a_function_gets_the_preset_of_what_it_makes(runtime: str) -> None:
    system = systems.load("recurrent-ppo")
    by_name = resolve(system, overrides={"env": "CartPole-v1"})
    by_function = resolve(system, overrides={"env": given(wrapped)}, plays=playing(runtime))
    differ = {name for name, value in by_name.values().items() if by_function.values()[name] != value}
    assert by_function.preset == by_name.preset == "classic" and differ == {"env"}
    assert "makes CartPole-v1, which is of the kind 'classic'" in by_function.why


def test_an_environment_of_no_known_kind_gets_the_preset_of_what_it_shows() -> None:
    resolved = resolve(systems.load("dqn"), overrides={"env": given(Own)}, plays=playing("serial"))
    assert resolved.preset == "vector"
    resolved = resolve(systems.load("r2d3"), overrides={"env": given(Own)}, plays=playing("serial"))
    assert resolved.preset == "none", "it has none that is generic"


def test_a_preset_that_is_asked_for_needs_no_look_at_the_environment() -> None:
    def broken() -> None:
        raise ValueError

    for preset in ("none", "classic"):
        assert resolve(systems.load("dqn"), preset, None, {"env": given(broken)}, plays=playing("serial"))


def test_a_function_may_make_what_its_program_registered(tmp_path: Path) -> None:
    """The processes that step it did not run that program."""
    gym.register("Unheard-v0", entry_point=Heard)  # type: ignore[arg-type]  # it takes no settings
    try:
        run = shoal.train(
            "impala", env=lambda: gym.make("Unheard-v0"), run_dir=tmp_path / "r", steps=60, actors=1, envs=2, unroll=5,
            hidden=(8,), device="cpu", checkpoint_every=0,
        )  # fmt: skip
    finally:
        del gym.registry["Unheard-v0"]
    assert run.report is not None and run.report.steps >= 60


class Heard(Own):
    def reset(self, seed: Any = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 1.0, True, False, {}


def test_the_games_are_those_of_the_arcade_learning_environment() -> None:
    assert {id[4:-3] for id in gym.registry if id.startswith("ALE/")} >= ATARI


@pytest.mark.parametrize(
    "env, kind",
    [
        ("Pong-v5", "atari"), ("PongNoFrameskip-v4", "atari"), ("ALE/Pong-v5", "atari"), ("Ant-v5", "mujoco"),
        ("dm_control/cheetah-run-v0", "dm_control"), ("CheetahRun-v1", "dm_control"), ("phys2d/CartPole-v1", "classic"),
        ("Mine-v5", None),
    ],
)  # fmt: skip
def test_one_environment_has_one_kind_in_every_spelling(env: str, kind: str | None) -> None:
    assert env_kind(env) == kind


def test_other_packages_names_stand_for_the_same_environment() -> None:
    assert gymnasium_id("Pong-v5") == "ALE/Pong-v5" and gymnasium_id("Ant-v5") == "Ant-v5"
    assert envpool_id("dm_control/ball_in_cup-catch-v0") == "BallInCupCatch-v1" and envpool_id("Ant-v5") == "Ant-v5"
    named, spelled = (spec(env, EnvOptions()) for env in ("ALE/Pong-v5", "Pong-v5"))
    assert (named.backend, named.observations, named.stack) == (spelled.backend, spelled.observations, spelled.stack)


def test_the_command_says_which_preset_it_takes_of_a_file(capsys: Any) -> None:
    assert main(["config", "recurrent-ppo", "--env", f"{__file__}:wrapped"]) == 0
    assert "preset classic" in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize(
    "registry, kind", [({"Ancient-v0": 1}, "V26"), (SimpleNamespace(env_specs={"Ancient-v0": 1}), "V21")]
)
def test_an_id_of_the_old_gym_is_told_apart_from_an_unknown_one(
    registry: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old: Any = ModuleType("gym")
    old.envs, old.__spec__ = SimpleNamespace(registry=registry), ModuleSpec("gym", None)
    monkeypatch.setitem(sys.modules, "gym", old)
    says = f"registered with the old gym.*--env shimmy:Gym{kind}Environment-v0 --env-kwargs.env_id Ancient-v0$"
    with pytest.raises(UsageError, match=says):
        spec("Ancient-v0", EnvOptions())
    with pytest.raises(UsageError, match="unknown environment 'Unheard-v7'"):
        spec("Unheard-v7", EnvOptions())


def test_a_package_that_registers_with_the_old_gym_is_told_with_what_imports_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ancients.py").write_text(
        "import warnings\nprint('hello')\nwarnings.warn('old')\nfrom types import SimpleNamespace as spec\n"
        "import gym\nfor n in range(7):\n    gym.envs.registry[f'Ancient-v{n}'] = spec(entry_point='ancients:Env')\n"
    )
    (tmp_path / "ancients-1.dist-info").mkdir()
    (tmp_path / "ancients-1.dist-info" / "METADATA").write_text("Name: ancients\nVersion: 1\nRequires-Dist: gym\n")
    (tmp_path / "ancients-1.dist-info" / "top_level.txt").write_text("ancients\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    old: Any = ModuleType("gym")
    old.envs, old.__spec__ = SimpleNamespace(registry={"Other-v0": 1}), ModuleSpec("gym", None)
    monkeypatch.setitem(sys.modules, "gym", old)
    monkeypatch.delitem(sys.modules, "ancients", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(UsageError, match=r"--env-kwargs\.env_id ancients:Ancient-v3$"):
            spec("ancients:Ancient-v3", EnvOptions())
    monkeypatch.delitem(sys.modules, "ancients")
    capsys.readouterr()
    assert main(["envs", "ancients"]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1  # what it prints and warns of when it is imported is not shown
    listed = ": Ancient-v0, Ancient-v1, Ancient-v2, Ancient-v3, Ancient-v4 and 2 others; for the first, "
    assert "'ancients' registers with the old gym" in told.err and listed in told.err
    assert told.err.endswith("--env-kwargs.env_id ancients:Ancient-v0\n")
