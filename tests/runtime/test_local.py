"""The supervisor: ends, failures, restarts, lockstep."""

from __future__ import annotations

import logging
import os
import signal
import time
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import torch
from programs import SPEC, Source, Wired, pipeline

from shoal import api
from shoal.local.runtime import LocalRuntime
from shoal.metering.aggregator import Snapshot
from shoal.program import Channel
from shoal.runtime.launch import Launch, Stop

pytestmark = pytest.mark.timeout(40)


class Suicidal(Source):
    """Is killed inside its fourth put, in its first ``lives`` lives."""

    def __init__(self, ctx: api.Context, out: Any, lives: int) -> None:
        super().__init__(ctx, out)
        self.lives = lives

    def step(self) -> None:
        if self.n == 3 and self.ctx.generation < self.lives:
            with self.out.slot() as slot:
                slot["data"][...] = -1
                os.kill(os.getpid(), signal.SIGKILL)
        super().step()


class Watcher:
    """An observer that keeps every snapshot."""

    def __init__(self) -> None:
        self.seen: list[Snapshot] = []

    def update(self, snapshot: Snapshot) -> None:
        self.seen.append(snapshot)


def test_ends_by_updates_and_tells_observers() -> None:
    watcher = Watcher()
    report = LocalRuntime().launch(
        pipeline(), Launch(seed=1, stop=Stop(updates=200), observers=[watcher], interval=0.05)
    )
    assert report.reason == "updates"
    assert report.updates >= 200
    last = watcher.seen[-1]
    assert (last.steps, last.updates) == (report.steps, report.updates)
    assert set(last.fill) == {"items"}
    waits = [name for snapshot in watcher.seen for phases in snapshot.shares.values() for name in phases]
    assert "wait:items" in waits


def test_ends_by_steps_and_by_seconds() -> None:
    assert LocalRuntime().launch(pipeline(), Launch(seed=1, stop=Stop(steps=50))).reason == "steps"
    report = LocalRuntime().launch(pipeline(), Launch(seed=1, stop=Stop(seconds=0.3)))
    assert (report.reason, report.seconds >= 0.3) == ("seconds", True)


class Scorer:
    """Its episodes get better and better."""

    def __init__(self, ctx: api.Context) -> None:
        self.ctx, self.n = ctx, 0

    def step(self) -> None:
        self.ctx.metrics.episode(min(self.n, 500), 10)
        self.n += 1
        time.sleep(0.0001)


def test_ends_by_the_mean_of_a_full_window() -> None:
    program = Wired()
    program.role("scorer", Scorer)
    report = LocalRuntime().launch(program, Launch(seed=1, stop=Stop(episode_return=400.0, seconds=20)))
    assert report.reason == "episode_return"
    assert report.episode_return >= 400
    assert report.episodes >= 449


def test_a_role_that_raises_is_named_with_its_traceback() -> None:
    with pytest.raises(api.RoleFailed) as failure:
        LocalRuntime().launch(pipeline(partial(Source, crash_at=3)), Launch(seed=1, stop=Stop(seconds=20)))
    assert (failure.value.role, failure.value.index, failure.value.exitcode) == ("source", 0, 1)
    assert "boom at 3" in failure.value.cause
    assert "in step" in failure.value.cause


def test_a_killed_role_is_named_with_the_signal() -> None:
    with pytest.raises(api.RoleFailed, match="killed by SIGKILL"):
        LocalRuntime().launch(pipeline(partial(Suicidal, lives=1)), Launch(seed=1, stop=Stop(seconds=20)))


def test_a_role_that_cannot_be_sent_is_named() -> None:
    import threading

    with pytest.raises(api.WiringError, match="'source' cannot be sent"):
        LocalRuntime().launch(
            pipeline(partial(Source, crash_at=cast(Any, threading.Lock()))), Launch(seed=1, stop=Stop(seconds=9))
        )


def test_writers_killed_inside_put_are_restarted() -> None:
    program = pipeline(partial(Suicidal, lives=6), writers=3, on_failure="restart")
    report = LocalRuntime(backoff=0.01).launch(
        program, Launch(seed=1, stop=Stop(updates=10**9, seconds=30, steps=6000))
    )
    assert report.reason == "steps"
    assert report.restarts == 18


def test_the_restart_budget_ends_a_crash_loop(caplog: pytest.LogCaptureFixture) -> None:
    program = pipeline(partial(Source, crash_at=2, always=True), on_failure="restart")
    with caplog.at_level(logging.WARNING), pytest.raises(api.RoleFailed, match="boom at 2") as failure:
        LocalRuntime(backoff=0.01, restarts=3).launch(program, Launch(seed=1, stop=Stop(seconds=30)))
    assert failure.value.generation == 3
    assert "gave up after 4 failures" in failure.value.cause
    assert sum("boom" in message for message in caplog.messages) == 1, "the cause is printed once"
    assert sum("the same failure again" in message for message in caplog.messages) == 2


def test_a_role_that_never_starts_is_given_up_sooner() -> None:
    program = pipeline(partial(Source, crash_at=0, always=True), on_failure="restart")
    with pytest.raises(api.RoleFailed) as failure:
        LocalRuntime(backoff=0.01).launch(program, Launch(seed=1, stop=Stop(seconds=30)))
    assert failure.value.generation == 2


class Follower:
    """Lockstep actor: one item per version; replica 1 is killed after its third put in its first two lives."""

    def __init__(self, ctx: api.Context, out: Any, params: Any) -> None:
        self.ctx, self.out, self.params = ctx, out, params
        self.puts = 0

    def step(self) -> None:
        version, params = self.params.latest()
        assert int(params["n"]) == version
        self.out.put({"number": np.array([version]), "data": np.full((4, 2), version, np.float32)}, version)
        self.puts += 1
        if self.ctx.index == 1 and self.puts == 3 and self.ctx.generation < 2:
            os.kill(os.getpid(), signal.SIGKILL)


class Leader:
    """Lockstep learner: every batch must have been made with the version it published last."""

    def __init__(self, ctx: api.Context, inp: Any, params: Any) -> None:
        self.ctx, self.inp, self.params = ctx, inp, params
        self.version = params.publish({"n": torch.tensor(1)})

    def step(self) -> None:
        batch = self.inp.get()
        assert batch.versions == (self.version,) * 3, (batch.versions, self.version)
        assert batch.items["number"].tolist() == [self.version] * 3
        self.ctx.metrics.count("updates")
        self.version = self.params.publish({"n": torch.tensor(self.version + 1)})


def test_lockstep_holds_through_a_restart() -> None:
    program = Wired()
    items = program.channel(Channel("items", "queue", SPEC, capacity=2))
    params = program.channel(Channel("params", "params", {"n": api.Field((), "int64")}))
    out, latest = items.writer(), params.reader(lockstep=True)
    program.role("actor", Follower, replicas=3, on_failure="restart", out=out, params=latest)
    program.role("learner", Leader, inp=items.reader(each=True), params=params.writer())
    report = LocalRuntime(backoff=0.01).launch(program, Launch(seed=1, stop=Stop(updates=100)))
    assert report.restarts == 2
    assert int(report.params["params"]["n"]) >= 100


def test_a_replica_that_reaches_the_limit_first_has_not_failed() -> None:
    for _ in range(5):  # several replicas end by themselves while the supervisor still listens
        report = LocalRuntime().launch(pipeline(writers=3), Launch(seed=1, stop=Stop(steps=20)))
        assert report.reason == "steps"
