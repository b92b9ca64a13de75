"""Each cause is shown by a toy made for it, in a serial run of a second, or by figures; none by a run that learns."""

import logging
import math

import gymnasium as gym
import numpy as np
import pytest

import shoal
from shoal.metering.aggregator import Snapshot
from shoal.run import symptoms
from shoal.run.symptoms import CAUSES, EPISODES, PAGE, Symptoms
from shoal.systems import dqn, recurrent_ppo


class Toy(gym.Env):
    """Episodes of ``length`` steps (0: without end). ``reward`` is paid for each step, with noise of ``noise``."""

    def __init__(self, length=10, reward=-1.0, noise=0.0, scale=1.0, constant=False, learnable=False):
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(3)
        self.length, self.reward, self.noise = length, reward, noise
        self.scale, self.constant, self.learnable = scale, constant, learnable

    def _obs(self):
        seen = np.zeros(2) if self.constant else self.np_random.standard_normal(2) * self.scale
        return seen.astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return self._obs(), {}

    def step(self, action):
        self.age += 1
        reward = self.reward + self.noise * self.np_random.standard_normal() + 2.0 * (self.learnable and action == 1)
        return self._obs(), reward, self.age == self.length, False, {}


PPO = dict(actors=1, envs=4, unroll=16, minibatches=2, epochs=1, steps=2_560, learning_rate=1e-3)
DQN = dict(envs=4, unroll=4, min_replay=50, batch=16, samples_per_insert=1.0, steps=2_400, learning_rate=1e-4)


def train(tmp_path, caplog, system, toy, **fields):
    """The warnings of a serial run on a toy."""
    with caplog.at_level(logging.WARNING, "shoal.run"):
        shoal.train(
            system, env=Toy, env_kwargs=toy, preset="none", runtime="serial", run_dir=tmp_path / "run", seed=3, **fields
        )
    return [record.getMessage() for record in caplog.records if record.name == "shoal.run"]


@pytest.mark.parametrize(
    ("name", "system", "toy", "fields"),
    [
        ("one-return", "recurrent-ppo", {}, PPO),
        ("one-return", "dqn", {"reward": 0.0}, DQN),
        ("replay-shorter-than-an-episode", "dqn", {"length": 100, "noise": 1.0}, {**DQN, "replay": 60}),
        ("random-actions", "dqn", {"noise": 1.0}, {**DQN, "epsilon_steps": 100_000}),
        (
            "clipped-rewards",
            "dqn",
            {"reward": 50.0, "noise": 5.0},
            {**DQN, "reward_clip": "sign", "epsilon_steps": 100},
        ),
        ("no-entropy", "recurrent-ppo", {"noise": 1.0}, {**PPO, "entropy_cost": -5.0, "learning_rate": 3e-2}),
        ("unexplained-returns", "recurrent-ppo", {"noise": 30.0}, {**PPO, "value_cost": 0.0}),
        ("observations", "recurrent-ppo", {"noise": 1.0, "scale": 1e4}, PPO),
        ("observations", "recurrent-ppo", {"noise": 1.0, "constant": True}, PPO),
    ],
)
def test_cause_is_named_of_a_toy_made_for_it(tmp_path, caplog, name, system, toy, fields):
    told = train(tmp_path, caplog, system, toy, **fields)
    assert any(f"{PAGE}#{name})" in sentence for sentence in told), told


def test_endless_episodes_are_named(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(symptoms, "MAX_STEPS_WITHOUT_EPISODE", 300)
    told = train(tmp_path, caplog, "recurrent-ppo", {"length": 0}, **PPO)
    assert len(told) == 1 and f"{PAGE}#endless-episodes" in told[0], told


def test_nothing_is_said_of_a_run_that_learns(tmp_path, caplog):
    toy = {"learnable": True, "noise": 0.1, "scale": 1e4}  # the size of what it sees would be named
    assert train(tmp_path, caplog, "recurrent-ppo", toy, **{**PPO, "learning_rate": 1e-2}) == []


def test_nothing_is_said_of_a_run_that_began_with_other_parameters(tmp_path, caplog):
    train(tmp_path / "first", caplog, "recurrent-ppo", {}, **PPO)
    caplog.clear()
    assert train(tmp_path, caplog, "recurrent-ppo", {}, init_from=tmp_path / "first" / "run", **PPO) == []


# ------------------------------------------------------------------------------------------- from figures
def snapshots(cfg, returns, length=10.0, **records):
    """The symptoms of a run of 1,000 steps, whose episodes returned ``returns``; records: functions of the share of the
    run that is done."""
    run = Symptoms(cfg, 1_000)
    for k, part in enumerate(np.array_split(np.asarray(returns, float), 100), 1):
        now = {name: value(k / 100) for name, value in records.items()}
        row = Snapshot(k, k, 10 * k, k, 0, 0, 0, length, 0, records=now, new_episodes=[(r, 10) for r in part.tolist()])
        run.update(row)
    return run


NOISE = np.random.default_rng(0).standard_normal(400)
BOX = recurrent_ppo.Config(env="Pendulum-v1")


@pytest.mark.parametrize(
    ("name", "records"),
    [
        ("growing-loss", {"value_loss": lambda done: 10.0 ** (4 * done)}),
        ("growing-loss", {"td_error": lambda done: 10.0 ** (4 * done)}),
        ("saturated-actions", {"saturated": lambda done: 0.99}),
        ("unexplained-returns", {"explained_variance": lambda done: -0.1}),
    ],
)
def test_cause_is_named_of_figures(name, records):
    (told,) = snapshots(BOX, NOISE, **records).sentences()
    assert told.endswith(f"({PAGE}#{name})")
    assert snapshots(BOX, NOISE + np.linspace(0, 5, 400), **records).sentences() == []  # it has improved


def test_a_remedy_for_unexplained_returns_is_nothing_that_the_run_has():
    records = {"explained_variance": lambda done: -0.1}
    (told,) = snapshots(BOX, NOISE, **records).sentences()
    assert "try --normalise-obs, --normalise-reward, --core lstm or a larger network" in told
    has = recurrent_ppo.Config(env="Pendulum-v1", normalise_obs=True, normalise_reward=True, core="lstm")
    (told,) = snapshots(has, NOISE, **records).sentences()
    assert "try a larger network (" in told
    (told,) = snapshots(BOX, [1.0] * 400, **records).sentences()
    assert "all returned 1" in told, "there is nothing to explain"


def test_figures_without_a_cause_say_nothing():
    fine = {"value_loss": lambda done: 1.0, "saturated": lambda done: 0.2, "explained_variance": lambda done: 0.6}
    assert snapshots(BOX, NOISE, **fine).sentences() == []


def test_a_solution_from_the_first_hundred_episodes_on_is_no_constant():
    assert (
        snapshots(dqn.Config(env="CartPole-v1", epsilon_steps=0), [*NOISE[:100] + 20, *[500.0] * 300]).sentences() == []
    )


def test_a_constant_that_the_first_episodes_did_not_return_is_not_named():
    assert (
        snapshots(dqn.Config(env="CartPole-v1", epsilon_steps=0), [*NOISE[:100] + 20, *[9.0] * 300]).sentences() == []
    )


def test_a_young_run_is_not_judged():
    run = Symptoms(dqn.Config(env="CartPole-v1"), 1_000)
    row = Snapshot(1, 1, 490, 100, 0, 0, 0, 10.0, 0, new_episodes=[(-1.0, 10)] * 200)
    run.update(row)
    assert run.sentences() == []
    row.steps, row.new_episodes = 510, []
    run.update(row)
    assert run.sentences()


def test_first_and_last_episodes_are_compared():
    run = snapshots(BOX, [0.0] * EPISODES + [9.0] * 10_000)
    assert run.improved and len(run.first) == EPISODES == len(run.last)
    assert math.isnan(run.of_late("entropy")) and math.isnan(run.growth("value_loss"))


def test_every_cause_has_its_section():
    with open("docs/not-learning.md", encoding="utf-8") as page:
        sections = {line[3:].strip() for line in page if line.startswith("## ")}
    assert sections == {cause.name for cause in CAUSES} | {"observations"}
