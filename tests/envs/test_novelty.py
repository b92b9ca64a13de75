from typing import Any, cast

import numpy as np
import pytest

from shoal.api import Action, EnvSpec, EnvStep, Episode, Observation
from shoal.envs import EnvOptions, make
from shoal.envs.novelty import Distillation, Features, Moments, Novelty, _small
from shoal.policy.policy import evaluation_options
from shoal.systems import dqn


def play(env, weight, steps, seed=0):
    """Rewards [steps, 4] under random actions, and the episodes that ended."""
    batch = make(env, 4, EnvOptions(novelty=weight))
    batch.reset(seed)
    rng, rewards, episodes = np.random.default_rng(seed), [], []
    for _ in range(steps):
        step = batch.step(rng.integers(0, batch.spec.action.sizes[0], 4))
        rewards.append(step.reward.copy())
        episodes += step.episodes
    batch.close()
    return np.array(rewards), episodes


def test_bonus_is_in_the_training_reward_and_not_in_the_return():
    plain, ended = play("toy:corridor", 0.0, 200)
    paid, same = play("toy:corridor", 1.0, 200)
    assert (paid >= plain).all() and (paid > plain).any()
    assert [e.ret for e in same] == [e.ret for e in ended] and ended


class Played:
    """What environments of which no episode is looked at have in common."""

    def so_far(self) -> list[Episode]:
        return []

    def close(self) -> None: ...


class Same(Played):
    """Four environments that always show the same, for a reward of 0."""

    spec = EnvSpec("same", {"obs": Observation((2,), "float32")}, Action("discrete", (2,)))
    num_envs = 4

    def reset(self, seed):
        return {"obs": np.zeros((4, 2), np.float32)}

    def step(self, action):
        no = np.zeros(4, bool)
        return EnvStep(self.reset(0), np.zeros(4, np.float32), no, no, ~no, None, [])


def test_bonus_is_bounded_from_the_first_step_and_0_where_nothing_differs():
    """All errors of the first step are the same then, and deviate by nothing."""
    batch = Novelty(Same(), 0.5)
    batch.reset(0)
    rewards = np.array([batch.step(np.zeros(4, np.int64)).reward for _ in range(200)])
    assert np.isfinite(rewards).all() and (rewards[0] == 0.0).all() and rewards.max() <= 0.5 * 5.0


def test_an_ignored_action_earns_no_bonus():
    batch = make("toy:corridor", 4, EnvOptions(novelty=1.0))
    batch.reset(0)
    ignored = 0
    for _ in range(60):
        step = batch.step(np.ones(4, np.int64))
        assert (step.reward[~step.valid] == 0).all()
        ignored += int((~step.valid).sum())
    assert ignored


def test_bonus_falls_where_it_is_and_stays_where_it_has_not_been():
    network, often = Distillation(2, 0), np.array([[1.0, 0.0]] * 8, np.float32)
    rare = np.array([[-3.0, 3.0]], np.float32)
    before, elsewhere = network(often, np.ones(8, bool)).mean(), np.square(network._difference(rare)[1]).mean()
    for _ in range(4000):
        after = network(often, np.ones(8, bool)).mean()
    assert after < 0.2 * before
    assert np.square(network._difference(rare)[1]).mean() > 0.3 * elsewhere


def test_a_gradient_step_descends_the_squared_difference():
    network, rows = Distillation(3, 1), np.random.default_rng(0).standard_normal((16, 3)).astype(np.float32)
    told: list[Any] = []
    network._descend = told.append  # type: ignore[method-assign, assignment]
    network._learn(rows)
    w = network.learned[2]
    index, step = (5, 7), 1e-2
    w[index] += step
    above = np.square(network._difference(rows)[1]).mean()
    w[index] -= 2 * step
    below = np.square(network._difference(rows)[1]).mean()
    assert told[0][2][index] == pytest.approx((above - below) / (2 * step), rel=1e-2)


@pytest.mark.parametrize("scale", [0.01, 100.0])
def test_bonus_grows_with_the_size_of_rewards(scale):
    def bonuses(scale):
        batch, plain = (make("toy:point", 4, EnvOptions(reward_scale=scale, novelty=w)) for w in (0.5, 0.0))
        batch.reset(0), plain.reset(0)
        move = np.zeros((4, 2), np.float32)
        return np.array([batch.step(move).reward - plain.step(move).reward for _ in range(100)])[20:]

    assert bonuses(scale) / scale == pytest.approx(bonuses(1.0), rel=1e-3, abs=1e-4)


class Scripted(Played):
    """Two environments that show a number, pay ``reward`` and end where ``ends`` says, in SAME_STEP mode."""

    num_envs = 2

    def __init__(self, ends, reward=1.0):
        vector = {"obs": Observation((1,), "float32")}
        self.spec = EnvSpec("scripted", vector, Action("discrete", (2,)), autoreset="same_step")
        self.ends, self.reward, self.now = ends, reward, 0

    def _obs(self, value):
        return {"obs": np.full((2, 1), value, np.float32)}

    def reset(self, seed):
        self.now = 0
        return self._obs(0.0)

    def step(self, action):
        ended = np.full(2, self.now in self.ends)
        self.now += 1
        final = self._obs(9.0) if ended.any() else None
        reward = np.full(2, self.reward, np.float32)
        return EnvStep(self._obs(0.1 * self.now), reward, ended, ~ended & False, np.ones(2, bool), final, [])


def test_last_observation_of_an_episode_is_what_its_step_is_paid_for():
    paid = []
    for ends in ((), (30,)):
        batch = Novelty(Scripted(ends), 1.0)
        batch.reset(0)
        paid.append([float(batch.step(np.zeros(2, int)).reward[0]) for _ in range(31)])
    assert paid[0][:30] == paid[1][:30] and paid[1][30] != paid[0][30]


def test_return_of_rewards_begins_anew_with_an_episode():
    batch = Novelty(Scripted(ends=range(500)), 1.0)  # every step is an episode with the return 1
    batch.reset(0)
    for _ in range(50):
        batch.step(np.zeros(2, int))
    assert batch._scales[0].deviation() == 0.0
    assert batch._scales[0].mean == pytest.approx(1.0)


def test_bonus_falls_to_0_over_its_steps_and_begins_anew_at_a_reset():
    batch = Novelty(Scripted(()), 1.0, steps=10)
    for _ in range(2):
        batch.reset(0)
        paid = [float(batch.step(np.zeros(2, int)).reward[0]) - 1.0 for _ in range(12)]
        assert paid[9] > 0.0 and paid[10] == paid[11] == 0.0
    whole = Novelty(Scripted(()), 1.0)
    whole.reset(0)
    kept = [float(whole.step(np.zeros(2, int)).reward[0]) - 1.0 for _ in range(6)]
    assert paid[5] == pytest.approx(0.5 * kept[5], rel=1e-4)


def test_moments_are_those_of_all_rows():
    rows, moments = np.random.default_rng(0).standard_normal((30, 2)) * 5 + 3, Moments((2,))
    for part in np.split(rows, [1, 1, 11]):
        moments.update(part)
    assert moments.mean == pytest.approx(rows.mean(0)) and moments.deviation() == pytest.approx(rows.std(0))


@pytest.mark.parametrize("env", ["toy:corridor", "toy:catch", "toy:dict", "toy:point", "toy:memory"])
def test_features_of_every_kind_of_observation_have_the_size_they_say(env):
    batch = make(env, 3, EnvOptions())
    features = Features(batch.spec)
    rows = features(batch.reset(0))
    assert rows.shape == (3, features.size) and np.isfinite(rows).all()


def test_evaluations_pay_nothing_for_novelty():
    assert evaluation_options(dqn.Config(env="toy:corridor", novelty=1.0)).novelty == 0.0


def test_episodes_of_one_seed_are_paid_alike():
    assert (play("toy:corridor", 1.0, 50)[0] == play("toy:corridor", 1.0, 50)[0]).all()


def test_bound_holds_only_where_the_environment_has_no_limit_of_its_own():
    def length(env, **options):
        batch = make(env, 1, EnvOptions(**options))
        batch.reset(0)
        for n in range(1, 400):
            step = batch.step(np.zeros(1, np.int64))
            if step.truncated[0] or step.terminated[0]:
                return n
        return None

    assert length("CliffWalking-v1", episode_bound=30) == 30
    assert length("CliffWalking-v1") is None
    assert length("MountainCar-v0", episode_bound=30) == 200
    assert length("CliffWalking-v1", episode_bound=30, max_episode_steps=20) == 20


# ------------------------------------------------------------------------------------------ by hand
class Told(Played):
    """Three environments with the steps that they are told."""

    num_envs = 3
    spec = EnvSpec("told", {"obs": Observation((1,), "float32")}, Action("discrete", (2,)))

    def __init__(self, steps):
        self.steps = steps

    def reset(self, seed):
        self.left = iter(self.steps)
        return {"obs": np.zeros((3, 1), np.float32)}

    def step(self, action):
        return next(self.left)


def test_every_bonus_is_as_worked_out_by_hand():
    """Errors as given: of each step the running deviation of both discounted returns, over all that counts so far."""
    rng, steps, errors = np.random.default_rng(3), [], rng_errors(4)
    for _ in range(40):
        ended, valid = rng.random((2, 3)) < 0.2, rng.random(3) < 0.8
        reward = (rng.standard_normal(3) * valid).astype(np.float32)
        steps.append(EnvStep({"obs": np.zeros((3, 1), np.float32)}, reward, ended[0], ended[1], valid, None, []))
    batch = Novelty(Told(steps), 0.5, steps=50)
    batch.reset(0)
    given = iter(errors)
    batch._networks = cast(Distillation, lambda rows, counts: next(given))
    returns: np.ndarray = np.zeros((2, 3))
    seen: tuple[list[float], list[float]] = ([], [])
    for t, (step, error) in enumerate(zip(steps, errors, strict=True)):
        returns = 0.99 * returns
        returns[0] += step.reward * step.valid
        returns[1] += error * step.valid
        for kept, now in zip(seen, returns, strict=True):
            kept.extend(now[step.valid])
        returns[0, step.terminated | step.truncated] = 0.0  # not that of the bonus
        unit_of_rewards, own = (np.std(kept) if kept else 0.0 for kept in seen)
        unit = np.minimum(error / own, 5.0) if own > 1e-8 else np.zeros(3)
        wanted = step.reward + 0.5 * (1 - t / 50) * unit * (unit_of_rewards or 1.0) * step.valid
        np.testing.assert_allclose(batch.step(np.zeros(3, int)).reward, wanted, rtol=1e-5, atol=1e-6)


def rng_errors(seed):
    errors = np.random.default_rng(seed).random((40, 3))
    errors[30] = 300.0  # beyond what a bonus may be
    return errors


def test_pictures_are_averaged_over_blocks_of_no_more_than_12_a_side():
    rng = np.random.default_rng(0)
    for height, width, high, wide in ((12, 13, 1, 2), (24, 25, 2, 3), (25, 41, 3, 4), (5, 12, 1, 1)):
        images = rng.integers(0, 256, (2, 6, height, width), np.uint8)
        newest = images[:, -3:].mean(1) / 255
        rows, columns = -(-height // high), -(-width // wide)
        wanted = np.zeros((2, rows, columns))
        for y in range(height):
            for x in range(width):
                wanted[:, y // high, x // wide] += newest[:, y, x] / (high * wide)
        np.testing.assert_allclose(_small(images, 3), wanted.reshape(2, -1), rtol=1e-12)


def test_features_by_hand():
    """Of a vector: clipped at 5 deviations of all rows so far; of integers: a one for each; of masks: nothing."""
    leaves = {
        "v": Observation((2,), "float32"), "n": Observation((2,), "int64", "one_hot", (3, 2)),
        "mask": Observation((2,), "bool", "mask"),
    }  # fmt: skip
    features = Features(EnvSpec("e", leaves, Action("discrete", (2,))))
    assert features.size == 7
    v, n = np.array([[1.0, 0.0], [3.0, 4.0]], np.float32), np.array([[2, 0], [0, 1]])
    obs = {"v": v, "n": n, "mask": np.ones((2, 2), bool)}
    np.testing.assert_allclose(features(obs), [[-1, -1, 0, 0, 1, 1, 0], [1, 1, 1, 0, 0, 0, 1]], rtol=1e-6)
    rows = features({**obs, "v": v + 1})
    np.testing.assert_allclose(rows[:, 0], (np.array([2, 4]) - 2.5) / np.std([1, 3, 2, 4]), rtol=1e-6)
    for _ in range(40):
        features(obs)
    assert features({**obs, "v": np.array([[1e4, 0.0]] * 2, np.float32)})[0, 0] <= 5.0
    features.reset()
    np.testing.assert_allclose(features(obs)[:, 0], [-1.0, 1.0], rtol=1e-6)


def test_the_learned_network_moves_by_adam_every_eighth_batch_on_the_rows_that_count():
    network, rng = Distillation(2, 0), np.random.default_rng(1)
    before, told = [p.copy() for p in network.learned], []
    descend, learn, learned = network._descend, network._learn, list[np.ndarray]()

    def descending(gradients: list[np.ndarray]) -> None:
        told.append([g.copy() for g in gradients])
        descend(gradients)

    def learning(rows: np.ndarray) -> None:
        learned.append(rows)
        learn(rows)

    network._descend, network._learn = descending, learning  # type: ignore[method-assign]
    given = [(rng.standard_normal((3, 2)).astype(np.float32), rng.random(3) < 0.7) for _ in range(17)]
    for t, (rows, counts) in enumerate(given):
        w = network.fixed, network.learned
        says = [np.maximum(rows @ a + b, 0) @ c + d for a, b, c, d in w]
        np.testing.assert_allclose(network(rows, counts), np.square(says[0] - says[1]).mean(1), rtol=1e-4)
        assert len(learned) == (t + 1) // 8
    for k in range(2):
        np.testing.assert_array_equal(learned[k], np.concatenate([r[c] for r, c in given[8 * k : 8 * k + 8]]))
    for i, (now, first) in enumerate(zip(network.learned, before, strict=True)):
        m, v, p = 0.0, 0.0, first.astype(np.float64)
        for t, gradients in enumerate(told, 1):
            m, v = 0.9 * m + 0.1 * gradients[i], 0.999 * v + 0.001 * np.square(gradients[i], dtype=np.float64)
            root = np.sqrt(v / (1 - 0.999**t))
            moved = 1e-4 * (m / (1 - 0.9**t)) / np.maximum(root, 1e-30)
            p = p - np.where(root > 1e-5, moved, 0.0)  # where epsilon counts for nothing
        large = np.abs(told[0][i]) > 1e-3
        np.testing.assert_allclose((now - first)[large], (p - first)[large], rtol=2e-2, atol=1e-6)


def test_the_gradient_of_every_weight_is_that_of_the_mean_square():
    network, rows = Distillation(3, 1), np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    network.fixed, network.learned = ([p.astype(np.float64) for p in ps] for ps in (network.fixed, network.learned))
    rows, told = rows.astype(np.float64), list[np.ndarray]()
    network._descend = told.extend  # type: ignore[method-assign, assignment]
    network._learn(rows)
    for p, gradient in zip(network.learned, told, strict=True):
        for index in (
            np.ndindex(p.shape) if p.size < 100 else [(0,) * p.ndim, (1,) * p.ndim, tuple(np.array(p.shape) - 1)]
        ):
            kept, sides = p[index], []
            for step in (1e-5, -1e-5):
                p[index] = kept + step
                sides.append(np.square(network._difference(rows)[1]).mean())
            p[index] = kept
            assert gradient[index] == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-4, abs=1e-9)


def test_thirty_steps_of_adam_are_numpys():
    network, rng = Distillation(2, 0), np.random.default_rng(1)
    network.learned = [np.zeros_like(p) for p in network.learned]
    sizes = np.where(np.arange(30) < 3, 10.0, 1.0)  # which the average of squares remembers, and that of gradients not
    steps = [[(rng.standard_normal(p.shape) + 1.0) * size for p in network.learned] for size in sizes]
    for gradients in steps:
        network._descend([g.astype(np.float32) for g in gradients])
    for i, now in enumerate(network.learned):
        m = v = p = np.zeros(now.shape)
        for t, gradients in enumerate(steps, 1):
            m, v = 0.9 * m + 0.1 * gradients[i], 0.999 * v + 0.001 * gradients[i] ** 2
            p = p - 1e-4 * (m / (1 - 0.9**t)) / np.sqrt(v / (1 - 0.999**t))
        np.testing.assert_allclose(now, p, rtol=1e-3, atol=1e-7)
