"""Environments that break: named with everything needed to reproduce it, replaced, never learned from."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from broken_env import FAULTS
from gymnasium import spaces as gs

from shoal import api
from shoal.envs import EnvOptions, make, spec
from shoal.envs.wrappers import misfit
from shoal.local.runtime import LocalRuntime
from shoal.program import Channel, Program
from shoal.roles.actor import ActorRole, unroll_spec
from shoal.runtime.launch import Launch, Stop

FILE = str(Path(__file__).with_name("broken_env.py"))
ENV, STEPS, ENVS = f"{FILE}:Broken", 5, 2


class Always2:
    """Takes action 2."""

    def initial_state(self, envs: int) -> api.Tensors:
        return {}

    def act(self, obs: api.Arrays, first: np.ndarray, state: api.Tensors, greedy: bool = False) -> api.Act:
        return api.Act(np.full(len(first), 2), state, {})

    def load(self, params: api.Tensors, version: int) -> None:
        pass


class Inspector:
    """Every unroll must be finite and count on."""

    def __init__(self, ctx: api.Context, unrolls: Any, params: Any) -> None:
        self.ctx, self.unrolls = ctx, unrolls
        params.publish({"x": torch.zeros(1)})

    def step(self) -> None:
        items = self.unrolls.get().items
        assert all(torch.isfinite(v).all() for v in items.values() if v.is_floating_point()), items
        t, goes_on = items["obs"][..., 0], ~items["first"][1:]
        assert ((t[1:] == t[:-1] + 1) | ~goes_on).all(), t
        assert (items["obs"][..., 1] == 0.5).all() and (items["reward"] <= 1).all()
        self.ctx.metrics.count("updates")


def program(folder: Path) -> Program:
    options = EnvOptions(env_kwargs={"folder": str(folder)})
    unroll = unroll_spec(spec(ENV, options), STEPS, ENVS, {})

    def actor(ctx: api.Context, out: Any, params: Any) -> ActorRole:
        return ActorRole(ctx, make(ENV, ENVS, options), Always2(), out, params, unroll)

    p = Program("broken")
    unrolls = p.channel(Channel("unrolls", "queue", unroll))
    params = p.channel(Channel("params", "params", {"x": api.Field((1,))}))
    p.role("actor", actor, on_failure="restart", out=unrolls.writer(), params=params.reader())
    p.role("learner", Inspector, unrolls=unrolls.reader(), params=params.writer())
    return p


def test_each_fault_is_named_and_none_is_learned_from(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        report = LocalRuntime().launch(program(tmp_path), Launch(seed=1, stop=Stop(updates=300, seconds=100)))
    assert report.reason == "updates" and report.restarts == len(FAULTS)
    told = "\n".join(caplog.messages)
    where = "(index 1, action 2, seed "
    for expected in (
        f"Broken' raised RuntimeError in step {where}", "the motor is on fire",
        "returned a value of 'obs' that is not finite, or too large for float32 (index 1, action 2, seed ",
        "returned a value of 'reward' that is not finite, or too large for float32 (index 1, action 2, seed ",
        f"returned 'obs' of shape [1] instead of [2] {where}",
        f"returned 'obs' of dtype complex64 instead of float32 {where}",
        "raised RuntimeError in reset (index 1, seed ", "the track is closed",
    ):  # fmt: skip
        assert expected in told, told
    assert told.count('raise RuntimeError("the motor is on fire")') == 1, "the original traceback, once"
    assert len(list(tmp_path.glob("seed *"))) == ENVS * (1 + len(FAULTS)), "every life has seeds of its own"


class Nested(gym.Env[Any, Any]):
    """A nested observation, for the cheap check of single environments."""

    observation_space = gs.Dict({"a": gs.Box(0, 255, (2, 3), np.uint8), "b": gs.Tuple((gs.Discrete(3), gs.Box(-1, 1)))})


@pytest.mark.parametrize(
    "change, text",
    [
        ({}, ""),
        ({"a": np.zeros((3, 2), np.uint8)}, "'obs/a' of shape [3, 2] instead of [2, 3]"),
        ({"a": np.zeros((2, 3))}, "'obs/a' of dtype float64 instead of uint8"),
        ({"b": (1,)}, "'obs/b' of 1 part instead of 2"),
        ({"b": (1.5, np.zeros(1))}, "'obs/b/0' of dtype float64 instead of int64"),
        ({"b": (1, np.zeros(1))}, ""),  # float64 for float32: NumPy's usual casting
    ],
)
def test_misfits(change: dict[str, Any], text: str) -> None:
    obs = {"a": np.zeros((2, 3), np.uint8), "b": (1, np.zeros(1, np.float32)), **change}
    assert misfit(Nested.observation_space, obs) == text


def test_a_missing_part_is_named() -> None:
    assert misfit(Nested.observation_space, {"a": np.zeros((2, 3), np.uint8)}) == "'obs' without 'b'"
