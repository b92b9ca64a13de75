"""Environments of the user's own on a device: recognised by their class, taken by DLPack, refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_points import SPEC, Counted, Elsewhere, Points

import shoal
from shoal.api import Context, UsageError
from shoal.envs import make, spec
from shoal.envs.on_device import device_envs, on_device
from shoal.envs.options import EnvOptions
from shoal.envs.own_device import OwnDeviceEnvs, on_any_device
from shoal.metering.recorder import Recorder
from shoal.runtime.launch import Launch, Stop
from shoal.serial.runtime import SerialRuntime
from shoal.settings.config import resolve
from shoal.systems import load, recurrent_ppo

HERE = str(Path(__file__).with_name("own_points.py"))
NAME = f"{HERE}:Points"


def program(**fields: Any) -> Any:
    small = dict(env=NAME, device="cpu", actors=1, envs=32, unroll=14, hidden=(16,), minibatches=4, epochs=2)
    return recurrent_ppo.program(recurrent_ppo.Config(**{**small, **fields}))


def test_a_class_that_takes_a_device_is_recognised_and_no_other() -> None:
    assert on_device(NAME) and on_device("device:CartPole-v1")
    ours = [f"{HERE}:{name}" for name in ("SPEC", "OnlyDevice", "OnlyNumber", "Vector")]
    for other in ("CartPole-v1", "toy:catch", *ours):
        assert not on_device(other)
    assert [role.name for role in program().roles] == ["learner"]


def test_a_class_that_is_not_of_python_is_no_environment_on_a_device() -> None:
    """Python knows no signature of it."""
    assert not on_any_device(type) and not on_any_device(len)


def test_an_environment_is_made_with_the_users_arguments() -> None:
    with pytest.raises(UsageError, match="it has no method 'step'"):
        device_envs(NAME, EnvOptions(env_kwargs={"wrong": "step"}), 2, "cpu")
    made = device_envs("device:CartPole-v1", EnvOptions(max_episode_steps=2), 3, "cpu")
    made.reset(0)
    ends = [bool(made.step(torch.zeros(3, dtype=torch.int64)).truncated.all()) for _ in range(4)]
    assert ends == [False, True, False, True]


@pytest.mark.parametrize("kind", ["Points", "Elsewhere", "Saving"])
def test_ppo_learns_on_it(kind: str) -> None:
    made = program(env=f"{HERE}:{kind}", learning_rate=3e-3)
    report = SerialRuntime().launch(made, Launch(seed=0, stop=Stop(updates=40)))
    assert report.episode_return is not None and report.episode_return > -8.0, "about -10 by chance"


def test_arrays_of_another_library_are_taken_without_a_copy() -> None:
    env = OwnDeviceEnvs("points", Elsewhere, 4, "cpu")
    place = env.reset(0)["obs/place"]
    env.env.place += 1.0
    assert torch.equal(place, env.env.place)
    torch_made = OwnDeviceEnvs("points", Points, 4, "cpu")
    torch_made.reset(3), env.reset(3)
    for _ in range(9):
        action = torch.rand(4, 2) * 4 - 2
        for ours, theirs in zip(torch_made.step(action), env.step(action), strict=True):
            if isinstance(ours, dict) and isinstance(theirs, dict):
                assert ours.keys() == theirs.keys()
            else:
                assert isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor)
                assert torch.equal(ours, theirs)
    assert all((a.abs() <= 1.0).all() for a in torch_made.env.actions), "inside the bounds"


@pytest.mark.parametrize("kind, by_task", [(Points, False), (Counted, True)])
def test_an_end_of_the_task_is_told_from_one_of_the_time(kind: type, by_task: bool) -> None:
    env = OwnDeviceEnvs("points", kind, 4, "cpu")
    env.reset(0)
    steps = [env.step(torch.zeros(4, 2)) for _ in range(7)]
    assert [bool(step.terminated.all()) for step in steps] == [False] * 6 + [by_task]
    assert [bool(step.truncated.all()) for step in steps] == [False] * 6 + [not by_task]


def test_through_numpy_it_is_an_environment_like_any_other() -> None:
    found = spec(NAME, EnvOptions())
    assert found.observations.keys() == SPEC.observations.keys() and found.action == SPEC.action
    batch = make(NAME, 3, EnvOptions())
    assert batch.reset(0)["obs/place"].shape == (3, 2)
    steps = [batch.step(np.zeros((3, 2), np.float32)) for _ in range(14)]
    assert sum(len(step.episodes) for step in steps) == 6


WRONG = {
    "spec": "needs an attribute 'spec' of the type shoal.building.EnvSpec, and has a str",
    "autoreset": "its spec says autoreset='next_step', expected 'same_step'",
    "step": "it has no method 'step'",
    "kind": "'obs' of its spec is vector of float64, expected float32",
    "names": "reset: found observations ['obs'], expected ['obs/age', 'obs/place'] as in its spec",
    "list": "reset: 'obs/place': found a list, expected a tensor, or an array that has __dlpack__",
    "shape": "reset: 'obs/place': found float32 [5, 1] on cpu, expected float32 [5, 2] on cpu",
    "type": "reset: 'obs/place': found float64 [5, 2] on cpu, expected float32 [5, 2] on cpu",
    "device": "reset: 'obs/place': found float32 [5, 2] on meta, expected float32 [5, 2] on cpu",
    "one_hot": "'obs' of its spec has the shape [2], expected [1]: an integer for each number in its size",
    "mixed": "its actions are mixed, expected discrete, multi_discrete or continuous ones",
    "RuntimeError": "reset: 'obs/place': PyTorch cannot take a Refusing: it is elsewhere",
    "BufferError": "reset: 'obs/place': PyTorch cannot take a Refusing: it is elsewhere",
    "TypeError": "reset: 'obs/place': PyTorch cannot take a Refusing: it is elsewhere",
    "four": "its step returned a tuple, expected a tuple of observations, rewards, terminated",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_with_it_is_one_sentence(wrong: str) -> None:
    def play() -> None:
        made = OwnDeviceEnvs("points", Points, 5, "cpu", wrong=wrong)
        made.reset(0)
        made.step(torch.zeros(5, 2))

    with pytest.raises(UsageError) as error:
        play()
    assert str(error.value).startswith("environment 'points': ") and WRONG[wrong] in str(error.value)
    assert "\n" not in str(error.value)


def test_arguments_that_it_does_not_take_and_errors_of_its_own_are_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"'points' cannot be made: .*colour"):
        OwnDeviceEnvs("points", Points, 5, "cpu", colour=3)
    with pytest.raises(UsageError, match=r"novelty is 0\.5, but .*own_points.py:Points lives on the learner's device"):
        program(novelty=0.5)


@pytest.mark.parametrize("preset, left", [(None, "novelty 0.0 (not 0.5)"), ("box2d", "reward_scale 1.0 (not 0.05)")])
def test_what_a_preset_says_of_options_that_it_lacks_is_left_off_with_a_sentence(preset: str | None, left: str) -> None:
    def found(system: str = "recurrent-ppo", **fields: Any) -> Any:
        return resolve(load(system), preset, overrides={"env": NAME, **fields}, name=system)

    ours = found(steps=1_000)
    assert recurrent_ppo.program(ours.cfg).roles
    told = f"{left}: {NAME} lives on the learner's device"
    assert told in ours.fitted and ours.origins[left.partition(" ")[0]].endswith("fitted")
    assert preset or "the run has 1,000 steps" in ours.fitted
    assert "lives on" not in found(env="Pendulum-v1").fitted
    if preset is None:
        assert found("impala").cfg.novelty == 0.5, "through NumPy"
    with pytest.raises(UsageError, match=r"novelty is 0\.25, but"):
        recurrent_ppo.program(found(novelty=0.25).cfg)


def test_rollouts_of_environments_that_save_nothing_begin_new_episodes() -> None:
    def rollouts() -> Any:
        return program().roles[0].make(Context("learner", 0, 1, 0, 0, Recorder()), params=None, own=None).batches

    before, after = rollouts(), rollouts()
    before.get()
    begun = {name: value.clone() for name, value in after.obs.items()}
    after.load_state_dict(before.state_dict())
    assert after.first.all() and not after.length.any()
    assert all(torch.equal(after.obs[name], value) for name, value in begun.items())


@pytest.mark.parametrize("kind, goes_on", [("Saving", True), ("Points", False)])
def test_a_resumed_run_goes_on_within_episodes_if_they_are_saved(kind: str, goes_on: bool, tmp_path: Path) -> None:
    given: dict[str, Any] = dict(total_envs=32, unroll=5, hidden=(16,), epochs=1, device="cpu", actors=1)
    env = f"{HERE}:{kind}"
    for name, steps in (("whole", 960), ("parts", 480)):
        shoal.train(
            "recurrent-ppo", env=env, runtime="serial", **given, steps=steps, run_dir=tmp_path / name, quiet=True
        )  # fmt: skip
    shoal.resume(tmp_path / "parts", steps=960, quiet=True)
    whole, parts = (
        json.loads((tmp_path / name / "report.json").read_text())["episodes"] for name in ("whole", "parts")
    )
    assert whole == 32 * (30 // 7)
    assert parts == (whole if goes_on else 32 * 2 * (15 // 7))
