"""Checkpoints of the local runtime, with programs whose roles know what they have done."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from programs import Sink, Source, Wired, pipeline

from shoal import api
from shoal.local import signals
from shoal.local.runtime import LocalRuntime
from shoal.metering.aggregator import Snapshot
from shoal.program import Channel, RoleSpec
from shoal.records import checkpoint
from shoal.records.checkpoint import Checkpoint, SaveOptions, part
from shoal.runtime.launch import Launch, Report, Stop

pytestmark = pytest.mark.timeout(60)


class Counter(Sink):
    """A sink with a state: how many it got, and a large array that each item changes."""

    def __init__(self, ctx: api.Context, inp: Any) -> None:
        super().__init__(ctx, inp)
        self.got, self.array = 0, np.zeros(1 << 20)

    def step(self) -> None:
        super().step()
        self.got += 1
        self.array[:] = self.got

    def state_dict(self) -> dict[str, Any]:
        return {"got": self.got, "array": self.array}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.got, self.array = state["got"], state["array"]


class Telling(Source):
    """A source that may restart, and writes down its seed and what its earlier lives counted."""

    def __init__(self, ctx: api.Context, out: Any, crash_at: int = -1, rest_at: int = -1) -> None:
        super().__init__(ctx, out, crash_at)
        self.rest_at = rest_at
        assert ctx.run_dir is not None
        line = json.dumps({"seed": ctx.seed, "counts": ctx.counts["env_steps"]}) + "\n"
        with open(ctx.run_dir / "lives", "a", encoding="utf-8") as file:
            file.write(line)

    def step(self) -> None:
        if self.n == self.rest_at:
            time.sleep(0.05)
            return
        super().step()


def program(writers: int = 1, **source: Any) -> Wired:
    out = pipeline(partial(Telling, **source), writers=writers, on_failure="restart")
    out.roles[1] = RoleSpec("sink", Counter, out.roles[1].ports)
    return out


class Watch:
    """Calls ``then`` once ``when`` holds of what the run has become."""

    def __init__(self, when: Any = lambda: False, then: Any = None) -> None:
        self.when, self.then, self.seen = when, then, list[Snapshot]()

    def update(self, snapshot: Snapshot) -> None:
        self.seen.append(snapshot)
        if self.then is not None and self.when():
            then, self.then = self.then, None
            then()


def launch(run: Path, stop: Stop, resume: Checkpoint | None = None, **options: Any) -> Report:
    given = {name: options.pop(name) for name in ("every", "launch") if name in options}
    observers, make = options.pop("observers", ()), options.pop("make", program)
    saving = SaveOptions(run / checkpoint.FOLDER, **{"every": 0, **given})
    how = Launch(
        seed=1, stop=stop, run_dir=run, observers=observers, interval=0.05, saving=saving, resume=resume
    )  # fmt: skip
    return LocalRuntime(backoff=0.01).launch(make(**options), how)


def newest(run: Path) -> Checkpoint:
    return checkpoint.newest(run / checkpoint.FOLDER)


def sink_of(found: Checkpoint) -> dict[str, Any]:
    state: dict[str, Any] = found.read(part("role", "sink", 0))["role"]
    return state


def lives(run: Path) -> list[dict[str, int]]:
    return [json.loads(line) for line in (run / "lives").read_text().splitlines()]


def test_the_last_checkpoint_holds_what_the_run_had_become(tmp_path: Path) -> None:
    report = launch(tmp_path, Stop(updates=50))
    found = newest(tmp_path)
    assert report.reason == "updates" and found.manifest["updates"] == sink_of(found)["got"] == 50
    assert (sink_of(found)["array"] == 50).all()


def test_it_goes_on_from_there(tmp_path: Path) -> None:
    launch(tmp_path, Stop(updates=50), writers=2)
    before = newest(tmp_path)
    watch = Watch()
    report = launch(tmp_path, Stop(updates=120), before, launch=1, writers=2, observers=[watch])
    assert report.updates >= 120 and report.steps >= before.steps
    assert sink_of(newest(tmp_path))["got"] == newest(tmp_path).manifest["updates"] >= 120
    assert min(s.updates for s in watch.seen) >= 50 and min(s.steps for s in watch.seen) >= before.steps
    assert watch.seen[0].row == before.manifest["row"] + 1
    assert watch.seen[0].seconds >= before.manifest["seconds"]


def test_replicas_know_what_their_earlier_lives_counted(tmp_path: Path) -> None:
    """Over restarts within a launch, and over launches."""
    launch(tmp_path, Stop(updates=40), crash_at=7)
    before = newest(tmp_path).read("run")["counts"]["source"][0][0]
    launch(tmp_path, Stop(updates=80), newest(tmp_path), launch=1)
    assert [life["counts"] for life in lives(tmp_path)] == [0, 7, before] and before >= 40


def test_no_seed_is_used_twice(tmp_path: Path) -> None:
    launch(tmp_path, Stop(updates=400), crash_at=5, writers=3)
    first = newest(tmp_path)
    for number in (1, 2):  # the same checkpoint twice, as after a crash
        launch(tmp_path, Stop(updates=440), first, launch=number, writers=3)
    seeds = [life["seed"] for life in lives(tmp_path)]
    assert len(seeds) == len(set(seeds)) >= 12


class Slowly(Counter):
    """What it saves takes its copy two seconds to write."""

    def step(self) -> None:
        fork = os.fork

        def slow() -> int:
            if not (pid := fork()):
                time.sleep(2.0)
            return pid

        if not hasattr(signals, "slowed"):
            signals.os.fork, signals.slowed = slow, True  # type: ignore[attr-defined]
        super().step()


def slowly() -> Wired:
    out = program()
    out.roles[1] = RoleSpec("sink", Slowly, out.roles[1].ports)
    return out


def test_training_goes_on_while_it_is_saved(tmp_path: Path) -> None:
    folder = tmp_path / checkpoint.FOLDER
    watch = Watch(lambda: any(folder.glob("0*")), lambda: os.kill(os.getpid(), signal.SIGTERM))
    launch(tmp_path, Stop(seconds=40), make=slowly, every=0.2, observers=[watch])
    saved = min(int(path.name) for path in folder.glob("0*"))
    before = next(s for s in watch.seen if s.steps >= saved)
    assert watch.seen[-1].updates > before.updates + 20, "between its moment and its end"


def test_each_checkpoint_is_of_one_moment(tmp_path: Path) -> None:
    """Each checkpoint is of one moment: the whole array and the counter agree, though both went on changing."""
    folder = tmp_path / checkpoint.FOLDER
    seen: set[str] = set()

    def three() -> bool:
        seen.update(path.name for path in folder.glob("0*"))
        return len(seen) >= 3

    watch = Watch(three, lambda: os.kill(os.getpid(), signal.SIGTERM))
    report = launch(tmp_path, Stop(seconds=40), every=0.2, observers=[watch])
    assert report.reason == "terminated" and len(seen) >= 3
    kept = sorted(folder.glob("0*"))
    assert len(kept) == 2
    for path in kept:
        found = checkpoint.verified(path)
        state = sink_of(found)
        assert (state["array"] == state["got"]).all() and state["got"] == found.manifest["updates"]


def test_a_role_that_waits_for_its_first_item_is_saved(tmp_path: Path) -> None:
    """The learner is blocked when the checkpoint is asked for, and stays so."""
    folder = tmp_path / checkpoint.FOLDER
    watch = Watch(lambda: len(list(folder.glob("0*"))) >= 2, lambda: os.kill(os.getpid(), signal.SIGINT))
    report = launch(tmp_path, Stop(seconds=40), every=0.3, rest_at=3, observers=[watch])
    assert report.reason == "interrupted"
    assert sink_of(newest(tmp_path))["got"] == 3


class Between(Sink):
    """Takes an item, and waits for another in the same step."""

    def __init__(self, ctx: api.Context, inp: Any, other: Any) -> None:
        super().__init__(ctx, inp)
        self.other = other

    def step(self) -> None:
        super().step()
        self.other.get()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Idle:
    def __init__(self, ctx: api.Context, out: Any) -> None: ...

    def step(self) -> None:
        time.sleep(0.01)


def two_ports() -> Wired:
    out = program()
    never = out.channel(Channel("never", "queue", out.channels["items"].spec))
    out.role("idle", Idle, out=never.writer())
    out.roles[1] = RoleSpec("sink", Between, {**out.roles[1].ports, "other": never.reader()})
    return out


def test_a_role_that_is_stopped_inside_a_step_is_not_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watch: Watch = Watch(lambda: watch.seen[-1].updates >= 1, lambda: os.kill(os.getpid(), signal.SIGTERM))
    launch(tmp_path, Stop(seconds=40), make=two_ports, observers=[watch])
    assert not list((tmp_path / checkpoint.FOLDER).iterdir())
    assert "role-sink-0 was stopped inside a step" in caplog.text


def until_told(text: str, caplog: pytest.LogCaptureFixture, folder: Path, **options: Any) -> Report:
    """A run that tries to save itself every 0.1 s, and ends after a warning and an update."""
    watch: Watch = Watch(
        lambda: text in caplog.text and watch.seen[-1].updates >= 1, lambda: os.kill(os.getpid(), signal.SIGTERM)
    )
    return launch(folder, Stop(seconds=40), every=0.1, observers=[watch], **options)


def test_what_cannot_be_written_costs_the_checkpoint_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / checkpoint.FOLDER).write_text("a file where the folder should be")
    report = until_told("no checkpoint at", caplog, tmp_path)
    assert report.reason == "terminated" and report.updates > 0, "training went on"
    assert caplog.text.count("no checkpoint at") == 1
    assert (tmp_path / checkpoint.FOLDER).read_text() == "a file where the folder should be"
    assert (tmp_path / "lives").exists(), "nothing was removed"


class Unsavable(Counter):
    def state_dict(self) -> dict[str, Any]:
        return {"lock": threading.Lock()}


def unsavable() -> Wired:
    out = program()
    out.roles[1] = RoleSpec("sink", Unsavable, out.roles[1].ports)
    return out


def test_a_state_that_cannot_be_saved_is_named_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = until_told("is a lock", caplog, tmp_path, make=unsavable)
    assert report.reason == "terminated" and report.updates > 0
    assert caplog.text.count("'/role/lock' is a lock") == 1


class Crowded(Counter):
    """In a process that cannot fork."""

    def step(self) -> None:
        signals.fork = Mock(side_effect=OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)))
        super().step()


def crowded() -> Wired:
    out = program()
    out.roles[1] = RoleSpec("sink", Crowded, out.roles[1].ports)
    return out


def test_a_process_that_cannot_be_copied_costs_the_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    report = until_told("no copy of the process could be made", caplog, tmp_path, make=crowded)
    assert report.reason == "terminated" and report.updates > 0
    assert caplog.text.count("no copy of the process could be made") == 1


def test_elsewhere_than_the_main_thread(tmp_path: Path) -> None:
    thread = threading.Thread(target=launch, args=(tmp_path, Stop(updates=5)))
    thread.start()
    thread.join()
    assert newest(tmp_path).manifest["updates"] == 5
