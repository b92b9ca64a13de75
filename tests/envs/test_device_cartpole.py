"""CartPole on a device: Gymnasium's dynamics, ends and starts; and PPO on it, with no observation on the host."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from devices import DEVICE
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from noted import noted

from shoal.api import Context, UsageError
from shoal.envs import make, spec
from shoal.envs.device_cartpole import CartPole
from shoal.envs.options import EnvOptions
from shoal.envs.through_numpy import ThroughNumPy
from shoal.metering.recorder import Recorder
from shoal.runtime.launch import Launch, Stop
from shoal.serial.runtime import SerialRuntime
from shoal.systems import recurrent_ppo

NAME = "device:CartPole-v1"
HERE = ["cpu", pytest.param(DEVICE, marks=pytest.mark.cuda)]


@pytest.mark.parametrize("device", HERE)
def test_its_steps_are_gymnasiums(device: str) -> None:
    ours, theirs = CartPole(64, device), [CartPoleEnv() for _ in range(64)]
    ours.reset(3)
    rng, ends = np.random.default_rng(0), 0
    for _ in range(60):
        for row, env in enumerate(theirs):
            env.reset()
            env.state = ours.place[row].cpu().numpy()
        action = rng.integers(0, 2, 64)
        found = ours.step(torch.from_numpy(action).to(device))
        for row, env in enumerate(theirs):
            obs, reward, terminated, _, _ = env.step(action[row])
            np.testing.assert_allclose(found.final_obs["obs"][row].cpu(), obs, rtol=1e-6, atol=1e-9)
            assert found.reward[row] == reward and bool(found.terminated[row]) == terminated
            ends += terminated
    assert ends > 50


@pytest.mark.parametrize("column, bound", [(0, 2.4), (2, 12 * np.pi / 180)])
def test_episodes_end_just_beyond_the_bounds_as_gymnasiums_do(column: int, bound: float) -> None:
    env, theirs = CartPole(4, max_episode_steps=1), CartPoleEnv()
    env.reset(0)
    env.place = torch.zeros(4, 4, dtype=torch.float64)
    env.place[:, column] = torch.tensor([-1.001, -0.999, 0.999, 1.001], dtype=torch.float64) * bound
    wanted = []
    for place in env.place:
        theirs.reset()
        theirs.state = place.numpy()
        wanted.append(theirs.step(1)[2])
    step = env.step(torch.ones(4, dtype=torch.int64))
    assert step.terminated.tolist() == wanted == [True, False, False, True]
    assert step.truncated.tolist() == [False, True, True, False], "an end of the task is not one of the time"


def test_an_episode_that_ends_begins_anew_within_the_step() -> None:
    env = CartPole(32, max_episode_steps=7)
    first = env.reset(0)["obs"]
    assert first.abs().max() <= 0.05 and first.unique().numel() > 100
    for t in range(1, 15):
        step = env.step(torch.arange(32) % 2)
        assert step.truncated.all() == (t % 7 == 0) and not step.terminated.any()
        ended = step.truncated[:, None].expand(-1, 4)
        assert (step.obs["obs"][ended].abs() <= 0.05).all()
        assert torch.equal(step.obs["obs"][~ended], step.final_obs["obs"][~ended])


def test_its_seed_decides_its_episodes_and_its_state_goes_on() -> None:
    one, same, other = CartPole(8), CartPole(8), CartPole(8)
    assert torch.equal(one.reset(5)["obs"], same.reset(5)["obs"])
    assert not torch.equal(one.reset(5)["obs"], other.reset(6)["obs"])
    action = torch.ones(8, dtype=torch.int64)
    for _ in range(5):
        one.step(action)
    other.load_state_dict({k: v.clone() for k, v in one.state_dict().items()})
    for _ in range(40):
        assert torch.equal(one.step(action).obs["obs"], other.step(action).obs["obs"])


def test_through_numpy_it_is_an_environment_like_any_other() -> None:
    assert spec(NAME, EnvOptions()).autoreset == "same_step"
    batch = make(NAME, 4, EnvOptions())
    batch.reset(0)
    ends = 0
    for _ in range(60):
        step = batch.step(np.ones(4, np.int64))
        ends += int(step.terminated.sum())
        assert step.valid.all() and len(step.episodes) == step.terminated.sum()
    assert ends >= 4


def test_through_numpy_each_seed_has_starts_of_its_own() -> None:
    env = ThroughNumPy(CartPole, 1)
    starts = [env.reset(seed=seed)[0].tobytes() for seed in range(300)]
    assert len(set(starts)) == 300 and env.reset(seed=7)[0].tobytes() == starts[7]


def program(device: str, **fields: Any) -> Any:
    small = dict(env=NAME, device=device, actors=1, envs=64, unroll=16, hidden=(16,), minibatches=4, epochs=2)
    return recurrent_ppo.program(recurrent_ppo.Config(**{**small, **fields}))


@pytest.mark.parametrize("device", HERE)
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_ppo_learns_on_it_with_no_array_of_numpys(device: str, core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a rollout of 64 x 16 steps, what the batch holds is what was played, on the device."""
    role = program(device, core=core, core_size=8).roles[0]
    made: Any = role.make(Context("learner", 0, 1, 0, 0, Recorder()), params=None, own=None)
    with monkeypatch.context() as only:
        only.setattr(torch.Tensor, "numpy", lambda *_: pytest.fail("an array of NumPy's"))
        only.setattr(torch, "from_numpy", lambda *_: pytest.fail("an array of NumPy's"))
        before = {k: v.clone() for k, v in made.learner.params().items()}
        items = made.batches.get().items
    assert {v.device.type for v in items.values()} == {torch.device(device).type}
    assert items["obs"].shape == (17, 64, 4) and items["value"].shape == (17, 64) and items["action"].shape == (16, 64)
    ended = items["terminated"] | items["truncated"]
    assert torch.equal(items["first"][1:], ended) and ended.any()
    metrics = made.learner.update(made.batches.get()).metrics
    assert float(metrics["ratio_error"]) < 1e-4, "what acted is what is learned from"
    assert any(not torch.equal(before[k], v) for k, v in made.learner.params().items())


def test_episodes_are_told_with_their_own_returns_and_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Across two trajectories, as a count of the rewards between two ends finds them."""
    made: Any = program("cpu").roles[0].make(Context("learner", 0, 1, 0, 0, Recorder()), params=None, own=None)
    told: list[tuple[float, int]] = []
    monkeypatch.setattr(made.batches.ctx.metrics, "episode", lambda *found: told.append(found))
    lengths, wanted = [0] * 64, []
    for _ in range(2):
        items = made.batches.get().items
        ended = items["terminated"] | items["truncated"]
        for t, env in np.ndindex(16, 64):
            lengths[env] += 1
            if ended[t, env]:
                wanted.append((float(lengths[env]), lengths[env]))
                lengths[env] = 0
    assert told == wanted and max(lengths) > 0 and len(wanted) > 30


def test_last_observations_are_read_as_part_of_their_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    role = program("cpu", max_episode_steps=5, core="lstm", core_size=8).roles[0]
    made: Any = role.make(Context("learner", 0, 1, 0, 0, Recorder()), params=None, own=None)
    step, begun = made.batches.nets.step, list[torch.Tensor]()
    monkeypatch.setattr(
        made.batches.nets, "step", lambda obs, first, state: noted(begun, first.clone(), step(obs, first, state))
    )
    made.batches.get()
    assert len(begun) > 17, "16 steps and the observation after them"
    assert begun[0].all() and not any(first.any() for first in begun[17:])


def test_an_observation_after_an_end_of_the_time_is_an_episodes_first() -> None:
    role = program("cpu", max_episode_steps=5).roles[0]
    made: Any = role.make(Context("learner", 0, 1, 0, 0, Recorder()), params=None, own=None)
    items = made.batches.get().items
    assert torch.equal(items["first"][1:], items["terminated"] | items["truncated"])
    assert items["truncated"].any() and items["first"][0].all()


def test_values_of_truncated_ends_are_those_of_their_last_observations() -> None:
    role = program("cpu", max_episode_steps=5).roles[0]
    made: Any = role.make(Context("learner", 0, 1, 0, 0, Recorder()), params=None, own=None)
    items = made.batches.get().items
    assert items["truncated"][4].all() and items["final_value"][4].unique().numel() > 30
    assert (items["final_value"][~items["truncated"]] == 0).all()


def test_ppo_learns_to_balance_on_it() -> None:
    torch.set_num_threads(1)
    fields = dict(unroll=32, steps=100_000, learning_rate=3e-3, gamma=0.98, epochs=4)
    found = SerialRuntime().launch(program("cpu", **fields), Launch(seed=0, stop=Stop(updates=30)))
    assert found.steps == 30 * 64 * 32 and found.episode_return is not None and found.episode_return > 60  # random: 22


@pytest.mark.parametrize("core", ["none", "gru"])
def test_a_run_that_stops_between_two_trajectories_goes_on_as_if_it_had_not(core: str) -> None:
    def make_role() -> Any:
        role = program("cpu", core=core, core_size=8, normalise_reward=True).roles[0]
        return role.make(Context("learner", 0, 1, 0, 0, Recorder()), params=Published(), own=None)

    whole, part, after = make_role(), make_role(), make_role()
    for role in (whole, part):
        role.start()
    for _ in range(3):
        whole.step()
    part.step()
    after.load_state_dict(copy.deepcopy(part.state_dict()))
    after.step()
    after.step()
    for name, value in whole.learner.params().items():
        assert torch.equal(value, after.learner.params()[name]), name


class Published:
    def publish(self, params: Any) -> int:
        return 1


def test_what_an_environment_on_the_device_cannot_do_is_refused() -> None:
    with pytest.raises(UsageError, match=r"novelty is 0.5, but device:CartPole-v1 lives on the learner's device"):
        program("cpu", novelty=0.5)
