"""What the supervisor decides, from a clock that is set by hand: restarts, hangs, waits, checkpoints, rests."""

from __future__ import annotations

import logging
import os
import selectors
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal import api
from shoal.local import failures as failures_module, heartbeat, pace as pace_module
from shoal.local.failures import Failures, Patience
from shoal.local.heartbeat import RAISE, Watch
from shoal.local.pace import Pace
from shoal.local.replica import Replica
from shoal.local.telemetry import Inbox, Outbox
from shoal.shm.arena import Arena


class Clock:
    now = cpu = 100.0

    def monotonic(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.cpu


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    out = Clock()
    for module in (failures_module, heartbeat, pace_module):
        monkeypatch.setattr(module, "time", out)
    return out


def replica(index: int = 0, **role: Any) -> Any:
    fields = {"name": "actor", "on_failure": "restart", "background": False, **role}
    return Replica(SimpleNamespace(**fields), index, None, selectors.DefaultSelector())  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------- restarts
def planned(clock: Clock, patience: Patience, *deaths: Any, **role: Any) -> list[float | str]:
    """Of each death, a (second, cause, whether it had stepped, whether it will be met again), the wait before the next
    life, ``gone`` or ``failed``."""
    one, failures, out = replica(**role), Failures(patience), list[float | str]()
    for at, cause, stepped, repeats in deaths:
        clock.now = 100.0 + at
        one.cause, one.repeats, one.restart_at = cause, repeats, None
        try:
            failures.plan_restart(one, 1, stepped)
        except api.RoleFailed:
            return [*out, "failed"]
        out.append("gone" if one.given_up else round(one.restart_at - clock.now, 6))
    return out


def causes(*seconds: float, stepped: bool = True, repeats: bool = False) -> list[Any]:
    """Deaths of different causes; of one that repeats, the same."""
    return [(at, "again" if repeats else "abcdefghijkl"[i], stepped, repeats) for i, at in enumerate(seconds)]


def test_the_wait_before_a_restart_doubles_up_to_the_longest(clock: Clock) -> None:
    waits = [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert planned(clock, Patience(), *causes(*range(7))) == waits
    assert planned(clock, Patience(backoff=0.5, longest_backoff=0.75), *causes(*range(3))) == [0.5, 0.75, 0.75]


def test_a_replica_may_fail_so_often_within_a_window(clock: Clock) -> None:
    two = Patience(restarts=2, window=10.0, backoff=1.0)
    assert planned(clock, two, *causes(0, 4, 10)) == [1.0, 2.0, "failed"]
    assert planned(clock, two, *causes(0, 4, 10.5)) == [1.0, 2.0, 2.0]
    assert planned(clock, two, *causes(0, 4, 10.5, 11)) == [1.0, 2.0, 2.0, "failed"]
    assert planned(clock, two, *causes(0, 4, 10), on_failure="ignore") == [1.0, 2.0, "gone"]
    assert planned(clock, two, *causes(0), on_failure="stop") == ["failed"]


def test_lives_without_a_step_in_a_row_are_counted(clock: Clock) -> None:
    lives = [*causes(0, 1, stepped=False), (2, "x", True, False), (3, "y", False, False), (4, "z", False, False)]
    assert planned(clock, Patience(still_born=3), *lives)[-1] == 1.6
    assert planned(clock, Patience(still_born=3), *lives, (5, "w", False, False))[-2:] == [1.6, "failed"]
    assert planned(clock, Patience(still_born=2), *causes(0, 1, stepped=False)) == [0.1, "failed"]


def test_an_error_that_will_be_met_again_is_met_so_often_in_a_row_within_the_window(clock: Clock) -> None:
    assert planned(clock, Patience(), *causes(0, 1, 2, repeats=True)) == [0.1, 0.2, "failed"]
    assert planned(clock, Patience(repeats=1), *causes(0, 1, repeats=True)) == [0.1, "failed"]
    assert planned(clock, Patience(), *causes(0, 1, 99, 100, repeats=True)) == [0.1, 0.2, 0.1, 0.2]
    other = [(0, "again", True, True), (1, "again", True, True), (2, "other", True, True), (3, "again", True, True)]
    assert planned(clock, Patience(), *other) == [0.1, 0.2, 0.4, 0.8]
    assert planned(clock, Patience(), *causes(0, 1, 2)) == [0.1, 0.2, 0.4], "one that may not come again"
    same = [(at, "again", True, False) for at in range(3)]
    assert planned(clock, Patience(), *same) == [0.1, 0.2, 0.4]


def test_the_first_life_that_meets_such_an_error_before_its_first_step_is_the_last(clock: Clock) -> None:
    assert planned(clock, Patience(), *causes(0, stepped=False, repeats=True)) == ["failed"]
    assert planned(clock, Patience(), (0, "x", True, False), (1, "y", False, True)) == [0.1, 0.2]


def test_what_a_life_left_behind_is_forgotten_at_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    one = replica()
    one.cause, one.repeats, one.users, one.restart_at = "cause", True, True, 1.0
    reading, writing = os.pipe()
    one._launch = lambda replica, pipe: SimpleNamespace(sentinel=reading)
    one.start()
    assert (one.cause, one.repeats, one.users, one.restart_at) == ("", False, False, None)
    one._close_pipe()
    one._news.close()
    os.close(reading)
    os.close(writing)


# --------------------------------------------------------------------------------------- hangs and waits
class Room:
    """Replicas in a shared memory of their own, a Watch with a limit of ten seconds, and what it says and sends."""

    def __init__(self, clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, count: int, limit: float) -> None:
        self.clock, self.stacks = clock, os.open(tmp_path / "stacks", os.O_RDWR | os.O_CREAT)
        words = memoryview(bytearray(4096)).cast("q")
        self.arena = cast(Arena, SimpleNamespace(words=words, stacks=self.stacks))
        plan: Any = SimpleNamespace(pulses={"actor": 0}, status={"actor": 2048})
        self.replicas = [replica(i) for i in range(count)]
        self.pulses = [heartbeat.Pulse(self.arena, plan, "actor", i) for i in range(count)]
        self.stopped, self.sent, self.began = set[int](), list[tuple[float, str]](), clock.now
        for i, one in enumerate(self.replicas):
            one.process = SimpleNamespace(pid=i)
            one.kill = lambda: self.sent.append((clock.now - self.began, "killed"))
        monkeypatch.setattr(heartbeat, "_stopped", lambda pid, family=False: pid in self.stopped)
        names = {RAISE: "raise", heartbeat.DUMP: "dump"}
        monkeypatch.setattr(
            heartbeat, "_send", lambda process, number: self.sent.append((clock.now - self.began, names[number]))
        )
        self.watch = Watch(self.arena, plan, limit)

    def step(self, i: int = 0) -> None:
        self.arena.words[2048 // 8 + 8 * i] += 1

    def go(self, seconds: int, each: float = 1.0) -> None:
        for _ in range(seconds):
            self.clock.now += each
            self.watch.look(self.replicas)

    def close(self) -> None:
        os.close(self.stacks)


@pytest.fixture
def room(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: Any, caplog: pytest.LogCaptureFixture
) -> Any:
    caplog.set_level(logging.INFO, "shoal.runtime")
    found = Room(clock, monkeypatch, tmp_path, *getattr(request, "param", (1, 10.0)))
    yield found
    found.close()


def test_a_silent_replica_is_named_asked_and_killed(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    room.step()
    room.pulses[0].show("env")
    room.go(5)
    assert not caplog.messages  # the first look is a sign of life
    room.go(1)
    assert len(caplog.messages) == 1 and "has made no progress for 5 s, in the phase 'env'" in caplog.messages[0]
    room.go(20)
    assert room.sent == [(11.0, "raise"), (14.0, "dump"), (15.0, "killed")]
    assert room.replicas[0].cause.startswith(
        "actor[0] has made no progress for 10 s, in the phase 'env' and was killed"
    )


def test_one_that_has_not_stepped_yet_has_five_times_as_long(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    room.go(10)
    assert not caplog.messages
    room.go(1)
    assert "10 s, while it starts" in caplog.messages[0]
    room.go(39)
    assert not room.sent
    room.go(1)
    assert room.sent == [(51.0, "raise")]


def test_each_life_is_timed_from_its_own_beginning(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    room.step()
    room.go(4)
    room.replicas[0].generation += 1
    room.go(5)
    assert not caplog.messages
    room.go(1)
    assert len(caplog.messages) == 1


def test_one_that_goes_on_has_no_cause_of_death(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    room.step()
    room.go(11)
    assert room.sent == [(11.0, "raise")] and room.replicas[0].cause
    room.pulses[0].show("env")
    room.go(1)
    assert room.replicas[0].cause == "" and "goes on after 10 s" in caplog.messages[-1]
    room.go(4)
    assert len(caplog.messages) == 2, "and has as much time as before"


@pytest.mark.parametrize("steps", [0, 1])
def test_the_time_in_which_one_is_stopped_does_not_count(
    room: Room, steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It is named, and has all of its time once it may go on."""
    for _ in range(steps):
        room.step()
    room.go(1)
    room.stopped.add(0)
    room.go(4)
    assert not caplog.messages
    room.go(40)
    assert len(caplog.messages) == 1 and "stopped by a signal" in caplog.messages[0] and not room.sent
    room.stopped.clear()
    room.go(49 if not steps else 9)
    assert not room.sent
    room.go(1)
    assert [kind for _, kind in room.sent] == ["raise"]


def test_time_in_which_the_supervisor_is_stopped_itself_is_two_seconds_at_most(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    room.step()
    room.go(1)
    room.go(2, each=100.0)
    assert not caplog.messages
    room.go(1)
    assert "for 5 s" in caplog.messages[0]


def test_who_waits_at_a_channel_is_named_once_in_each_step(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    def wait(seconds: int, each: float = 1.0) -> None:
        for _ in range(seconds):
            room.pulses[0].show("wait:c")  # it looks up now and then
            room.go(1, each)

    room.watch._look_for_deadlock = lambda *_: None  # type: ignore[method-assign]
    wait(5)
    assert not caplog.messages
    wait(10)
    assert caplog.messages == ["actor[0] has waited at 'c' for 5 s"]
    room.step()
    wait(1)
    assert caplog.messages[1:] == ["actor[0] no longer waits, after 14 s"]
    for _ in range(4):
        wait(4)
        room.step()
    assert len(caplog.messages) == 2, "each step waits anew"
    room.replicas[0].role.background = True
    wait(20)
    assert len(caplog.messages) == 2, "whoever is in the background may wait"


@pytest.mark.parametrize("room", [(2, 10.0)], indirect=True)
def test_a_deadlock_is_that_nobody_steps_and_all_wait(room: Room) -> None:
    def wait(seconds: int, steps: bool = False) -> None:
        for _ in range(seconds):
            for pulse in room.pulses:
                pulse.show("wait:c")
            if steps:
                room.step(1)
            room.go(1)

    wait(30, steps=True)
    wait(9)
    room.stopped.add(1)
    wait(1)
    room.stopped.clear()
    wait(9)
    with pytest.raises(api.Deadlock, match=r"actor\[0\]: c\n  actor\[1\]: c"):
        wait(1)


@pytest.mark.parametrize("room", [(2, 10.0)], indirect=True)
@pytest.mark.parametrize("given_up", [False, True])
def test_nobody_waits_for_one_that_was_given_up(room: Room, given_up: bool) -> None:
    room.replicas[1].process, room.replicas[1].given_up = None, given_up
    for _ in range(10):
        room.pulses[0].show("wait:c")
        room.go(1)
    room.pulses[0].show("wait:c")
    if given_up:
        with pytest.raises(api.Deadlock):
            room.go(1)
    else:
        room.go(1)


@pytest.mark.parametrize("room", [(1, 0.0)], indirect=True)
def test_without_a_limit_nothing_is_looked_for(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    room.step()
    room.pulses[0].show("wait:c")
    room.go(500)
    assert not caplog.messages and not room.sent


# ------------------------------------------------------------------------------------------------- rest
def test_a_role_in_the_background_earns_a_hundredth_of_all_cores(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four cores 0.04 s a second: in debt by more than 0.05 s it rests until it has paid."""
    monkeypatch.setattr(pace_module, "cores", lambda: 4)
    rests: list[float] = []
    pace = Pace(SimpleNamespace(rest=rests.append), SimpleNamespace(), True)  # type: ignore[arg-type]
    for seconds, spent, ready in (
        (10.0, 0.05, True), (0.0, 0.09, True), (1.0, 0.06, False), (1.0, 0.0, False), (0.4, 0.0, False),
        (0.2, 0.0, True), (0.0, 0.05, True), (0.0, 0.01, False), (99.0, 0.0, True), (0.0, 0.09, True),
        (0.0, 0.02, False),
    ):  # fmt: skip
        clock.now += seconds
        clock.cpu += spent
        assert pace.ready() is ready, (seconds, spent)
    assert len(rests) == 5 and max(rests) == 0.1
    assert Pace(SimpleNamespace(rest=rests.append), SimpleNamespace(), False).ready()  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ pipes
@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_message_is_whole_however_it_comes_in_pieces(cut: int) -> None:
    reading, writing = os.pipe()
    between, told = os.pipe()
    outbox, inbox = Outbox(writing), Inbox(between)
    outbox.send(("one", [1, 2, 3]))
    outbox.send(("two", "x"))
    assert outbox.idle()
    data = os.read(reading, 1 << 16)
    os.write(told, data[:cut])
    found = inbox.receive()
    os.write(told, data[cut:])
    assert found + inbox.receive() == [("one", [1, 2, 3]), ("two", "x")] and inbox.open
    os.write(told, data + data[:cut])
    assert len(inbox.receive()) == 2 + (cut >= 4 + data[0])
    os.close(told)
    inbox.receive()
    assert not inbox.open
    for each in (reading, writing, between):
        os.close(each)
