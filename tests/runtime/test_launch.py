"""One ``Launch`` means the same to every runtime, and ``Stop`` ends a run at the first limit it reaches."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.api import Context, Field
from shoal.local.runtime import LocalRuntime
from shoal.metering.aggregator import WINDOW, Aggregator, Snapshot
from shoal.metering.recorder import Telemetry
from shoal.program import Channel, Program
from shoal.records import checkpoint
from shoal.records.checkpoint import SaveOptions, part
from shoal.runtime.launch import Launch, Runtime, Stop
from shoal.runtime.seeds import life_seed
from shoal.serial.runtime import SerialRuntime


class Source:
    """Sends the seed of its life."""

    def __init__(self, ctx: Context, out: Any) -> None:
        self.ctx, self.out = ctx, out

    def step(self) -> None:
        self.out.put({"seed": np.array([self.ctx.seed])})
        self.ctx.metrics.count("env_steps", 100)


class Sink:
    """Counts, and notes what it was told of its run."""

    def __init__(self, ctx: Context, inp: Any) -> None:
        self.ctx, self.inp, self.got, self.seeds = ctx, inp, 0, set[int]()
        assert ctx.run_dir is not None and ctx.total_steps == 10**9
        (ctx.run_dir / "note").write_text("written by a role", encoding="utf-8")

    def step(self) -> None:
        self.seeds.add(int(self.inp.get().items["seed"]))
        self.got += 1
        self.ctx.metrics.count("updates")

    def state_dict(self) -> dict[str, Any]:
        return {"got": self.got, "seeds": sorted(self.seeds)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.got, self.seeds = state["got"], set(state["seeds"])


def program() -> Program:
    p = Program("launched")
    items = p.channel(Channel("items", "queue", {"seed": Field((1,), "int64", 0)}))
    p.role("source", Source, out=items.writer())
    p.role("sink", Sink, inp=items.reader())
    return p


class Watch:
    def __init__(self) -> None:
        self.seen: list[Snapshot] = []

    def update(self, snapshot: Snapshot) -> None:
        self.seen.append(snapshot)


@pytest.mark.parametrize("runtime", [SerialRuntime(), LocalRuntime()], ids=["serial", "local"])
def test_every_runtime_takes_all_of_a_launch(runtime: Runtime, tmp_path: Path) -> None:
    assert isinstance(runtime, Runtime)
    assert list(inspect.signature(runtime.launch).parameters) == ["program", "launch"], "and nothing of its own"
    saving, observer, display = SaveOptions(tmp_path / checkpoint.FOLDER, every=0), Watch(), Watch()
    how: dict[str, Any] = dict(seed=7, run_dir=tmp_path, observers=[observer], display=display, interval=0.01)
    first = runtime.launch(program(), Launch(**how, stop=Stop(steps=10**9, updates=30), saving=saving, spans=50))
    assert first.reason == "updates" and first.updates >= 30
    assert (tmp_path / "note").exists()
    assert observer.seen[-1].updates == display.seen[-1].updates == first.updates
    spans = [spans for watch in (observer, display) for s in watch.seen for spans in s.spans.values()]
    assert spans and max(map(len, spans)) <= 50

    found = checkpoint.newest(tmp_path / checkpoint.FOLDER)
    state = found.read(part("role", "sink", 0))["role"]
    assert state == {"got": found.manifest["updates"], "seeds": [life_seed(7, 0)]}
    again = SaveOptions(saving.folder, every=0, launch=1)
    stop = Stop(steps=10**9, updates=60)
    second = runtime.launch(program(), Launch(**how, stop=stop, saving=again, resume=found))
    last = checkpoint.newest(tmp_path / checkpoint.FOLDER)
    assert second.updates >= 60 and last.read(part("role", "sink", 0))["role"]["got"] == last.manifest["updates"] >= 60


def figures(steps: int = 0, updates: int = 0, returns: tuple[float, ...] = ()) -> Aggregator:
    out = Aggregator()
    out.add("r", Telemetry(counts={"env_steps": steps, "updates": updates}, episodes=[(r, 1) for r in returns]))
    return out


@pytest.mark.parametrize(
    "stop, run, reason",
    [
        (Stop(), figures(10**12, 10**12), ""),
        (Stop(steps=100), figures(99), ""),
        (Stop(steps=100), figures(100), "steps"),
        (Stop(updates=5, steps=100), figures(99, 5), "updates"),
        (Stop(updates=5, steps=100), figures(100, 5), "steps"),
        (Stop(seconds=1e-9), figures(), "seconds"),
        (Stop(seconds=3600), figures(), ""),
        (Stop(episode_return=1.0), figures(returns=(1.0,) * WINDOW), "episode_return"),
        (Stop(episode_return=1.0), figures(returns=(1.0,) * (WINDOW - 1)), ""),
        (Stop(episode_return=1.1), figures(returns=(1.0,) * WINDOW), ""),
    ],
)
def test_the_first_limit_that_is_reached(stop: Stop, run: Aggregator, reason: str) -> None:
    assert stop.reached(run) == reason
