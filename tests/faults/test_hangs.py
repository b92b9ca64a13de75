"""Replicas that make no progress: named, asked to raise, killed, restarted; stopped ones are only named."""

from __future__ import annotations

import itertools
import logging
import os
import re
import signal
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numba
import numpy as np
import pytest
import torch
from gymnasium import spaces as gs

from shoal import api, jit
from shoal.envs import EnvOptions, make
from shoal.learning.gradient_step import GradientStep
from shoal.local.runtime import LocalRuntime
from shoal.metering.recorder import Recorder
from shoal.program import Channel, Program
from shoal.roles.learner import LearnerRole
from shoal.runtime.launch import Launch, Stop

pytestmark = pytest.mark.timeout(110)
MOST = 100.0  # seconds of a run: on a busy machine a process needs half a minute to start, and two are started
FILE = str(Path(__file__).resolve())


class Sleepy(gym.Env[Any, Any]):
    """The third step of environment 1 never ends, in its first life (``marker`` tells)."""

    observation_space, action_space = gs.Box(-1, 1, (2,), np.float32), gs.Discrete(2)
    made = 0

    def __init__(self, marker: str = "", locked: bool = False):
        self.index, Sleepy.made = Sleepy.made, Sleepy.made + 1
        self.marker, self.locked, self.t = Path(marker), locked, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        if self.index == 1 and self.t == 3 and not self.marker.exists():
            self.marker.touch()
            sum(itertools.repeat(0)) if self.locked else time.sleep(1000)
        return np.zeros(2, np.float32), 0.0, False, False, {}


class Player:
    """Steps a batch of two environments; no ports."""

    def __init__(self, ctx: api.Context, env: str, kwargs: dict[str, Any]) -> None:
        self.ctx = ctx
        self.env = make(env, 2, EnvOptions(env_kwargs=kwargs))
        self.env.reset(ctx.seed)

    def step(self) -> None:
        with self.ctx.metrics.phase("env"):
            self.env.step(np.ones(2, np.int64))
        self.ctx.metrics.count("env_steps", 2)
        time.sleep(0.001)


def players(on_failure: Any, marker: Path, locked: bool) -> Program:
    p = Program("players")
    kwargs = {"marker": str(marker), "locked": locked}
    p.role("actor", lambda ctx: Player(ctx, f"{FILE}:Sleepy", kwargs), on_failure=on_failure)
    return p


def test_a_hanging_environment_is_named_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = players("restart", tmp_path / "hung", locked=False)
    with caplog.at_level(logging.WARNING):
        report = LocalRuntime(hang_timeout=3.0).launch(program, Launch(seed=3, stop=Stop(steps=100, seconds=MOST)))
    assert (report.reason, report.restarts) == ("steps", 1)
    told = "\n".join(caplog.messages)
    assert re.search(r"actor\[0\] has made no progress for \d+ s, in the phase 'env'", told), told
    assert "Sleepy' raised TimeoutError in step (index 1, action 1, seed " in told
    assert "time.sleep(1000)" in told, "the traceback says where it hung"


def test_one_that_keeps_the_interpreter_lock_is_killed(tmp_path: Path) -> None:
    program = players("stop", tmp_path / "hung", locked=True)
    with pytest.raises(api.RoleFailed, match=r"no progress for .* s, in the phase 'env' and was killed") as failure:
        LocalRuntime(hang_timeout=3.0).launch(program, Launch(seed=3, stop=Stop(seconds=MOST)))
    assert 'test_hangs.py", line' in failure.value.cause and "wrappers.py" in failure.value.cause, "its stack is told"


class Told:
    """A role that tells its process id; its step takes ``naps`` tenths of a second, and then one port."""

    def __init__(self, ctx: api.Context, folder: Path, naps: int, out: Any = None, inp: Any = None) -> None:
        self.naps, self.out, self.inp = naps, out, inp
        (folder / ctx.role).write_text(str(os.getpid()))

    def step(self) -> None:
        for _ in range(self.naps):
            time.sleep(0.1)
        if self.inp is not None:
            self.inp.get()
        if self.out is not None:
            self.out.put({"x": np.zeros(1, np.float32)})


def test_time_in_which_a_role_is_stopped_does_not_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One is stopped in the middle of a step that takes more than half of the limit; then the other at its channel, so
    that both wait. They are named, and that is all."""
    p = Program("told")
    c = p.channel(Channel("c", "queue", {"x": api.Field((1,))}, capacity=1))
    p.role("giver", partial(Told, folder=tmp_path, naps=12), on_failure="restart", out=c.writer())
    p.role("taker", partial(Told, folder=tmp_path, naps=0), inp=c.reader())
    done = threading.Event()

    def stop_and_continue() -> None:
        for name, seconds in (("giver", 3.0), ("taker", 5.5)):
            while not ((tmp_path / name).exists() and (tmp_path / name).read_text()):
                time.sleep(0.05)
            time.sleep(1.6)
            os.kill(int((tmp_path / name).read_text()), signal.SIGSTOP)
            time.sleep(seconds)  # more than the limit; the giver's two steps before it waits as well
            os.kill(int((tmp_path / name).read_text()), signal.SIGCONT)
        time.sleep(0.5)
        done.set()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=stop_and_continue, daemon=True)
    thread.start()
    with caplog.at_level(logging.WARNING):
        report = LocalRuntime(hang_timeout=2.0).launch(p, Launch(seed=3, stop=Stop(seconds=MOST)))
    thread.join()
    assert done.is_set() and (report.reason, report.restarts) == ("interrupted", 0)
    told = "\n".join(caplog.messages)
    assert "it was stopped by a signal (SIGCONT lets it go on)" in told and "goes on after" in told


class Silent:
    """Waits for what nobody sends."""

    def __init__(self, ctx: api.Context, out: Any, inp: Any) -> None:
        self.out, self.inp = out, inp

    def step(self) -> None:
        self.out.put(dict(self.inp.get().items))


def test_a_deadlock_is_named() -> None:
    p = Program("ring")
    spec = {"x": api.Field((1,))}
    a, b = (p.channel(Channel(name, "queue", spec)) for name in "ab")
    p.role("left", Silent, out=a.writer(), inp=b.reader())
    p.role("right", Silent, out=b.writer(), inp=a.reader())
    with pytest.raises(api.Deadlock, match=r"left\[0\]: b\n  right\[0\]: a"):
        LocalRuntime(hang_timeout=3.0).launch(p, Launch(seed=0, stop=Stop(seconds=MOST)))


def test_waiting_is_not_hanging(caplog: pytest.LogCaptureFixture) -> None:
    class Slow:
        def __init__(self, ctx: api.Context, out: Any) -> None:
            self.ctx, self.out = ctx, out

        def step(self) -> None:
            for _ in range(25):  # signs of life, while the reader waits for longer than the limit
                time.sleep(0.1)
                self.ctx.metrics.enter("env")
            self.out.put({"x": np.zeros(1, np.float32)})

    class Patient:
        def __init__(self, ctx: api.Context, inp: Any) -> None:
            self.ctx, self.inp = ctx, inp

        def step(self) -> None:
            self.inp.get()
            self.ctx.metrics.count("updates")

    p = Program("slow")
    c = p.channel(Channel("c", "queue", {"x": api.Field((1,))}))
    p.role("slow", Slow, out=c.writer())
    p.role("patient", Patient, inp=c.reader())
    with caplog.at_level(logging.INFO):
        report = LocalRuntime(hang_timeout=2.0).launch(p, Launch(seed=0, stop=Stop(updates=3, seconds=MOST)))
    assert report.reason == "updates" and not [r for r in caplog.records if r.levelno > logging.INFO]
    told = "\n".join(caplog.messages)
    named = len(re.findall(r"patient\[0\] has waited at 'c' for [12] s", told))
    assert named in (2, 3), "once for each item, but for the first where the reader begins late"
    assert re.search(r"patient\[0\] no longer waits, after [2-9] s", told) and "slow[0]" not in told


def test_minibatches_and_compilations_are_signs_of_life() -> None:
    shown: list[str] = []
    recorder = Recorder()
    recorder.show = shown.append
    step = GradientStep(torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1), None)
    context = api.Context("learner", 0, 1, 0, 0, recorder)
    LearnerRole(context, SimpleNamespace(gradient_step=step), None, None)  # type: ignore[arg-type]
    for _ in range(3):
        step.descend(1.0, [torch.ones(1)], 1.0)
    assert shown == ["learn"] * 3
    jit.on_compile(recorder.beat)
    assert numba.njit(lambda x: x + 1)(1) == 2
    assert shown[3:] == ["learn", "learn"], "as it begins and ends"


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RuntimeError("no compiled object yet for ...")]
)
def test_a_function_that_cannot_be_saved_after_it_is_compiled_is_used(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(numba.core.caching.FunctionCache, "save_overload", refuse)
    assert jit.jit(lambda x: x + 1)(1) == 2
