"""PettingZoo's parallel environments: agents as rows, that leave, come and are masked, under one policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gs

import shoal
from shoal.api import MASK, EnvironmentFailed, UsageError
from shoal.envs import EnvOptions, given, make, spec

SMALL: dict[str, Any] = dict(preset="none", runtime="serial", actors=1, envs=6, hidden=(8,), device="cpu", steps=120)


class Line:
    """Three agents: ``a`` ends after 2 steps, ``b`` leaves after 3 without an end, ``c`` comes at step 2, and is
    truncated at step 5. What each sees is the time and its own number; its reward is its action."""

    possible_agents: tuple[str, ...] = ("a", "b", "c")
    ends = {"a": 2, "b": 3, "c": 5}  # noqa: RUF012

    def observation_space(self, agent: str) -> Any:
        return gs.Box(-1.0, 9.0, (2,))

    def action_space(self, agent: str) -> Any:
        return gs.Discrete(3)

    def _seen(self, agents: list[str]) -> Any:
        return {agent: np.array([self.time, "abc".index(agent)], np.float32) for agent in agents}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.time, self.agents, self.seed = 0, ["a", "b"], seed
        return self._seen(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        assert sorted(actions) == sorted(self.agents), (actions, self.agents)
        self.time += 1
        before = [agent for agent in self.agents if not (agent == "b" and self.time == self.ends["b"])]
        over = {agent: self.time == self.ends[agent] for agent in before}
        self.agents = [agent for agent in before if not over[agent]] + ["c"] * (self.time == 2)
        return (
            self._seen([*before, *(["c"] if self.time == 2 else [])]), {a: float(actions[a]) for a in before},
            {a: over[a] and a == "a" for a in before}, {a: over[a] and a == "c" for a in before},
            {a: {"passed": float(self.time)} for a in before},
        )  # fmt: skip

    def close(self) -> None: ...


class Choosing(Line):
    """Two agents, each told in its own observation which half of the actions it may take; the third choice pays."""

    possible_agents = ("left", "right")

    def observation_space(self, agent: str) -> Any:
        return gs.Dict({"observation": gs.Box(0.0, 1.0, (2,)), "action_mask": gs.MultiBinary(4)})

    def action_space(self, agent: str) -> Any:
        return gs.Discrete(4)

    def _seen(self, agents: list[str]) -> Any:
        masks = {"left": [1, 1, 0, 0], "right": [0, 0, 1, 1]}
        self.may = {agent: masks[agent] for agent in agents}
        return {
            agent: {"observation": np.eye(2)[int(agent == "left")], "action_mask": np.array(masks[agent], np.int8)}
            for agent in agents
        }  # fmt: skip

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.time, self.agents = 0, list(self.possible_agents)
        return self._seen(self.agents), {}

    def step(self, actions: dict[str, Any]) -> Any:
        assert all(self.may[agent][action] for agent, action in actions.items()), actions
        self.time += 1
        self.agents = [] if self.time == 3 else self.agents
        every = self.possible_agents
        return (
            self._seen(list(every)), {a: float(actions[a] in (0, 3)) for a in every},
            dict.fromkeys(every, self.time == 3), dict.fromkeys(every, False), {},
        )  # fmt: skip


def test_agents_are_rows_that_leave_and_come() -> None:
    batch = make(given(Line), 6, EnvOptions())
    assert (batch.spec.agents, batch.num_envs) == (3, 6)
    assert batch.reset(0)["obs"][:2].tolist() == [[0, 0], [0, 1]]
    steps = [batch.step(np.array([1, 1, 1, 2, 2, 2])) for _ in range(8)]
    valid, over, cut = (
        ["".join("x" if flag else "." for flag in getattr(step, name)[:3]) for step in steps]
        for name in ("valid", "terminated", "truncated")
    )
    # the game begins anew at step 5, when all have left; `c` is in it from step 2 on, and so acts from step 3 on
    assert valid == ["xx.", "xx.", ".xx", "..x", "..x", "...", "xx.", "xx."]
    assert over == ["...", "x..", "...", "...", "...", "...", "...", "x.."]
    assert cut == ["...", "...", ".x.", "...", "..x", "...", "...", "..."]
    assert steps[1].obs["obs"][2].tolist() == [2, 2]  # what `c` answers when it has come
    assert [episode.info for episode in steps[1].episodes] == [{"passed": 2.0}] * 2


def test_the_returns_and_lengths_are_of_each_agent() -> None:
    batch = make(given(Line), 3, EnvOptions())
    batch.reset(0)
    episodes = [(t, e.ret, e.length) for t in range(11) for e in batch.step(np.array([1, 2, 2])).episodes]
    assert episodes == [(1, 2, 2), (2, 4, 3), (4, 6, 3), (7, 2, 2), (8, 4, 3), (10, 6, 3)]


def test_a_limit_truncates_every_agent_that_plays() -> None:
    batch = make(given(Line), 3, EnvOptions(max_episode_steps=2))
    batch.reset(0)
    steps = [batch.step(np.zeros(3, int)) for _ in range(4)]
    assert [s.truncated.tolist() for s in steps[:2]] == [[False] * 3, [False, True, False]]
    assert steps[1].terminated.tolist() == [True, False, False]
    assert [s.valid.tolist() for s in steps] == [[True, True, False]] * 2 + [[False] * 3, [True, True, False]]


def test_each_game_has_a_seed_of_its_own() -> None:
    batch: Any = make(given(Line), 6, EnvOptions())
    batch.reset(7)
    assert len({game.seed for game in batch.env.games}) == 2


@pytest.mark.parametrize("system", ["recurrent-ppo", "impala", "dqn", "r2d2", "a3c"])
def test_masked_agents_train_under_one_policy(system: str, tmp_path: Path) -> None:
    run = shoal.train(system, env=Choosing, run_dir=tmp_path / "r", **SMALL)
    assert len(run.evaluate(episodes=5)) == 5
    assert MASK in spec(given(Choosing), EnvOptions()).observations


def test_agents_that_come_and_leave_train(tmp_path: Path) -> None:
    for system in ("recurrent-ppo", "impala", "dqn", "r2d2"):
        run = shoal.train(system, env=Line, run_dir=tmp_path / system, **SMALL)
        assert run.report is not None and run.report.steps >= 120


def test_no_step_of_an_absent_agent_is_learned_from(tmp_path: Path) -> None:
    """Two of three agents act in the first two steps of a game, two in the third and one in the last two."""
    run = shoal.train("recurrent-ppo", env=Line, run_dir=tmp_path / "r", **{**SMALL, "envs": 3, "unroll": 6})
    assert run.report is not None and run.report.steps % 8 == 0


def test_rows_that_make_no_whole_games_are_named() -> None:
    with pytest.raises(UsageError, match=r"3 agents, each a row of envs: envs \(8\) must be a multiple .* such as 9"):
        shoal.train("dqn", env=Line, preset="none", runtime="serial", steps=10)


class Unlike(Line):
    def action_space(self, agent: str) -> Any:
        return gs.Discrete(3 if agent == "a" else 4)


class Turns:
    def agent_iter(self) -> Any: ...


class Nobody(Line):
    possible_agents = ()


class Empty(Line):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return {}, {}


def test_what_one_policy_cannot_play_is_refused_in_a_sentence() -> None:
    for env, words in (
        (Unlike, "a different action_space"),
        (Turns, "parallel_env"),
        (Nobody, "no possible_"),
    ):
        with pytest.raises(UsageError, match=words):
            make(given(env), 3, EnvOptions())
    with pytest.raises(EnvironmentFailed, match="without any agent"):
        make(given(Empty), 3, EnvOptions()).reset(0)


class Evacuation:
    """Four agents in a corridor of nine cells, whose exit is at the end that the sign of the alarm says: 1 for it; fire
    is at the other, and whoever steps into it dies: -1. Each step costs 0.02. Two are there from the start, the third
    and fourth come at the second and fourth step. A leap of two cells is forbidden within two cells of an end, and who
    stands at a wall of smoke (cell 4) may not wait. Who runs from cell to exit gains 0.9 or more."""

    possible_agents = ("a", "b", "c", "d")
    metadata: dict[str, Any] = {"action_mask": True}  # noqa: RUF012
    cells, time_limit = 9, 30

    def observation_space(self, agent: str) -> Any:
        return gs.Box(-1.0, 1.0, (2,))

    def action_space(self, agent: str) -> Any:
        return gs.Discrete(5)  # left, wait, right, leap left, leap right

    def _come(self, agent: str) -> None:
        self.place[agent] = int(self.rng.integers(2, self.cells - 2))

    def _seen(self) -> Any:
        return {agent: np.array([at / 4 - 1, self.alarm], np.float32) for agent, at in self.place.items()}

    def _told(self) -> Any:
        allowed = {a: [1, at != 4, 1, at > 2, at < self.cells - 3] for a, at in self.place.items()}
        return {agent: {"action_mask": np.array(mask, np.int8)} for agent, mask in allowed.items()}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None or not hasattr(self, "rng"):
            self.rng = np.random.default_rng(seed)
        self.time, self.place, self.agents = 0, dict[str, int](), ["a", "b"]
        self.alarm = float(self.rng.choice((-1, 1)))
        for agent in self.agents:
            self._come(agent)
        return self._seen(), self._told()

    def step(self, actions: dict[str, Any]) -> Any:
        assert sorted(actions) == sorted(self.agents), (actions, self.agents)
        told = self._told()
        self.time += 1
        for agent, action in actions.items():
            assert told[agent]["action_mask"][action], (agent, action)
            self.place[agent] += (-1, 0, 1, -2, 2)[int(action)]
        out = {agent: self.place[agent] in (0, self.cells - 1) for agent in actions}
        late = dict.fromkeys(actions, self.time == self.time_limit)
        rewards = {a: (self.alarm * (1 if self.place[a] else -1) if out[a] else 0.0) - 0.02 for a in actions}
        comes = {2: ["c"], 4: ["d"]}.get(self.time, []) if self.agents or self.time < 4 else []
        for agent in comes:
            self._come(agent)
        seen, told = self._seen(), self._told()
        self.agents = [a for a in actions if not (out[a] or late[a])] + comes
        self.place = {agent: self.place[agent] for agent in self.agents}
        return seen, rewards, out, late, told

    def close(self) -> None: ...


def test_agents_that_come_die_and_are_masked_learn_one_policy(tmp_path: Path) -> None:
    """An untrained policy gains about 0.1; nobody can gain more than 0.98."""
    settings: dict[str, Any] = dict(preset="vector", runtime="serial", actors=1, envs=64, device="cpu", seed=1)
    untrained = shoal.train("recurrent-ppo", env=Evacuation, run_dir=tmp_path / "a", steps=64, unroll=1, **settings)
    trained = shoal.train("recurrent-ppo", env=Evacuation, run_dir=tmp_path / "b", steps=40_000, **settings)
    assert np.mean(untrained.evaluate(episodes=100, greedy=False)) < 0.5
    assert np.mean(trained.evaluate(episodes=200)) > 0.85


def test_two_agents_spread_out_with_the_discount_of_the_page(tmp_path: Path) -> None:
    """An untrained policy returns about -22. In 60,000 steps the return rises by about 3 with a discount of 0.9 (seeds
    57, 58), and falls by about 8 with the preset's."""
    pytest.importorskip("mpe2")
    settings: dict[str, Any] = dict(actors=1, total_envs=48, novelty=0.0, gamma=0.9, device="cpu", env_kwargs={"N": 2})
    run = shoal.train(
        "recurrent-ppo", env="mpe2.simple_spread_v3:parallel_env", runtime="serial", run_dir=tmp_path / "r",
        steps=60_000, seed=57, **settings,
    )  # fmt: skip
    returns = run.metrics()["episode_return"]
    returns = returns[np.isfinite(returns)]
    quarter = len(returns) // 4
    assert returns[-quarter:].mean() > returns[:quarter].mean() + 1.0
