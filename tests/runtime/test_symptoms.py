"""Each cause is shown by a toy made for it, in a serial run of a second, or by figures; none by a run that learns."""

import logging
import math
from types import SimpleNamespace

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
        ("observations", "recurrent-ppo", {"noise": 1.0, "scale": 1e-4}, PPO),
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
    toy = {"learnable": True, "noise": 0.1, "scale": 1e-4}  # the size of what it sees would be named
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


# ------------------------------------------------------------------------------------------ the bounds
def figures(returns=(), steps=1_000, updates=20, length=10.0, ended_at=0, seen=None, limit=1_000, **cfg):
    """The symptoms of a run with these figures; seen: (steps, value) of metrics."""
    run = Symptoms(SimpleNamespace(num_actors=lambda: 2, envs=2, **cfg), limit)
    if returns:
        new = [(value, 10) for value in returns]
        run.update(Snapshot(1, 1, ended_at, 1, 0, 0, 0, length, 0, new_episodes=new))
    for at, row in sorted((seen or {}).items()):
        run.update(Snapshot(1, 1, at, 1, 0, 0, 0, length, 0, records=row, new_episodes=[]))
    run.update(Snapshot(1, 1, steps, updates, 0, 0, 0, length, 0, new_episodes=[]))
    return run


@pytest.mark.parametrize(
    ("returns", "better"),
    [
        ([0.0, 2.0] * 50 + [0.35, 2.35] * 50, False),  # 2.5 standard errors, each mean's one tenth: 0.354
        ([0.0, 2.0] * 50 + [0.36, 2.36] * 50, True),
        ([0.0, 2.0] * 50 + [1.25] * 100, False),  # of the first mean alone
        ([0.0, 2.0] * 50 + [9.0] + [1.25] * 100, False),  # the last hundred alone
        ([0.0, 2.0] * 50 + [9.0] + [1.25] * 99, True),
        ([0.0, 3.0, 1.0, 2.0], False),  # halves: 1.5 and 1.5
        ([0.0, 3.0, 2.0, 3.0], True),  # 2.5, above 1.5 and half of 1.5
        ([0.0, 3.0, 1.5, 3.0], False),
        ([1.0, 5.0, 2.0], True),  # the first and the last
        ([4.0], False),
        ([], False),
    ],
)
def test_a_run_has_improved_by_half_a_deviation_or_by_more_than_chance(returns, better):
    assert figures(returns).improved is better


def test_metrics_of_late_are_the_median_of_the_second_half():
    seen = {at: {"entropy": value} for at, value in ((499, 100.0), (500, 1.0), (600, 2.0), (1_000, 9.0))}
    assert figures(seen=seen).of_late("entropy") == 2.0


def test_growth_is_between_the_medians_of_the_second_and_the_last_quarter():
    seen = {249: 1e3, 250: 1.0, 300: 2.0, 499: 9.0, 500: 1e4, 749: 1e4, 750: 3.0, 800: 8.0, 1_000: 90.0}
    assert figures(seen={at: {"td_error": value} for at, value in seen.items()}).growth("td_error") == 8.0 / 2.0
    early, late = {250: {"td_error": 1.0}}, {750: {"td_error": 1.0}}
    assert math.isnan(figures(seen=early).growth("td_error")) and math.isnan(figures(seen=late).growth("td_error"))
    nothing = {250: {"td_error": 0.0}, 750: {"td_error": 1.0}}
    assert figures(seen=nothing).growth("td_error") == pytest.approx(1e12)


@pytest.mark.parametrize(
    ("steps", "updates", "episodes", "old", "stuck"),
    [
        (500, 20, 20, True, True),
        (499, 20, 20, False, False),
        (500, 19, 20, False, False),
        (500, 20, 19, True, False),
    ],
)
def test_a_run_is_judged_from_half_of_its_steps_20_updates_and_20_episodes_on(steps, updates, episodes, old, stuck):
    run = figures([1.0] * episodes, steps=steps, updates=updates)
    assert (run.old, run.stuck) == (old, stuck)
    better = figures([*[1.0] * episodes, *[9.0] * 60], steps=steps, updates=updates)
    assert not better.stuck


def late(**metrics):
    return {1_000: metrics}


ACTION = SimpleNamespace(low=(), sizes=(2, 3))
MIXED = SimpleNamespace(low=(0.0,), sizes=(2, 3))
EPSILON = dict(epsilon_start=1.0, epsilon_end=0.1, epsilon_steps=1_000, epsilon_ladder=False)


@pytest.mark.parametrize(
    ("shows", "shown", "hidden"),
    [
        ("_endless", dict(steps=40_007, ended_at=7, returns=[1.0]), dict(steps=40_006, ended_at=7, returns=[1.0])),
        ("_endless", dict(steps=40_000), dict(steps=39_999)),
        ("_constant", dict(returns=[1.0, 2.0, 1.0] + [1.0] * 100), dict(returns=[2.0, 2.0] * 60 + [1.0] * 100)),
        ("_constant", dict(returns=[1.0] * 20), dict(returns=[1.0] * 19 + [2.0])),
        # 2 % of log 6 is 0.0358
        (
            "_deterministic",
            dict(seen=late(entropy=0.035), env_spec=lambda: SimpleNamespace(action=ACTION)),
            dict(seen=late(entropy=0.0365), env_spec=lambda: SimpleNamespace(action=ACTION)),
        ),
        (
            "_deterministic",
            dict(seen=late(entropy=-1.0), env_spec=lambda: SimpleNamespace(action=ACTION)),
            dict(seen=late(entropy=-1.0), env_spec=lambda: SimpleNamespace(action=MIXED)),
        ),
        ("_saturated", dict(seen=late(saturated=0.91)), dict(seen=late(saturated=0.9))),
        (
            "_unexplained",
            dict(seen=late(explained_variance=0.0), returns=[1.0, 2.0]),
            dict(seen=late(explained_variance=0.01), returns=[1.0, 2.0]),
        ),
        (
            "_unexplained",
            dict(seen=late(explained_variance=-1.0), returns=[1.0, 2.0]),
            dict(seen=late(explained_variance=-1.0), returns=[1.0, 1.0]),
        ),
        (
            "_growing",
            dict(seen={300: {"td_error": 1.0}, 800: {"td_error": 10.1}}),
            dict(seen={300: {"td_error": 1.0}, 800: {"td_error": 10.0}}),
        ),
        (
            "_growing",  # the loss of the value, where both are told
            dict(seen={300: {"td_error": 1.0, "value_loss": 1.0}, 800: {"td_error": 1.0, "value_loss": 11.0}}),
            dict(seen={300: {"td_error": 1.0, "value_loss": 1.0}, 800: {"td_error": 11.0, "value_loss": 1.0}}),
        ),
        (
            "_short_replay",
            dict(replay=10, items_are_steps=True, length=10.5, returns=[1.0]),
            dict(replay=10, items_are_steps=True, length=10.0, returns=[1.0]),
        ),
        (
            "_short_replay",
            dict(replay=1, items_are_steps=True, length=10.5, returns=[1.0]),
            dict(replay=0, items_are_steps=True, length=10.5, returns=[1.0]),
        ),
        (
            "_short_replay",
            dict(replay=1, items_are_steps=True, length=10.5, returns=[1.0]),
            dict(replay=1, items_are_steps=False, length=10.5, returns=[1.0]),
        ),
        ("_random", dict(limit=750, **EPSILON), dict(limit=800, **EPSILON)),
        ("_random", dict(limit=2_000, **{**EPSILON, "epsilon_end": 0.31}), dict(limit=2_000, **EPSILON)),
        ("_random", dict(limit=2_000, **{**EPSILON, "epsilon_end": 0.31}), dict(**{**EPSILON, "epsilon_end": 0.3})),
        ("_random", dict(limit=500, **EPSILON), dict(limit=500, **{**EPSILON, "epsilon_ladder": True})),
        ("_random", dict(limit=500, **EPSILON), dict(limit=500, **{**EPSILON, "epsilon_steps": 0})),
        ("_clipped", dict(returns=[9.0, 11.1], reward_clip="sign"), dict(returns=[9.0, 11.0], reward_clip="sign")),
        ("_clipped", dict(returns=[-11.0], reward_clip="unit"), dict(returns=[-11.0], reward_clip="none")),
    ],
)  # fmt: skip
def test_a_cause_shows_beyond_its_bound_and_not_at_it(shows, shown, hidden):
    assert getattr(symptoms, shows)(figures(**shown)) and not getattr(symptoms, shows)(figures(**hidden))


def test_sentences_give_the_figures_that_show_a_cause():
    assert symptoms._endless(figures(steps=48_000)) == "no episode has ended for 12,000 steps of each environment"
    assert symptoms._random(figures(limit=500, **EPSILON)).startswith("55% of the actions")
    assert "grown 12-fold" in symptoms._growing(figures(seen={300: {"td_error": 2.0}, 800: {"td_error": 24.0}}))
    action = SimpleNamespace(action=ACTION)
    assert "(0.01 of 1.8 nats)" in symptoms._deterministic(figures(seen=late(entropy=0.01), env_spec=lambda: action))


@pytest.mark.parametrize(
    ("has", "tried"),
    [
        (dict(pop_art=False, core="none"), "--pop-art, --core lstm or a larger network"),
        (dict(pop_art=True, core="lstm", normalise_obs=False), "--normalise-obs or a larger network"),
        (dict(normalise_obs=False, normalise_reward=False, images=True), "--normalise-reward or a larger network"),
        (dict(), "a larger network"),
    ],
)
def test_what_is_tried_for_unexplained_returns_is_what_the_system_has_and_the_run_has_not(has, tried):
    cfg = {name: value for name, value in has.items() if name != "images"}
    assert symptoms._explaining(figures(has_images=lambda: "images" in has, **cfg)) == tried
