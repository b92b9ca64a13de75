"""The roles of evolution strategies: noise, caps, bonuses, statistics and unperturbed evaluations, one by one
(Salimans et al. 2017)."""

from __future__ import annotations

import copy
import time
from typing import Any

import numpy as np
import pytest
import torch
from fakes import Params, Reader, ScriptedEnvs, Writer, context

from shoal.api import MASK, Action, Arrays, Batch, EnvSpec, EnvStep, Episode, Observation, Update
from shoal.roles import evolution as evolution_module
from shoal.roles.evolution import EvolutionMaster, EvolutionWorker, results_spec
from shoal.roles.random_observations import random_observations

SCRIPT = [[(4, "terminated"), (6, "truncated")], [(5, "terminated"), (2, "truncated"), (4, "terminated")]]
SIZE, PAIRS, SIGMA = 3, 4, 0.5
TABLE = np.arange(50, dtype=np.float32)


class Population:
    """Every policy always says the same: what it was given is kept."""

    def __init__(self) -> None:
        self.perturbed: list[tuple[int, list[float], float]] = []
        self.noises: list[float] = []
        self.seen: list[Arrays] = []
        self.loaded: list[int] = []

    def load(self, params: Any) -> None:
        self.loaded.append(int(params["task/cap"]))

    def perturb(self, row: int, noise: np.ndarray, scale: float) -> None:
        self.perturbed.append((row, noise.tolist(), scale))

    def act(self, obs: Arrays, generator: np.random.Generator, action_noise: float = 0.0) -> np.ndarray:
        self.noises.append(action_noise)
        self.seen.append({name: array.copy() for name, array in obs.items()})
        return np.zeros(len(obs["obs"]), np.int64)


def task(params: Params, seed: int = 3, cap: int = 0) -> None:
    params.publish({"task/seed": torch.tensor(seed), "task/cap": torch.tensor(cap)})


def worker(mode: str = "next_step", cap: int = 0, statistics: bool = False, **options: Any) -> Any:
    options = {"blocks": [0], "total": 1, "noise_std": SIGMA, **options}
    params = Params()
    task(params, cap=cap)
    spec = results_spec(PAIRS, {"obs": (2,)} if statistics else {})
    noise: Any = type("Noise", (), {"arrays": {"noise": TABLE}})
    return EvolutionWorker(
        context("worker"), ScriptedEnvs(SCRIPT, mode), Population(), Writer(spec), params, noise,
        size=SIZE, pairs=PAIRS, **options,
    )  # fmt: skip


def episodes(number: int, cap: int = 0, bonus: float = 0.0) -> tuple[list[float], list[int], list[int]]:
    """Returns and lengths of ``number`` episodes, and the environment of each. One that ends begins the next; one whose
    episode is capped goes on unheard until that has ended. When nobody is heard, all begin anew."""
    lengths, envs = [0] * number, [0] * number
    begun = 0
    while begun < number:
        at, step, over, playing = [0, 0], [0, 0], [False, False], [-1, -1]
        for e in range(min(2, number - begun)):
            playing[e], envs[begun], begun = begun, e, begun + 1
        while max(playing) >= 0:
            for e in (0, 1):
                if over[e]:  # the row after an end
                    over[e], at[e], step[e] = False, at[e] + 1, 0
                    continue
                step[e] += 1
                if playing[e] >= 0:
                    lengths[playing[e]] += 1
                if step[e] == SCRIPT[e][at[e] % len(SCRIPT[e])][0]:
                    over[e], playing[e] = True, -1
                    if begun < number:
                        playing[e], envs[begun], begun = begun, e, begun + 1
                elif cap and lengths[playing[e]] >= cap:
                    playing[e] = -1
    return [(1.0 + e - bonus) * n for e, n in zip(envs, lengths, strict=True)], lengths, envs


@pytest.mark.parametrize("bonus", [0.0, 0.25])
@pytest.mark.parametrize("cap", [0, 3])
def test_a_block_is_two_episodes_of_every_pair(cap: int, bonus: float) -> None:
    """theta + sigma eps, then theta - sigma eps; the bonus is taken off every step's reward, in results alone."""
    role = worker(cap=cap, bonus=bonus)
    role.step()
    (found,), (version,) = role.results.items, role.results.versions
    assert version == 1 and found["block"].tolist() == [0]
    indices = found["index"].tolist()
    assert all(0 <= index <= len(TABLE) - SIZE for index in indices) and len(set(indices)) > 1
    returns, lengths, envs = episodes(2 * PAIRS, cap, bonus)
    assert found["returns"].ravel().tolist() == returns and found["lengths"].ravel().tolist() == lengths
    wanted = [
        (e, TABLE[index : index + SIZE].tolist(), sign * SIGMA)
        for e, (index, sign) in zip(envs, [(i, s) for i in indices for s in (1, -1)], strict=True)
    ]
    assert role.population.perturbed == wanted
    told = role.ctx.metrics.drain()
    assert told.counts == {"env_steps": sum(lengths)}
    true = episodes(2 * PAIRS, cap)[:2]
    assert sorted(told.episodes) == sorted(zip(*true, strict=True)), "the run's returns are with the bonus"


def test_noise_follows_from_the_task_and_the_block_alone() -> None:
    """Whatever the worker, its seed and what it played before."""

    def indices(seed: int, version: int, block: int, before: int) -> list[int]:
        role = worker(blocks=[*range(before), block], total=9)
        role.ctx.seed = before
        for _ in range(version - 1):
            task(role.params, seed)
        if version == 1:
            role.params.published[-1]["task/seed"] = torch.tensor(seed)
        for _ in range(before + 1):
            role.step()
        return role.results.items[-1]["index"].tolist()

    one = indices(3, 1, 2, 0)
    assert one == indices(3, 1, 2, 2)
    others = [indices(4, 1, 2, 0), indices(3, 2, 2, 0), indices(3, 1, 3, 0), indices(3, 1, 1, 0)]
    assert len({tuple(found) for found in [one, *others]}) == 5


def test_every_task_block_and_use_has_numbers_of_its_own() -> None:
    role = worker()
    role.step()
    drawn = set()
    for role.version in (1, 2, 3):
        for block in range(30):
            drawn |= {int(role._generator(block, use).integers(2**63)) for use in (0, 1)}
    assert len(drawn) == 3 * 30 * 2
    many = worker(blocks=list(range(40)), total=40)
    for _ in range(40):
        many.step()
    assert 2**30 < max(many.env.seeds) < 2**31, "31 bits, which every environment takes"


def test_a_message_is_one_block() -> None:
    """Joined along its first axis."""
    spec = results_spec(PAIRS, {"obs": (2, 3)})
    shapes = {name: f.shape for name, f in spec.items()}
    assert shapes == {
        "block": (1,), "index": (PAIRS,), "returns": (PAIRS, 2), "lengths": (PAIRS, 2), "count": (1,),
        "seen/obs": (1, 2, 2, 3),
    }  # fmt: skip
    assert {f.axis for f in spec.values()} == {0} and spec["seen/obs"].dtype == spec["count"].dtype == "float64"
    assert "count" not in results_spec(PAIRS, {})


def test_the_whole_table_is_used() -> None:
    role = worker(blocks=list(range(200)), total=200)
    for _ in range(200):
        role.step()
    seen = {index for item in role.results.items for index in item["index"].tolist()}
    assert min(seen) == 0 and max(seen) == len(TABLE) - SIZE


@pytest.mark.parametrize("noise,every", [(0.3, 0), (0.3, 2), (0.0, 1)])
def test_the_unperturbed_evaluation_has_neither_cap_nor_noise(noise: float, every: int) -> None:
    """An episode in each environment with theta itself, whose return is in units of the objective."""
    role = worker(cap=3, action_noise=noise, evaluate_every=every, bonus=0.25)
    for version in (1, 2, 3):
        role.ctx.metrics.drain()
        role.population.perturbed.clear()
        role.population.noises.clear()
        role.step()
        told = role.ctx.metrics.drain()
        lengths = episodes(2 * PAIRS, 3)[1]
        assert len(told.episodes) == 2 * PAIRS and told.counts == {"env_steps": sum(lengths)}, "it does not count"
        plain = [found for found in role.population.perturbed if found[2] == 0.0]
        if every and version % every == 0:
            first = [SCRIPT[e][0][0] for e in (0, 1)]
            wanted = np.mean([(1.0 + e - 0.25) * n for e, n in enumerate(first)])
            assert told.records["unperturbed_return"] == (wanted, 1)
            assert [row for row, *_ in plain] == [0, 1]
            assert role.population.noises[: max(first)] == [0.0] * max(first)
            del role.population.noises[: max(first)]
        else:
            assert not plain and "unperturbed_return" not in told.records
        assert set(role.population.noises) == {noise}
        task(role.params, cap=3)


def test_blocks_take_turns_with_the_evaluation() -> None:
    role = worker(blocks=[0, 1, 2], total=3, evaluate_every=2)
    found = []
    for _ in range(12):
        evaluated = []
        for _ in range(3):
            role.step()
            evaluated.append("unperturbed_return" in role.ctx.metrics.drain().records)
        found.append(evaluated.index(True) if any(evaluated) else None)
        assert sum(evaluated) <= 1
        task(role.params)
    assert found == [None, 1, None, 2, None, 0, None, 1, None, 2, None, 0]


def test_an_evaluation_is_not_of_the_seeds_of_its_block() -> None:
    role = worker(evaluate_every=1)
    role.step()
    assert len(set(role.env.seeds)) == len(role.env.seeds) == 2
    assert role.env.seeds[0] == int(role._generator(0, 1).integers(2**31)) != int(role._generator(0, 0).integers(2**31))


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_statistics_are_of_the_observations_that_were_acted_on(mode: str) -> None:
    """Neither of rows that are ignored, nor of episodes that nobody hears."""
    role = worker(mode, cap=4, statistics=True)
    role.step()
    found = role.results.items[0]
    assert found["count"].tolist() == [found["lengths"].sum()]
    heard = np.array(oracle_observations(mode, 4, 2 * PAIRS), np.float64)
    np.testing.assert_allclose(found["seen/obs"][0, 0], heard.sum(0))
    np.testing.assert_allclose(found["seen/obs"][0, 1], (heard**2).sum(0))


def oracle_observations(mode: str, cap: int, number: int) -> list[list[float]]:
    """What the policies of ``number`` episodes act on, in two environments."""
    count, next_of, seen = 2, [0, 0], []
    playing = [True, True]
    time = 0
    clock = [0, 0]  # when each environment's episode began
    while any(playing):
        for e in (0, 1):
            length = SCRIPT[e][next_of[e] % len(SCRIPT[e])][0]
            step = time - clock[e]
            if playing[e] and 0 <= step < min(length, cap):
                seen.append([float(e), 1_000.0 * e + 100 * next_of[e] + step])
        for e in (0, 1):
            length = SCRIPT[e][next_of[e] % len(SCRIPT[e])][0]
            step = time - clock[e]
            if playing[e] and step + 1 == min(length, cap):
                playing[e] = False
            if step + 1 == length:
                next_of[e] += 1
                clock[e] = time + (2 if mode == "next_step" else 1)
                if count < number:
                    playing[e], count = True, count + 1
        time += 1
    return seen


def test_a_worker_waits_for_the_next_task_when_its_blocks_are_done() -> None:
    role = worker(blocks=[2, 5], total=6)
    for _ in range(4):
        role.step()
    assert [int(item["block"][0]) for item in role.results.items] == [2, 5] and role.done == 2
    assert role.params.asked == [-1, 1, 1, 1] and role.population.loaded == [0]
    task(role.params, cap=2)
    role.step()
    assert role.results.versions == [1, 1, 2] and role.done == 1 and role.population.loaded == [0, 2]
    role.close()
    assert role.env.closed


def test_the_state_of_a_worker() -> None:
    """How far it is in its task; in another task it begins with its first block."""
    first = worker(blocks=[0, 1, 2], total=3)
    first.step()
    first.step()
    saved = copy.deepcopy(first.state_dict())
    assert saved == {"done": 2, "version": 1, "unfinished": False}
    same, later = worker(blocks=[0, 1, 2], total=3), worker(blocks=[0, 1, 2], total=3)
    task(later.params)
    for role in (same, later):
        role.load_state_dict(saved)
        assert role.state_dict() == saved, "also before its first step"
        role.step()
    assert [int(item["block"][0]) for item in same.results.items] == [2]
    assert [int(item["block"][0]) for item in later.results.items] == [0]
    task(same.params)
    same.step()
    assert int(same.results.items[-1]["block"][0]) == 0
    first.step()
    for name, array in first.results.items[2].items():
        np.testing.assert_array_equal(array, same.results.items[0][name])


class Stop:
    """Says that the run should end at the ``after``-th look, and from then on."""

    def __init__(self, after: int) -> None:
        self.after = after

    def __call__(self) -> bool:
        self.after -= 1
        return self.after < 0


@pytest.mark.parametrize("unread", [True, False])
def test_a_block_that_is_interrupted_is_played_again(unread: bool) -> None:
    """From its beginning; its task is read again where a runtime can give it back."""
    role, whole = worker(blocks=[0, 1], total=2), worker(blocks=[0, 1], total=2)
    back: list[bool] = []
    if unread:
        role.params.unread = lambda: back.append(True)
    role.step()
    object.__setattr__(role.ctx, "interrupted", Stop(5))
    role.step()
    assert role.unfinished and role.done == 1 and len(role.results.items) == 1 and back == [True] * unread
    saved = copy.deepcopy(role.state_dict())
    assert saved == {"done": 1, "version": 1, "unfinished": True}
    object.__setattr__(role.ctx, "interrupted", Stop(10**9))
    later = worker(blocks=[0, 1], total=2)
    later.load_state_dict(saved)
    assert later.unfinished
    later.load_state_dict({"done": 1, "version": 1})  # of an older checkpoint
    assert not later.unfinished
    for one in (role, later):
        one.step()
        assert not one.unfinished and one.done == 2
    whole.step()
    whole.step()
    for name, array in whole.results.items[1].items():
        np.testing.assert_array_equal(array, role.results.items[1][name])
        np.testing.assert_array_equal(array, later.results.items[0][name])


def test_the_unperturbed_evaluation_has_a_bound(caplog: pytest.LogCaptureFixture) -> None:
    """Of steps; an episode that takes exactly so many counts as cut, for its end is not seen."""
    role = worker(evaluate_every=1, limit=5)
    role.env.script = [[(4, "terminated")], [(9, "terminated")]]
    role.step()
    assert role.ctx.metrics.drain().records["unperturbed_return"] == ((4.0 + 2 * 5) / 2, 1)
    told = "1 of 2 episodes did not end within 5 steps: their returns so far count"
    assert f"the evaluation of the unperturbed policy: {told}" in caplog.text
    caplog.clear()
    ends = worker(evaluate_every=1, limit=6)
    ends.step()
    assert not caplog.records
    assert worker().limit == 27_000 and worker().bonus == worker().action_noise == worker().evaluate_every == 0


def test_a_worker_says_once_that_no_episode_ends(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evolution_module, "WARN_AFTER_SECONDS", -1.0)

    def after(steps: int, script: Any) -> list[str]:
        caplog.clear()
        role = worker()
        role.env.script = script
        object.__setattr__(role.ctx, "interrupted", Stop(steps))
        role.step()
        assert role.unfinished
        return [record.getMessage() for record in caplog.records]

    endless = [[(10**9, "terminated")]] * 2
    assert after(999, endless) == []
    (told,) = after(2_500, endless)
    assert "no episode of Scripted has ended after 1,000 steps" in told
    assert after(1_500, [[(900, "terminated"), (10**9, "terminated")], [(10**9, "terminated")]]) == []
    monkeypatch.setattr(evolution_module, "WARN_AFTER_SECONDS", 1e9)
    assert after(1_500, endless) == []


def test_a_capped_episode_tells_its_return_with_the_bonus() -> None:
    """Its length is the cap; a cap of 0 is none."""
    role = worker(cap=3, bonus=0.5)
    role.env.script = [[(10, "terminated")], [(10, "terminated")]]
    role.step()
    told = role.ctx.metrics.drain()
    assert sorted(told.episodes) == [(3.0, 3)] * PAIRS + [(6.0, 3)] * PAIRS
    assert sorted(role.results.items[0]["returns"].ravel()) == [1.5] * PAIRS + [4.5] * PAIRS


# ------------------------------------------------------------------------------------ the master
class Learner:
    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def update(self, batch: Batch) -> Update:
        self.batches.append(batch.items["index"].tolist())
        return Update({"fitness": float(len(self.batches))})

    def params(self) -> Any:
        return {"updates": torch.tensor(len(self.batches))}

    def state_dict(self) -> Any:
        return {"batches": self.batches}

    def load_state_dict(self, state: Any) -> None:
        self.batches = list(state["batches"])


def result(version: int, block: int) -> Batch:
    return Batch({"block": torch.tensor([block]), "index": torch.tensor([10 * version + block])}, versions=(version,))


def master(*given: tuple[int, int]) -> Any:
    return EvolutionMaster(context("learner"), Learner(), 3, Reader(*(result(*one) for one in given)), Params())  # type: ignore[arg-type]


def test_a_task_ends_with_its_last_block() -> None:
    """Results are joined in the order of the blocks; what is late or doubled is counted and left out."""
    role = master((1, 2), (0, 1), (1, 2), (1, 0), (1, 1), (2, 0), (1, 1), (2, 1), (2, 2))
    role.start()
    assert role.params.version == 1
    updates = []
    for _ in range(9):
        role.step()
        updates.append(len(role.learner.batches))
    assert updates == [0, 0, 0, 0, 1, 1, 1, 1, 2] and role.learner.batches == [[10, 11, 12], [20, 21, 22]]
    assert role.version == role.params.version == 3 and int(role.params.published[-1]["updates"]) == 2
    told = role.ctx.metrics.drain()
    assert told.records["discarded_results"] == (2.0 + 1.0, 2) and told.records["fitness"] == (3.0, 2)
    assert told.counts == {"updates": 2}


@pytest.mark.parametrize("after", range(7))
def test_the_state_of_the_master(after: int) -> None:
    given = [(1, 2), (0, 1), (1, 0), (1, 1), (2, 0), (2, 0), (2, 1), (2, 2), (3, 0)]
    whole, second = master(*given), master(*given[after:])
    whole.start()
    for _ in range(after):
        whole.step()
    second.load_state_dict(copy.deepcopy(whole.state_dict()))
    second.params.version = whole.params.version
    whole.ctx.metrics.drain()
    for role in (whole, second):
        for _ in range(len(given) - after):
            role.step()
    assert second.state_dict() == whole.state_dict() and second.learner.batches == [[10, 11, 12], [20, 21, 22]]
    assert second.ctx.metrics.drain().records == whole.ctx.metrics.drain().records


# ----------------------------------------------------------------------------- reference observations
class Noting:
    """Environments that note what they are given; the observation is the number of steps."""

    def __init__(self, action: Action, mask: np.ndarray | None = None, envs: int = 4) -> None:
        observations = {"obs": Observation((1,), "float32")}
        if mask is not None:
            observations[MASK] = Observation((len(mask),), "bool", "mask")
        self.spec, self.num_envs, self.mask = EnvSpec("Noting", observations, action), envs, mask
        self.actions: list[np.ndarray] = []
        self.seed, self.closed = -1, False

    def _obs(self) -> Arrays:
        out: Arrays = {"obs": np.full((self.num_envs, 1), len(self.actions), np.float32)}
        if self.mask is not None:
            out[MASK] = np.repeat(self.mask[None], self.num_envs, 0)
        return out

    def reset(self, seed: int) -> Arrays:
        self.seed = seed
        return self._obs()

    def step(self, action: np.ndarray) -> EnvStep:
        self.actions.append(action)
        none = np.zeros(self.num_envs, bool)
        return EnvStep(self._obs(), np.zeros(self.num_envs, np.float32), none, none, ~none, None, [])

    def so_far(self) -> list[Episode]:
        return []

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("count,steps", [(4, 1), (5, 2), (8, 2), (398, 100)])
def test_random_observations_are_as_many_as_asked_for(count: int, steps: int) -> None:
    env = Noting(Action("discrete", (3,)))
    found = random_observations(env, count, 5)["obs"]
    assert found.shape == (count, 1) and found[:, 0].tolist() == [i // 4 for i in range(count)]
    assert len(env.actions) == steps and env.seed == 5 and env.closed
    if steps == 100:
        assert set(np.concatenate(env.actions).tolist()) == {0, 1, 2}


def test_random_actions_are_of_the_space_and_allowed() -> None:
    env = Noting(Action("continuous", (), (-2.0, 5.0, -np.inf), (3.0, 5.5, np.inf)))
    random_observations(env, 2_000, 0)
    actions = np.concatenate(env.actions)
    assert actions.dtype == np.float32 and actions.shape == (2_000, 3)
    np.testing.assert_allclose(actions.min(0), [-2.0, 5.0, -1.0], atol=0.02)
    np.testing.assert_allclose(actions.max(0), [3.0, 5.5, 1.0], atol=0.02)
    parts = Noting(Action("multi_discrete", (2, 3)), np.array([True, True, False, True, True]))
    random_observations(parts, 400, 0)
    found = np.concatenate(parts.actions)
    assert {tuple(row) for row in found.tolist()} == {(0, 1), (0, 2), (1, 1), (1, 2)}
    plain = Noting(Action("multi_discrete", (2, 3)))
    random_observations(plain, 400, 0)
    assert len({tuple(row) for row in np.concatenate(plain.actions).tolist()}) == 6


def test_random_observations_of_a_slow_environment_are_fewer() -> None:
    """A run of an environment of two steps a second is not kept from its report for minutes."""

    class Slow(Noting):
        def step(self, action: np.ndarray) -> EnvStep:
            time.sleep(0.02)
            return super().step(action)

    env = Slow(Action("discrete", (3,)))
    found = random_observations(env, 2_000, 0, seconds=0.1)["obs"]
    assert len(found) == 4 * len(env.actions) <= 24 and env.closed
