"""Runs a system in the serial runtime, with its learner's batches recorded."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from shoal.api import Batch, Context, Role
from shoal.learning.data_parallel import Team
from shoal.learning.ppo_learner import PPOLearner
from shoal.metering.aggregator import Snapshot
from shoal.program import Program
from shoal.runtime.launch import Launch, Report, Stop
from shoal.serial.runtime import SerialRuntime
from shoal.systems import load, recurrent_ppo

ASYNCHRONOUS = ("a3c", "async-q", "async-sarsa", "async-nstep-q", "unreal")


class Snapshots:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[Snapshot] = []

    def update(self, snapshot: Snapshot) -> None:
        self.seen.append(snapshot)


class UntilBack:
    """An observer that wants a run's end ``more`` updates after a replica was restarted and ``stepped`` says that it
    goes on."""

    def __init__(self, more: int = 50, stepped: Callable[[], bool] = lambda: True) -> None:
        self.more, self.stepped, self.since, self.enough = more, stepped, -1, False

    def update(self, snapshot: Snapshot) -> None:
        if snapshot.restarts and self.since < 0 and self.stepped():
            self.since = snapshot.updates
        self.enough = self.since >= 0 and snapshot.updates >= self.since + self.more

    def launch(self, **options: Any) -> Launch:
        """A launch that ends then."""
        return Launch(stop=Stop(seconds=90, asked=lambda: self.enough), observers=[self], interval=0.1, **options)


def demonstrations() -> list[Any]:
    """Three episodes of CartPole that nobody would play: every number says which step it is."""
    out = []
    for e, steps in enumerate((30, 9, 21)):
        obs = np.full((steps + 1, 4), 1000.0 * (e + 1), np.float32)
        obs[:, 0] += np.arange(steps + 1)
        out.append((obs, np.arange(steps) % 2, np.arange(steps) % 3, e != 1, e == 1))
    return out


def config(system: str, **fields: Any) -> Any:
    small = {"dqn": dict(batch=16, min_replay=64, replay=2_000, hidden=(16,), unroll=8, envs=4)}
    small["apex-dqn"] = small["dqn"]
    small["gorila"] = small["downpour"] = dict(small["dqn"], actors=2)
    small["rainbow"] = dict(small["dqn"], streams=16, atoms=11)
    small["r2d2"] = dict(
        batch=8, min_replay=20, replay=400, hidden=(16,), core_size=12, dueling=False, unroll=8, envs=4, sequence=8,
        overlap=4, burn_in=4, n_step=3,
    )  # fmt: skip
    small["r2d3"] = dict(small["r2d2"], demonstrations=f"{__name__}:demonstrations", demo_ratio=0.25)
    small["apex-dpg"] = small["d4pg"] = {**small["dqn"], "evict_every": 64}
    small["qt-opt"] = dict(small["dqn"], cem_samples=16, cem_elites=4, polyak=0.9, target_lag=6)
    if "env" not in fields:  # Pendulum; EnvPool's, where it is installed, draws other numbers
        small["apex-dpg"] = small["d4pg"] = {**small["d4pg"], "backend": "gymnasium"}
        small["qt-opt"] = {**small["qt-opt"], "backend": "gymnasium"}
    small["impala"] = dict(hidden=(16,), unroll=8, envs=4)
    small["es"] = dict(hidden=(16,), pairs=8, envs=4, noise_table=2**20)
    small["dd-ppo"] = dict(hidden=(16,), unroll=8, envs=4, minibatches=2, epochs=2, actors=2, min_fraction=0.5)
    small["a3c"] = dict(hidden=(16,), unroll=8, envs=2, actors=2)
    for name in ("async-q", "async-sarsa", "async-nstep-q"):
        small[name] = dict(hidden=(16,), unroll=8, envs=2, actors=2, target_period=50)
    small["unreal"] = dict(hidden=(), core_size=8, unroll=6, envs=2, actors=2, replay=200)
    small["recurrent-ppo"] = dict(hidden=(16,), unroll=8, envs=4, minibatches=2, epochs=2)
    return load(system).Config(**{"actors": 1, **small.get(system, {}), **fields})


def ppo_learner(cfg: recurrent_ppo.Config, team: Team | None = None) -> PPOLearner:
    torch.manual_seed(0)
    nets = recurrent_ppo.network(cfg)
    return PPOLearner(recurrent_ppo.PPO(cfg, nets), cfg.steps, 0, team)


def learning_role(system: str) -> str:
    """The role whose ``learner`` learns; replica 0 has the parameters that count."""
    return {"dd-ppo": "rank", **dict.fromkeys(ASYNCHRONOUS, "worker")}.get(system, "learner")


def run(program: Program, updates: int, seed: int = 0, observers: Any = ()) -> Report:
    torch.set_num_threads(1)
    return SerialRuntime().launch(program, Launch(seed=seed, stop=Stop(updates=updates), observers=observers))


def spy(program: Program, role: str, on_make: Any) -> Program:
    """The program with ``on_make(role)`` called on every replica of ``role`` as it is built."""

    def wrap(make: Any) -> Any:
        def made(ctx: Context, **ports: Any) -> Role:
            built = make(ctx, **ports)
            on_make(built)
            return built

        return made

    program.roles = [replace(r, make=wrap(r.make)) if r.name == role else r for r in program.roles]
    return program


def record_batches(program: Program) -> list[tuple[Batch, Any]]:
    """Fills the returned list with (batch, the learner's parameters before it) as the program runs."""
    seen: list[tuple[Batch, Any]] = []

    def attach(role: Any) -> None:
        update = role.learner.update

        def recorded(batch: Batch) -> Any:
            params = {k: v.clone() for k, v in role.learner.params().items()}
            seen.append((batch._replace(items={k: v.clone() for k, v in batch.items.items()}), params))
            return update(batch)

        role.learner.update = recorded

    spy(program, "learner", attach)
    return seen


@contextmanager
def signalled(when: Callable[[], bool], number: signal.Signals = signal.SIGTERM) -> Iterator[None]:
    """Sends this process a signal once ``when`` holds; it must have been sent by the end."""
    sent = threading.Event()

    def watch() -> None:
        end = time.monotonic() + 100
        while time.monotonic() < end and not when():
            time.sleep(0.005)
        sent.set()
        os.kill(os.getpid(), number)

    before = signal.signal(number, lambda *_: None)  # if it comes late, this process goes on
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
        assert sent.is_set(), "the run ended before the signal"
    finally:
        thread.join()
        signal.signal(number, before)
