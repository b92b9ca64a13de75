"""What is looked at in every observation, reward and mask, each rule at its bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode

from shoal.api import MASK, Action, EnvironmentFailed, EnvSpec, Observation, UsageError
from shoal.envs import EnvOptions, given as from_python, make, masks
from shoal.envs.batch import VectorBatch
from shoal.envs.infos import numbers
from shoal.envs.one_by_one import OneByOne
from shoal.envs.spaces import ActionCodec, ObservationCodec, batch_of
from shoal.envs.wrappers import DropText, Named, misfit

PAIR = gs.Tuple((gs.Box(-1, 1, (2,), np.float32), gs.Discrete(3)))
DICT = gs.Dict({"a": gs.Box(-1, 1, (2,), np.float32), "b": PAIR})


# -------------------------------------------------------------------------------------- one environment
@pytest.mark.parametrize(
    "space,obs,told",
    [
        (DICT["a"], np.zeros(2, np.float64), ""),
        (DICT["a"], [0.0, 1.0], ""),
        (DICT["a"], np.zeros(3, np.float32), "'obs' of shape [3] instead of [2]"),
        (DICT["a"], np.zeros(2, complex), "'obs' of dtype complex128 instead of float32"),
        (gs.Discrete(3), np.int32(2), ""),
        (gs.Discrete(3), 1.5, "'obs' of dtype float64 instead of int64"),
        (gs.Box(0, 255, (2,), np.uint8), np.zeros(2, np.int64), "'obs' of dtype int64 instead of uint8"),
        (PAIR, (np.zeros(2, np.float32), 1), ""),
        (PAIR, (np.zeros(2, np.float32),), "'obs' of 1 part instead of 2"),
        (PAIR, (np.zeros(2, np.float32), 0.5), "'obs/1' of dtype float64 instead of int64"),
        (DICT, {"a": np.zeros(2, np.float32)}, "'obs' without 'b'"),
        (DICT, {"a": np.zeros(2, np.float32), "b": (np.zeros(1), 1)}, "'obs/b/0' of shape [1] instead of [2]"),
        (DICT, {"a": np.zeros(2, np.float32), "b": (np.zeros(2), 1), "more": 1}, ""),
    ],
)
def test_what_does_not_fit_is_said(space: Any, obs: Any, told: str) -> None:
    assert misfit(space, obs) == told


class Plain(gym.Env[Any, Any]):
    observation_space: gs.Space[Any] = gs.Box(-1, 1, (2,), np.float32)
    action_space: gs.Space[Any] = gs.Discrete(3)

    def __init__(self, **returns: Any) -> None:
        self.returns = returns
        self.info: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.returns.get("reset", (np.zeros(2, np.float32), dict(self.info)))

    def step(self, action: Any) -> Any:
        obs = self.returns.get("obs", np.zeros(2, np.float32))
        ended = bool(self.returns.get("ended"))
        return self.returns.get("step", (obs, self.returns.get("reward", 0.5), ended, False, dict(self.info)))


@pytest.mark.parametrize(
    "returns,told",
    [
        (dict(reset=(np.zeros(2, np.float32),)), r"returned \(ndarray\) from reset instead of \(observation, info\)"),
        (dict(reset=(np.zeros(2, np.float32), 1)), r"returned \(ndarray, int\) from reset"),
        (dict(reset=np.zeros((2, 2), np.float32)), "returned ndarray from reset"),
        (dict(reset=(np.zeros(3, np.float32), {})), r"of shape \[3\] instead of \[2\] from reset \(index 4, seed 9\)"),
        (dict(obs=np.zeros(3, np.float32)), r"of shape \[3\] instead of \[2\] \(index 4, action 2, seed 9\)"),
        (dict(reset=[np.zeros(2, np.float32), {}]), "returned list from reset"),
        (dict(step=(0, 1, 2, 3)), r"returned \(int, int, int, int\) from step"),
        (dict(step=5), "returned int from step"),
        (
            dict(step=(np.zeros(2, np.float32), 0.5, False, False, None)),
            "NoneType as the info of a step instead of a dict",
        ),
        (dict(reward=np.zeros(2)), r"a reward of shape \[2\] instead of a number \(index 4, action 2, seed 9\)"),
    ],
)
def test_an_environment_that_returns_something_else_is_named(returns: Any, told: str) -> None:
    env = Named(Plain(**returns), "mine", 4)

    def play() -> None:
        env.reset(seed=9)
        env.reset()
        env.step(2)

    with pytest.raises(EnvironmentFailed, match=told):
        play()


def test_only_numbers_at_an_end_are_told() -> None:
    """And a reward that is an array of one is a number; nothing is looked at without the check."""
    for ended in (False, True):
        env: Any = Named(Plain(ended=ended, reward=np.array([2.5])), "mine", 0)
        env.unwrapped.info = {"score": 3, "name": "x"}
        assert env.reset(seed=0)[1] == {}
        _, reward, _, _, info = env.step(1)
        assert reward == 2.5 and type(reward) is float and info == ({"score": 3.0} if ended else {})
    loose = Named(Plain(obs=np.zeros(3, np.float32), reset=(np.zeros(3, np.float32), {})), "mine", 0, check=False)
    assert loose.reset()[0].shape == loose.step(0)[0].shape == (3,)


@pytest.mark.parametrize("lacking,found", [(None, "has none"), (5, "found int")])
def test_an_environment_without_a_space_is_refused(lacking: Any, found: str) -> None:
    env = Plain()
    env.observation_space = lacking
    with pytest.raises(UsageError, match=f"'mine' needs an observation_space of gymnasium.spaces: {found}"):
        Named(env, "mine", 0)


def test_a_mask_that_nobody_announced_is_looked_for_twice() -> None:
    """At resets and at the first step; later an info is not looked at."""
    mask = np.ones(3, np.int8)
    env: Any = Named(Plain(), "mine", 0)
    env.unwrapped.info = {"action_mask": mask}
    with pytest.raises(EnvironmentFailed, match="gives an info"):
        env.reset()
    env.unwrapped.info = {}
    env.reset()
    env.unwrapped.info = {"action_mask": mask}
    with pytest.raises(EnvironmentFailed, match="gives an info"):
        env.step(0)
    env.step(0)
    ignored: Any = Named(Plain(), "mine", 0, action_mask="none")
    ignored.unwrapped.info = {"action_mask": mask}
    assert ignored.reset()[1] == {} and ignored.step(0)[4] == {}
    told: Any = Named(Plain(), "mine", 0, action_mask="info")
    told.unwrapped.info = {"action_mask": np.array([0, 1, 1])}
    for info in (told.reset()[1], told.step(0)[4]):
        assert info["action_mask"].tolist() == [False, True, True]


@pytest.mark.parametrize(
    "value,kept",
    [
        (2**63 - 1, True),
        (-(2**63) + 1, True),
        (2**63, False),
        (10**400, False),
        (True, True),
        (np.int8(3), True),
        (np.inf, False),
        ("1", False),
    ],
)
def test_integers_of_64_bits_are_numbers(value: Any, kept: bool) -> None:
    assert ("x" in numbers({"x": value})) == kept and numbers(5) == {}


def test_one_by_one_resets_in_the_step_after_an_end() -> None:
    """Each environment alone; a Dict too."""

    class Short(Plain):
        observation_space = gs.Dict({"t": gs.Box(0, 99, (1,), np.float32)})

        def __init__(self, length: int) -> None:
            super().__init__()
            self.length, self.t = length, 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.t = 0
            return {"t": np.zeros(1, np.float32)}, {}

        def step(self, action: Any) -> Any:
            self.t += 1
            return {"t": np.full(1, self.t, np.float32)}, float(action), self.t == self.length, False, {}

    env = OneByOne([lambda: Short(2), lambda: Short(3)])
    env.reset(seed=0)
    steps = [env.step(np.array([1, 2])) for _ in range(5)]
    assert [step[0]["t"][:, 0].tolist() for step in steps] == [[1, 1], [2, 2], [0, 3], [1, 0], [2, 1]]
    assert [step[1].tolist() for step in steps] == [[1, 2], [1, 2], [0, 2], [1, 0], [1, 2]]
    assert [step[2].tolist() for step in steps] == [[0, 0], [1, 0], [0, 1], [0, 0], [1, 0]]
    assert all(step[4] == {} for step in steps)


# ------------------------------------------------------------------------------------------ a batch
class Vector:
    """A vector environment that returns what it is told to."""

    def __init__(self, num: int = 2) -> None:
        self.num_envs, self.metadata = num, dict[str, Any]()
        self.obs: Any = np.zeros((num, 2), np.float32)
        self.reward: Any = np.zeros(num)
        self.terminated: Any = np.zeros(num, bool)
        self.truncated: Any = np.zeros(num, bool)
        self.info: Any = {}
        self.reset_obs: Any = None

    def reset(self, **given: Any) -> Any:
        return (self.obs if self.reset_obs is None else self.reset_obs), dict(self.info)

    def step(self, action: Any) -> Any:
        return self.obs, self.reward, self.terminated, self.truncated, self.info

    def close(self) -> None: ...


def batch(mode: AutoresetMode = AutoresetMode.NEXT_STEP, space: Any = None, seeds: str = "list", **how: Any) -> Any:
    space = gs.Box(-9, 9, (2,), np.float32) if space is None else space
    observation, action = ObservationCodec(space, "mine"), ActionCodec(gs.Discrete(3), "mine")
    spec = EnvSpec("mine", observation.observations, action.action)
    return VectorBatch(Vector(), spec, observation, action, mode, seeds, **how)  # type: ignore[arg-type]


def spoil(**fields: Any) -> Callable[[Any], None]:
    def set_all(env: Any) -> None:
        for name, value in fields.items():
            setattr(env, name, value)

    return set_all


@pytest.mark.parametrize(
    "fields,told",
    [
        (dict(obs=np.zeros((2, 3), np.float32)), r"'obs' of shape \[2, 3\] and dtype float32 instead of \[2, 2\]"),
        (dict(obs=np.zeros((3, 2), np.float32)), r"'obs' of shape \[3, 2\]"),
        (
            dict(obs=np.array([[0, 0], [0, np.nan]], np.float32)),
            r"'obs' that is not finite, or too large for float32 \(index 1, action 2, seed 7\)",
        ),
        (dict(reward=np.zeros(3)), r"rewards of shape \[3\] instead of \[2\]"),
        (dict(reward=np.array([np.inf, 0.0])), r"'reward' that is not finite, or too large .* \(index 0, action 1"),
        (
            dict(reward=np.array([0.0, -1e300])),
            r"'reward' that is .* too large for float32 \(index 1, action 2, seed 7\)",
        ),
        (
            dict(reward=np.array([0.0, 3.5e38])),
            r"'reward' that is .* too large for float32 \(index 1, action 2, seed 7\)",
        ),
        (
            dict(obs=np.array([[0, 0], [0, 1e300]])),
            r"'obs' that is .* too large for float32 \(index 1, action 2, seed 7\)",
        ),
        (dict(info=[{}, {}]), "returned list as the info of a step instead of a dict"),
        (dict(info=None), "returned NoneType as the info of a step instead of a dict"),
        (dict(terminated=np.zeros(3, bool)), r"'terminated' of shape \[3\] and 'truncated' of \[2\] instead of \[2\]"),
        (dict(truncated=np.zeros((), bool)), r"'terminated' of shape \[2\] and 'truncated' of \[\] instead of \[2\]"),
    ],
)
def test_a_batch_that_is_none_is_named(fields: Any, told: str) -> None:
    one = batch()
    one.reset(5)
    spoil(**fields)(one.env)
    with pytest.raises(EnvironmentFailed, match=told):
        one.step(np.array([1, 2]))


@pytest.mark.parametrize("info", [None, [{}, {}]])
def test_a_vector_environment_whose_reset_tells_no_dict_is_named(info: Any) -> None:
    one = batch()
    one.env.reset = lambda **given: (one.env.obs, info)
    with pytest.raises(EnvironmentFailed, match=f"{type(info).__name__} as the info of a reset instead of a dict"):
        one.reset(0)


def test_numbers_whose_squares_are_too_large_are_numbers() -> None:
    one = batch()
    one.reset(0)
    one.env.obs, one.env.reward = np.full((2, 2), 3e30, np.float32), np.full(2, 3e30)
    with np.errstate(over="ignore"):
        assert (one.step(np.array([1, 2])).obs["obs"] == np.float32(3e30)).all()


@pytest.mark.parametrize(
    "seeds,told", [("list", "index 1, at reset, seed 7"), ("int", "index 1, at reset, seed 5 of the batch")]
)
def test_a_first_observation_is_looked_at(seeds: str, told: str) -> None:
    one = batch(seeds=seeds)
    one.env.obs[1, 0] = np.nan
    with pytest.raises(EnvironmentFailed, match=rf"'obs' that is not finite, or too large for float32 \({told}\)"):
        one.reset(5)


@pytest.mark.parametrize("value,row", [(3, 0), (-1, 1)])
def test_integers_are_of_their_space(value: int, row: int) -> None:
    one = batch(space=gs.Discrete(3))
    one.env.obs = np.array([0, 2])
    one.reset(0)
    one.env.obs = np.array([0, 0])
    one.env.obs[row] = value
    with pytest.raises(EnvironmentFailed, match=rf"\[{value}\], counted from 0, of \[3\] \(index {row}, "):
        one.step(np.array([1, 1]))


def test_without_the_check_nothing_is_looked_at() -> None:
    one = batch(check=False)
    one.env.obs[0, 0] = np.nan
    one.reset(0)
    assert np.isnan(one.step(np.array([0, 0])).obs["obs"][0, 0])


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_what_a_reset_in_the_same_step_shows_is_looked_at(mode: AutoresetMode) -> None:
    """The first observation and the true last one; the environment's own arrays are left as they are."""
    one = batch(mode)
    one.reset(0)
    one.env.obs = np.array([[1, 1], [2, 2]], np.float32)
    one.env.truncated = np.array([True, False])
    if mode is AutoresetMode.DISABLED:
        one.env.reset_obs = np.array([[5, 5], [6, 6]], np.float32)
        wanted, last = [[5, 5], [2, 2]], [1, 1]
    else:
        one.env.info = {"final_obs": np.array([[3, 3], [0, 0]], np.float32)}
        wanted, last = [[1, 1], [2, 2]], [3, 3]
    step = one.step(np.array([0, 0]))
    assert step.obs["obs"].tolist() == wanted and step.final_obs["obs"][0].tolist() == last
    assert step.valid.all() and one.env.obs.tolist() == [[1, 1], [2, 2]]
    bad = np.array([[np.nan, 0], [0, 0]], np.float32)
    spoil(**({"reset_obs": bad} if mode is AutoresetMode.DISABLED else {"info": {"final_obs": bad}}))(one.env)
    with pytest.raises(EnvironmentFailed, match="not finite"):
        one.step(np.array([0, 0]))


def test_last_observations_of_parts_come_one_by_one() -> None:
    """As Gymnasium's vectors give those of a Dict: an array of objects, of which only those that ended are anything."""
    space = gs.Dict({"a": gs.Box(-9, 9, (2,), np.float32), "b": gs.Tuple([gs.Discrete(4)])})
    one = batch(AutoresetMode.SAME_STEP, space)
    one.env.obs = {"a": np.array([[1, 2], [3, 4]], np.float32), "b": (np.array([0, 1]),)}
    one.reset(0)
    last = np.array([None, {"a": np.array([5, 6], np.float32), "b": (np.int64(3),)}], object)
    one.env.truncated, one.env.info = np.array([False, True]), {"final_obs": last}
    step = one.step(np.array([0, 0]))
    names = sorted(step.obs)
    assert step.final_obs[names[0]].tolist() == [[1, 2], [5, 6]]
    assert step.final_obs[names[1]].reshape(-1).tolist() == [0, 3] and step.obs[names[1]].reshape(-1).tolist() == [0, 1]


@pytest.mark.parametrize("told", [True, False])
def test_numbers_of_an_end_are_told_only_where_they_are_asked_for(told: bool) -> None:
    one = batch(episode_info=told)
    one.reset(0)
    one.env.truncated, one.env.info = np.array([False, True]), {"score": np.array([4.0, 5.0])}
    (episode,) = one.step(np.array([0, 0])).episodes
    assert episode.info == ({"score": 5.0} if told else {})


def test_a_reset_in_the_same_memory_leaves_the_last_observation() -> None:
    """As of environments that write all observations into one array."""
    one = batch(AutoresetMode.DISABLED)
    one.reset(0)
    reset = one.env.reset

    def in_place(**given: Any) -> Any:
        one.env.obs[:] = 7.0
        return reset(**given)

    one.env.obs[:], one.env.reset = 3.0, in_place
    one.env.truncated = np.array([True, False])
    step = one.step(np.array([0, 0]))
    assert step.final_obs["obs"].tolist() == [[3, 3], [3, 3]] and step.obs["obs"].tolist() == [[7, 7], [3, 3]]


def test_a_mask_that_a_batch_would_ignore_is_looked_for_twice() -> None:
    one = batch(told_of_masks=True)
    one.env.info = {"action_mask": np.ones((2, 3))}
    with pytest.raises(EnvironmentFailed, match="gives an info"):
        one.reset(0)
    one.env.info = {}
    one.reset(0)
    one.env.info = {"action_mask": np.ones((2, 3))}
    with pytest.raises(EnvironmentFailed, match="gives an info"):
        one.step(np.array([0, 0]))
    one.step(np.array([0, 0]))


def test_text_is_left_out_of_a_dict() -> None:
    class Told(Plain):
        observation_space = gs.Dict({"mission": gs.Text(9), "image": gs.Discrete(3)})

    env = DropText(Told())
    assert list(cast(gs.Dict, env.observation_space).spaces) == ["image"] and env.observation(
        {"mission": "go", "image": 2}
    ) == {"image": 2}
    plain = DropText(Plain())
    assert plain.observation_space == Plain.observation_space and plain.observation(5) == 5


def test_returns_and_lengths_are_of_one_episode() -> None:
    """The row that is ignored counts for neither; a reset forgets an end that waits."""
    one = batch()
    one.reset(0)
    one.env.reward = np.array([1.0, 10.0])
    found = []
    for t in range(7):
        one.env.terminated = np.array([t % 3 == 1, False])
        step = one.step(np.array([0, 0]))
        found.append([(e.ret, e.length) for e in step.episodes])
        assert step.valid.tolist() == [t not in (2, 5), True] and step.reward[0] == (0.0 if t in (2, 5) else 1.0)
    assert found == [[], [(2.0, 2)], [], [], [(2.0, 2)], [], []]
    one.env.terminated = np.array([True, True])
    one.step(np.array([0, 0]))
    one.reset(1)
    one.env.terminated = np.array([False, False])
    step = one.step(np.array([0, 0]))
    assert step.valid.all() and step.reward.tolist() == [1.0, 10.0]
    one.env.terminated = np.array([True, True])
    assert [(e.ret, e.length) for e in one.step(np.array([0, 0])).episodes] == [(2.0, 2), (20.0, 2)]


# ------------------------------------------------------------------------------------------ spaces
@pytest.mark.parametrize(
    "space,obs,num,told",
    [
        (PAIR, (np.zeros(2),), None, "'obs' should be a tuple of 2 parts"),
        (PAIR, 5, None, "found int"),
        (PAIR, [np.zeros(2), 1], None, ""),
        (DICT, {"a": np.zeros(2)}, None, r"parts \['a', 'b'\], found \['a'\]"),
        (DICT, 5, None, "found int"),
        (gs.Dict({"a": PAIR}), {"a": (np.zeros(2), 1), "more": 0}, None, ""),
        (DICT["a"], np.zeros(3), None, r"should have shape \(2,\), found \(3,\)"),
        (DICT["a"], np.zeros((3, 2)), 3, ""),
        (DICT["a"], np.zeros((2, 2)), 3, r"shape \(3, 2\), found \(2, 2\)"),
        (PAIR, (np.zeros((3, 2)), np.array([0, 1, 2])), 3, ""),
        (gs.MultiBinary(2), [1, 1], None, ""),
        (gs.MultiBinary(2), [1, -1], None, "the value -1"),
        (gs.Discrete(5, start=3), 7, None, ""),
    ],
)
def test_one_observation_or_a_batch_of_them(space: Any, obs: Any, num: int | None, told: str) -> None:
    if told:
        with pytest.raises(UsageError, match=told):
            batch_of(space, obs, num)
        return
    found = batch_of(space, obs, num)
    found = found["a"] if isinstance(found, dict) else found
    first = np.asarray(found[0] if isinstance(found, tuple) else found)
    assert len(first) == (1 if num is None else num)


@pytest.mark.parametrize(
    "space,shape,kind",
    [
        (gs.Box(0, 255, (9, 13), np.uint8), (1, 9, 13), "image"),
        (gs.Box(0, 255, (9, 13, 3), np.uint8), (3, 9, 13), "image"),
        (gs.Box(0, 255, (3, 9, 13), np.uint8), (3, 9, 13), "image"),
        (gs.Box(0, 255, (9, 13, 4), np.uint8), (4, 9, 13), "image"),
        (gs.Box(0, 255, (9, 13, 5), np.uint8), (9, 13, 5), "image"),
        (gs.Box(0, 255, (7,), np.uint8), (7,), "vector"),
        (gs.Box(0, 255, (2, 2, 9, 9, 2), np.uint8), (2, 2, 9, 9, 2), "vector"),
        (gs.Box(0, 1, (), np.float32), (1,), "vector"),
        (gs.MultiDiscrete(np.array([[2, 3], [4, 5]])), (4,), "one_hot"),
        (gs.Discrete(6), (1,), "one_hot"),
    ],
)
def test_what_a_network_reads_a_space_as(space: Any, shape: tuple[int, ...], kind: str) -> None:
    codec = ObservationCodec(space, "mine")
    leaf = codec.observations["obs"]
    assert leaf.shape == shape and leaf.kind == kind
    sample = np.stack([np.asarray(space.sample()) for _ in range(3)])
    found = codec(sample)["obs"]
    assert found.shape == (3, *shape) and str(found.dtype) == leaf.dtype
    if kind == "image" and len(space.shape) == 3 and shape != space.shape:
        np.testing.assert_array_equal(found, np.moveaxis(sample, -1, 1))


# ------------------------------------------------------------------------------------------- masks
TWO = Action("multi_discrete", (2, 3))


def where(row: int) -> str:
    return f"row {row}"


@pytest.mark.parametrize(
    "rows,over,stuck",
    [
        ([[1, 0, 0, 0, 1], [1, 1, 1, 1, 1]], None, None),
        ([[1, 0, 0, 0, 1], [0, 0, 1, 1, 1]], None, 1),
        ([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1]], [False, False], 0),
        ([[1, 1, 0, 0, 0], [1, 0, 1, 1, 1]], [True, False], None),
        ([[0, 0, 0, 0, 0], [0, 0, 1, 1, 1]], [True, False], 1),
        ([[1, 1, 0, 0, 0], [0, 0, 0, 0, 0]], [True, True], None),
        ([[1, 0, 0, 0, 1], [0, 0, 1, 1, 1]], [True, True], None),
    ],
)
def test_every_part_of_an_action_has_a_value_that_is_allowed(rows: Any, over: Any, stuck: int | None) -> None:
    """But where the episode is over: there all are."""
    mask = np.array(rows, bool)
    ends = None if over is None else np.array(over)
    if stuck is not None:
        with pytest.raises(EnvironmentFailed, match=rf"forbids every value of a part of the action \(row {stuck}\)"):
            masks.check(mask, TWO, ends, "mine", where)
        return
    masks.check(mask, TWO, ends, "mine", where)
    for row, (given, end) in enumerate(zip(rows, over or [False, False], strict=True)):
        whole = any(given[:2]) and any(given[2:])
        assert mask[row].tolist() == (given if whole or not end else [True] * 5)


@pytest.mark.parametrize(
    "given,told",
    [
        (np.ones((2, 3), np.int8), ""),
        ([np.ones(3), np.zeros(3)], ""),
        (np.ones((3, 3)), "gave 3 masks instead of 2"),
        (np.ones((2, 4)), "shape [4]"),
        (None, "gave no info['action_mask']"),
        ([np.ones(3)], "gave 1 masks instead of 2"),
        (5, "gave int as masks instead of 2"),
        (np.array(1), "gave ndarray as masks instead of 2"),
        (np.array([["a", "b", "c"]] * 2), "dtype <U1"),
        (np.array([np.ones(3), None], object), "dtype object"),
    ],
)
def test_masks_of_a_batch(given: Any, told: str) -> None:
    info = {} if given is None else {"action_mask": given}
    if told:
        with pytest.raises(EnvironmentFailed) as error:
            masks.of_batch(info, (2, 3), "mine", lambda: "here")
        assert told in str(error.value) and "(here)" in str(error.value)
        return
    found = masks.of_batch(info, (2, 3), "mine", lambda: "here")
    assert found.dtype == bool and found.tolist() == np.asarray(given, bool).tolist()


def test_masks_of_last_observations() -> None:
    """Those that the environment tells; else everything is allowed. Rows that go on stay as they are."""
    rows, told = np.array([True, False]), np.array([[0, 1, 0], [1, 0, 0]])
    for info, wanted in (
        ({"final_info": {"action_mask": told}}, [0, 1, 0]),
        ({"final_info": {"action_mask": told[:1]}}, [1, 1, 1]),
        ({"final_info": {}}, [1, 1, 1]),
        ({"final_info": 5}, [1, 1, 1]),
        ({}, [1, 1, 1]),
    ):
        finals = np.array([[0, 0, 1], [0, 0, 1]], bool)
        masks.ends(finals, info, rows)
        assert finals.astype(int).tolist() == [wanted, [0, 0, 1]]


def test_who_is_told_of_masks() -> None:
    dict_space = gs.Dict({"action_mask": gs.MultiBinary(5), "x": gs.Discrete(2)})
    box, continuous = gs.Box(0, 1, (2,)), Action("continuous", (), (0.0,), (1.0,))
    assert masks.leaf(TWO) == Observation((5,), "bool", "mask") and MASK == "obs/" + masks.KEY
    assert masks.told_of(box, "auto", TWO) and masks.told_of(box, "info", TWO)
    for space, how, action in ((box, "none", TWO), (box, "auto", continuous), (dict_space, "auto", TWO)):
        assert not masks.told_of(space, how, action)  # type: ignore[arg-type]
    assert masks.in_observation(dict_space, "auto", TWO, "mine") and not masks.in_observation(box, "auto", TWO, "mine")
    for how, action in (("none", TWO), ("info", TWO), ("auto", continuous)):
        assert not masks.in_observation(dict_space, how, action, "mine")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no other observation"):
        masks.in_observation(gs.Dict({"action_mask": gs.MultiBinary(5)}), "auto", TWO, "mine")
    env: Any = Plain()
    env.metadata = None
    assert not masks.in_info(env, box, "auto", TWO, "mine") and masks.in_info(env, box, "info", TWO, "mine")
    env.metadata = {"action_mask": True}
    assert masks.in_info(env, box, "auto", TWO, "mine") and not masks.in_info(env, box, "none", TWO, "mine")
    env.metadata, env.action_mask = {}, 1
    assert masks.in_info(env, box, "auto", TWO, "mine") and not masks.in_info(env, dict_space, "auto", TWO, "mine")


@pytest.mark.parametrize("at", ["made", "reset", "step"])
def test_what_an_environment_sets_of_pytorch_is_its_own(at: str) -> None:
    """It holds in its later calls, and nowhere else: a learner of the same process records gradients of float32."""
    seen: list[tuple[bool, torch.dtype]] = []

    class Setting(gym.Env[Any, Any]):
        observation_space, action_space = gs.Box(-1, 1, (2,), np.float32), gs.Discrete(2)

        def __init__(self) -> None:
            self.here("made")

        def here(self, now: str) -> None:
            seen.append((torch.is_grad_enabled(), torch.get_default_dtype()))
            if now == at:
                torch.set_grad_enabled(False)
                torch.set_default_dtype(torch.float64)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            self.here("reset")
            return np.zeros(2, np.float32), {}

        def step(self, action: Any) -> Any:
            self.here("step")
            return np.zeros(2, np.float32), 1.0, False, False, {}

    shoals, theirs = (True, torch.float32), (False, torch.float64)
    with torch.enable_grad():
        env = make(from_python(Setting), 1, EnvOptions())
        for call in (lambda: env.reset(0), lambda: env.step(np.array([0])), lambda: env.step(np.array([0]))):
            call()
            assert (torch.is_grad_enabled(), torch.get_default_dtype()) == shoals
    calls = ["made", "reset", "step"].index(at) + 1
    assert seen == [shoals] * calls + [theirs] * (4 - calls)
