"""Fake: an actor that sends its rewards, a learner that counts them. Small enough to test the command line with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from shoal.api import Act, Agent, Arrays, Context, Field, ParamsReader, ParamsWriter, Reader, Tensors, Writer
from shoal.envs import make
from shoal.program import Channel, Program
from shoal.topology.config import SystemConfig, require_actions


@dataclass(frozen=True, kw_only=True)
class Config(SystemConfig):
    """Fields of the fake."""

    actors: int = 1
    envs: int = 2
    steps: int = 400
    learning_rate: float = 1e-3
    """Step size of the optimiser."""
    max_grad_norm: float | None = 10.0
    """Clip; none: no clipping."""


PRESETS: dict[str, dict[str, Any]] = {
    "atari": {"envs": 32, "learning_rate": 2.5e-4, "max_grad_norm": None},
    "classic": {"envs": 4},
}


class FixedAgent:
    """Pushes the way of the parameter's sign; greedy or not."""

    def __init__(self) -> None:
        self.push = 0

    def initial_state(self, envs: int) -> Tensors:
        return {}

    def act(self, obs: Arrays, first: np.ndarray, state: Tensors, greedy: bool = False) -> Act:
        return Act(np.full(len(first), self.push), state, {})

    def load(self, params: Tensors, version: int) -> None:
        self.push = int(params["push"].item() > 0)


def agent(cfg: Config, seed: int = 0, ctx: Context | None = None) -> Agent:
    return FixedAgent()


class FakeActor:
    def __init__(self, cfg: Config, ctx: Context, out: Writer, params: ParamsReader) -> None:
        self.cfg, self.ctx, self.out, self.params = cfg, ctx, out, params
        self.env = make(cfg.env, cfg.envs, cfg)
        self.env.reset(ctx.seed)

    def step(self) -> None:
        self.params.latest()
        with self.out.slot() as item:
            for t in range(len(item["reward"])):
                with self.ctx.metrics.phase("env"):
                    step = self.env.step(np.zeros(self.cfg.envs, np.int64))
                item["obs"][t], item["reward"][t] = step.obs["obs"], step.reward
                for episode in step.episodes:
                    self.ctx.metrics.episode(*episode)
        self.ctx.metrics.count("env_steps", item["reward"].size)


class FakeLearner:
    def __init__(self, cfg: Config, ctx: Context, batches: Reader, params: ParamsWriter) -> None:
        self.ctx, self.batches, self.params = ctx, batches, params
        params.publish({"push": torch.zeros(1)})

    def step(self) -> None:
        reward = self.batches.get().items["reward"]
        with self.ctx.metrics.phase("learn"):
            self.params.publish({"push": reward.mean().reshape(1)})
        self.ctx.metrics.record("loss", float(reward.mean()))
        self.ctx.metrics.count("updates")


def program(cfg: Config) -> Program:
    env = cfg.env_spec()
    require_actions("fake", env, "discrete")
    p = Program("fake")
    shape = (10, cfg.envs)
    spec = {"obs": Field((*shape, *env.observations["obs"].shape)), "reward": Field(shape)}
    unrolls = p.channel(Channel("unrolls", "queue", spec))
    params = p.channel(Channel("params", "params", {"push": Field((1,))}))
    p.role("actor", partial(FakeActor, cfg), replicas=cfg.actors, out=unrolls.writer(), params=params.reader())
    p.role("learner", partial(FakeLearner, cfg), batches=unrolls.reader(), params=params.writer())
    return p
