"""Lost lives as ends of episodes, from an emulator that is worked out by hand; what ALE is told of the options."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shoal.api import Action, EnvSpec, EnvStep, Episode, Observation, UsageError
from shoal.envs import EnvOptions, ale, make

STACK = 4


class Emulator:
    """script: of each environment, (lives, terminated, truncated, valid) of every step. The newest frame is the number
    of the step, the older ones those before; the reward is 10."""

    def __init__(self, lives: list[int], *script: list[tuple[int, bool, bool, bool]], stack: int = STACK) -> None:
        observations = {"obs": Observation((stack, 1, 1), "uint8", "image")}
        self.spec, self.num_envs = EnvSpec("Lives", observations, Action("discrete", (6,)), stack=stack), len(lives)
        self.lives, self.script, self.stack, self.time = lives, script, stack, 0
        self.info: dict[str, Any] = {}
        self.actions: list[list[int]] = []
        self.env, self.closed = object(), False

    def _obs(self) -> dict[str, np.ndarray]:
        frames = (100 + self.time + np.arange(1 - self.stack, 1)).astype(np.uint8)
        return {"obs": np.broadcast_to(frames[None, :, None, None], (self.num_envs, self.stack, 1, 1)).copy()}

    def reset(self, seed: int) -> Any:
        self.time, self.info = 0, {"lives": np.array(self.lives, np.int32)}
        return self._obs()

    def step(self, action: np.ndarray) -> EnvStep:
        self.actions.append(action.tolist())
        rows = [steps[self.time] for steps in self.script]
        self.time += 1
        lives, terminated, truncated, valid = (np.array(column) for column in zip(*rows, strict=True))
        self.info = {"lives": lives}
        ends = np.flatnonzero(terminated | truncated)
        episodes = [Episode(7.0, 3) for _ in ends]
        return EnvStep(
            self._obs(), np.full(self.num_envs, 10, np.float32), terminated, truncated, valid, None, episodes
        )

    def close(self) -> None:
        self.closed = True


def on(lives: int) -> tuple[int, bool, bool, bool]:
    return lives, False, False, True


def play(emulator: Emulator, restart: int = 1) -> dict[str, list[Any]]:
    env = ale.LifeLoss(emulator, emulator.stack, restart)  # type: ignore[arg-type]
    env.reset(0)
    found: dict[str, list[Any]] = {k: [] for k in ("reward", "terminated", "truncated", "valid", "episodes", "zeros")}
    for _ in range(len(emulator.script[0])):
        step = env.step(np.full(emulator.num_envs, 3))
        for name in ("reward", "terminated", "truncated", "valid"):
            found[name].append(getattr(step, name).tolist())
        found["episodes"].append(len(step.episodes))
        found["zeros"].append((step.obs["obs"][:, :, 0, 0] == 0).sum(1).tolist())
        for row, zeros in enumerate(found["zeros"][-1]):  # the oldest
            assert (step.obs["obs"][row, zeros:, 0, 0] == emulator._obs()["obs"][row, zeros:, 0, 0]).all()
        assert step.final_obs is None and step.reward.dtype == np.float32
    return found


def alone(*steps: tuple[int, bool, bool, bool], lives: int = 3) -> tuple[dict[str, list[Any]], Emulator]:
    emulator = Emulator([lives], list(steps))
    return {k: [v if k == "episodes" else v[0] for v in vs] for k, vs in play(emulator).items()}, emulator


def test_a_lost_life_is_an_end_and_the_row_after_it_is_none() -> None:
    found, emulator = alone(on(3), on(2), on(2), on(2), on(2), on(2), on(2))
    assert found["terminated"] == [False, True, False, False, False, False, False]
    assert found["valid"] == [True, True, False, True, True, True, True]
    assert found["reward"] == [10, 10, 0, 10, 10, 10, 10] and not any(found["truncated"])
    assert found["zeros"] == [0, 0, 3, 2, 1, 0, 0], (
        "the frames of the life before are blank in its first stack - 1 rows"
    )
    assert [action for (action,) in emulator.actions] == [3, 3, 1, 3, 3, 3, 3], "the game waits for it"
    assert sum(found["episodes"]) == 0, "the game goes on"


def test_the_last_life_is_the_games_own_end() -> None:
    """In some games lives reach 0 some frames before it: that is no end of an episode; nor is it told twice."""
    found, _ = alone(
        on(2), on(1), on(1), on(0), on(0), (0, True, False, True), (3, False, False, False), on(3), lives=2
    )
    assert found["terminated"] == [False, True, False, False, False, True, False, False]
    assert found["valid"] == [True, True, False, True, True, True, False, True]
    assert found["zeros"] == [0, 0, 3, 2, 1, 0, 0, 0] and sum(found["episodes"]) == 1


@pytest.mark.parametrize("terminated", [True, False])
def test_a_life_that_is_lost_as_the_game_ends_is_one_end(terminated: bool) -> None:
    """The row after it is the game's own."""
    found, emulator = alone(on(3), (2, terminated, not terminated, True), (3, False, False, False), on(3), on(2), on(2))
    assert found["terminated"] == [False, terminated, False, False, True, False]
    assert found["truncated"] == [False, not terminated, False, False, False, False]
    assert found["valid"] == [True, True, False, True, True, False]
    assert [action for (action,) in emulator.actions] == [3, 3, 3, 3, 3, 1]


def test_lives_that_a_new_game_lacks_are_not_lost() -> None:
    found, _ = alone(on(5), (5, False, True, True), (3, False, False, False), on(3), on(2), on(4), on(3), lives=5)
    assert found["terminated"] == [False, False, False, False, True, False, True]


@pytest.mark.parametrize("how", ["terminated", "truncated"])
def test_a_game_that_ends_in_the_row_after_a_lost_life(how: str) -> None:
    """Its flags stay cleared, and one more row that is not valid follows: the new game's stack is whole."""
    end = (1, how == "terminated", how == "truncated", True)
    found, _ = alone(on(2), end, (3, False, False, False), on(3), on(3))
    assert found["terminated"] == [True, False, False, False, False] and not any(found["truncated"])
    assert found["valid"] == [True, False, False, True, True] and found["reward"] == [10, 0, 10, 10, 10]
    assert found["episodes"] == [0, 1, 0, 0, 0], "of the whole game"
    assert found["zeros"] == [0, 0, 0, 0, 0]


def test_a_life_lost_in_a_row_that_counts_for_nothing() -> None:
    found, _ = alone(on(2), on(1), on(1), on(1))
    assert found["terminated"] == [True, False, False, False] and found["valid"] == [True, False, True, True]


def test_a_life_lost_while_frames_are_blank_begins_again() -> None:
    found, _ = alone(on(2), on(2), on(2), on(1), on(1), on(1), on(1))
    assert found["terminated"] == [True, False, False, True, False, False, False]
    assert found["zeros"] == [0, 3, 2, 1, 3, 2, 1]


def test_environments_lose_their_lives_apart() -> None:
    emulator = Emulator([3, 3], [on(3), on(2), on(2), on(2)], [on(2), on(2), on(2), on(2)])
    found = play(emulator, restart=0)
    assert found["terminated"] == [[False, True], [True, False], [False, False], [False, False]]
    assert found["valid"] == [[True, True], [True, False], [False, True], [True, True]]
    assert found["zeros"] == [[0, 0], [0, 3], [3, 2], [2, 1]]
    assert emulator.actions == [[3, 3], [3, 0], [0, 3], [3, 3]]


@pytest.mark.parametrize("stack,zeros", [(1, [0, 0, 0, 0]), (2, [0, 1, 0, 0]), (3, [0, 2, 1, 0])])
def test_any_stack(stack: int, zeros: list[int]) -> None:
    found = play(Emulator([2], [on(1)] * 4, stack=stack))
    assert [z for (z,) in found["zeros"]] == zeros


def test_the_emulators_own_pictures_are_left_alone() -> None:
    emulator = Emulator([3], [on(2), on(2), on(2)])
    given: list[np.ndarray] = []
    step = emulator.step

    def kept(action: np.ndarray) -> EnvStep:
        given.append((found := step(action)).obs["obs"])
        return found

    emulator.step = kept  # type: ignore[method-assign]
    assert play(emulator)["zeros"] == [[0], [3], [2]] and all((pictures > 0).all() for pictures in given)


def test_a_reset_forgets_what_was_lost() -> None:
    emulator = Emulator([3], [on(2), on(2)])
    env = ale.LifeLoss(emulator, STACK, 1)  # type: ignore[arg-type]
    env.reset(0)
    env.step(np.array([3]))
    env.reset(1)
    step = env.step(np.array([3]))
    assert step.valid.tolist() == [True] and emulator.actions[-1] == [3] and (step.obs["obs"] > 0).all()
    env.step(np.array([3]))
    emulator.lives = [1]
    obs = env.reset(2)
    assert (obs["obs"] > 0).all()
    emulator.script = ([on(1)],)
    assert env.step(np.array([3])).terminated.tolist() == [False]
    assert env.env is emulator.env
    env.close()
    assert emulator.closed


# --------------------------------------------------------------------------------- what ALE is told
@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    vector = pytest.importorskip("ale_py.vector_env")
    seen: list[dict[str, Any]] = []

    def made(game: str, num_envs: int, **settings: Any) -> Any:
        seen.append({"game": game, "num_envs": num_envs, **settings})
        return object()

    monkeypatch.setattr(vector, "AtariVectorEnv", made)
    return seen


def test_every_option_reaches_the_emulator(told: list[dict[str, Any]]) -> None:
    options = EnvOptions(
        frame_skip=5,
        frame_stack=3,
        noop_max=7,
        sticky_actions=0.25,
        full_action_space=True,
        screen=42,
        fire_reset=False,
        max_episode_frames=9_000,
        env_kwargs={"maxpool": False},
        life_loss=True,
        reward_clip="sign",
    )
    ale.make_vector("pong", 6, options)
    assert told == [
        dict(
            game="pong",
            num_envs=6,
            num_threads=1,
            max_num_frames_per_episode=9_000,
            repeat_action_probability=0.25,
            full_action_space=True,
            img_height=42,
            img_width=42,
            stack_num=3,
            frameskip=5,
            noop_max=7,
            use_fire_reset=False,
            reward_clipping=False,
            maxpool=False,
        )
    ]


def test_the_protocol_is_that_of_the_papers(told: list[dict[str, Any]]) -> None:
    """Mnih et al. 2015, Methods; 30 minutes of play as in Hessel et al. 2018."""
    ale.make_vector("pong", 1, EnvOptions())
    assert told == [
        dict(
            game="pong",
            num_envs=1,
            num_threads=1,
            max_num_frames_per_episode=108_000,
            repeat_action_probability=0.0,
            full_action_space=False,
            img_height=84,
            img_width=84,
            stack_num=4,
            frameskip=4,
            noop_max=30,
            use_fire_reset=True,
            reward_clipping=False,
        )
    ]
    assert not EnvOptions().life_loss


def test_a_limit_in_steps_is_in_frames_to_the_emulator(told: list[dict[str, Any]]) -> None:
    ale.make_vector("pong", 1, EnvOptions(max_episode_steps=100, frame_skip=3))
    assert told[0]["max_num_frames_per_episode"] == 300


def test_colours_are_the_whole_screen(told: list[dict[str, Any]]) -> None:
    ale.make_vector("pong", 1, EnvOptions(), colour=True)
    ale.make_vector("pong", 1, EnvOptions())
    size = {"grayscale": False, "img_height": 210, "img_width": 160, "stack_num": 1}
    assert {name: told[0][name] for name in size} == size and "grayscale" not in told[1]
    assert {name: value for name, value in told[0].items() if name not in size} == {
        name: value for name, value in told[1].items() if name not in size
    }


@pytest.mark.parametrize(
    "actions,waits", [(["NOOP"], False), (["NOOP", "FIRE"], True), (["NOOP", "UP", "FIRE"], False)]
)
def test_a_game_waits_for_its_second_action(actions: list[str], waits: bool) -> None:
    named = [SimpleNamespace(name=name) for name in actions]
    env: Any = SimpleNamespace(ale=SimpleNamespace(get_action_set=lambda: named))
    assert ale.needs_fire(env) == waits


@pytest.mark.parametrize("name,option", [("img_width", "screen"), ("reward_clipping", "reward_clip")])
def test_options_are_set_by_their_own_names(name: str, option: str) -> None:
    pytest.importorskip("ale_py")
    with pytest.raises(UsageError, match=f"set the option '{option}' instead of '{name}'"):
        ale.make_vector("pong", 1, EnvOptions(env_kwargs={name: 1}))


@pytest.mark.parametrize(
    "game,fire_reset,restart", [("Breakout", True, 1), ("Breakout", False, 0), ("Freeway", True, 0)]
)
def test_fire_is_pressed_where_a_game_waits_for_it(game: str, fire_reset: bool, restart: int) -> None:
    pytest.importorskip("ale_py")
    options = EnvOptions(life_loss=True, fire_reset=fire_reset, frame_skip=3, frame_stack=2)
    batch: Any = make(f"ALE/{game}-v5", 1, options)
    assert isinstance(batch, ale.LifeLoss) and batch._restart == restart and batch._stack == 2
    assert (batch.spec.frames_per_step, batch.spec.stack) == (3, 2)
    batch.close()
