"""Telling a hang from a wait: replicas show in shared memory what they do, the supervisor watches that they go on."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from dataclasses import dataclass
from typing import Literal

import psutil

from shoal import api
from shoal.local.processes import Process
from shoal.local.replica import Replica
from shoal.shm.arena import Arena
from shoal.shm.layout import ALIGN, LINE, Plan

RAISE, DUMP = signal.SIGUSR1, signal.SIGUSR2  # ask a replica to raise where it is; to write its stack
STARTING = 5  # a replica may be silent this many times longer before its first step (compiling, building)
NOTICE = 3.0  # seconds it has to raise
STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
POLL_SECONDS = 0.25  # seconds between two looks
WAITING = "wait:"  # how the phases of a port begin
_NAME = ALIGN - 8

log = logging.getLogger("shoal.runtime")


class Pulse:
    """A replica's line in shared memory: a counter that moves with every phase and look at a port, and the
    phase's name."""

    def __init__(self, arena: Arena, plan: Plan, role: str, index: int) -> None:
        start = plan.pulses[role] + index * ALIGN
        self._words, self._beat = arena.words, start // 8
        self._text = arena.words.cast("B")[start + 8 : start + ALIGN]
        self._padded: dict[str, bytes] = {}
        self.show("start")

    def show(self, phase: str) -> None:
        """The replica is now in ``phase``."""
        padded = self._padded.get(phase)
        if padded is None:
            padded = self._padded[phase] = phase.encode()[:_NAME].ljust(_NAME, b"\0")
        self._text[:] = padded
        self._words[self._beat] += 1


@dataclass
class _Seen:
    """What the supervisor last saw of one life of a replica."""

    generation: int
    progress: int = -1
    silent: float = 0.0  # seconds without progress, in which it was not stopped
    stopped: float = 0.0  # seconds in which it was
    stage: Literal["well", "named", "asked", "dumped", "killed"] = "well"
    due: float = 0.0  # ``silent`` at which the next stage begins


@dataclass
class _Wait:
    """How long a replica has waited at a channel within one step."""

    step: tuple[int, int]  # of which life, and after how many others
    phase: str
    seconds: float = 0.0
    named: bool = False


class Watch:
    """Names a replica that makes no progress for half of ``limit`` seconds; at ``limit`` it is asked to raise
    where it is (an environment then tells its index, action and seed), and killed if it cannot. One that was
    stopped by a signal is only named: whoever stopped it may let it go on, and the time until then does not count.
    One that waits at a channel for half of ``limit`` while others step is no hang: the log names it and the channel,
    once. 0: no limit."""

    def __init__(self, arena: Arena, plan: Plan, limit: float) -> None:
        self._arena, self._plan, self._limit = arena, plan, limit
        self._seen: dict[str, _Seen] = {}
        self._waits: dict[str, _Wait] = {}
        self._last = time.monotonic()
        self._steps, self._waiting = -1, 0.0

    def look(self, replicas: list[Replica]) -> None:
        """Call at least once a second; raises Deadlock when every replica waits for another."""
        if elapsed := self._elapsed():
            self._look_for_hangs(replicas, elapsed)
            self._look_for_deadlock(replicas, elapsed)

    def phase(self, replica: Replica) -> str:
        """Return the phase that a replica is in, or that it waits for its next life (``restarting``) or has none
        (``dead``)."""
        if replica.process is None:
            return "restarting" if replica.restart_at is not None else "dead"
        return self._phase(replica) or "start"

    def phases(self, replicas: list[Replica]) -> dict[str, list[str]]:
        """Return the ``phase`` of each replica, by role."""
        out: dict[str, list[str]] = {}
        for replica in replicas:
            out.setdefault(replica.role.name, []).append(self.phase(replica))
        return out

    def look_for_hangs(self, replicas: list[Replica]) -> None:
        """As ``look``, of replicas that wait for others who are not among them."""
        if elapsed := self._elapsed():
            self._look_for_hangs(replicas, elapsed)

    def look_for_deadlock(self, replicas: list[Replica]) -> None:
        """As ``look``, of replicas whose hangs somebody else finds."""
        if elapsed := self._elapsed():
            self._look_for_deadlock(replicas, elapsed)

    def _elapsed(self) -> float:
        """Seconds since the last look, but not those in which this process itself was stopped; 0: not worth one."""
        now = time.monotonic()
        if not self._limit or now - self._last < POLL_SECONDS:
            return 0.0
        elapsed, self._last = min(now - self._last, 2.0), now
        return elapsed

    def _look_for_hangs(self, replicas: list[Replica], elapsed: float) -> None:
        for replica in replicas:
            if replica.process is not None:
                self._look(replica, replica.process, elapsed)
                if not replica.role.background:
                    self._look_for_wait(replica, elapsed)

    def _look(self, replica: Replica, process: Process, elapsed: float) -> None:
        seen = self._seen.get(replica.label)
        if seen is None or seen.generation != replica.generation:
            seen = self._seen[replica.label] = _Seen(replica.generation, due=self._limit)
        steps = self._steps_of(replica)
        progress = steps + self._arena.words[self._line(replica) // 8]
        if progress != seen.progress:
            if seen.stage in ("named", "asked"):
                log.warning("%s goes on after %.0f s", replica.label, seen.silent + seen.stopped)
                replica.cause = ""
            self._seen[replica.label] = _Seen(replica.generation, progress, due=self._limit / (2 if steps else 1))
            return
        if seen.stage in ("well", "named") and _stopped(process.pid, family=seen.silent > self._limit / 4):
            seen.stopped += elapsed
            if seen.stage == "well" and seen.stopped >= self._limit / 2:
                log.warning("%s", self._describe(replica, seen))
                seen.stage, seen.due = "named", self._limit * (1 if steps else STARTING)
            return
        seen.silent += elapsed
        if seen.silent < seen.due:
            return
        if seen.stage == "well":
            log.warning("%s (--hang-timeout SECONDS, if it takes that long)", self._describe(replica, seen))
            seen.stage, seen.due = "named", self._limit * (1 if steps else STARTING)
        elif seen.stage == "named":
            replica.cause = self._describe(replica, seen)
            _send(process, RAISE)
            seen.stage, seen.due = "asked", seen.silent + NOTICE
        elif seen.stage == "asked":
            os.ftruncate(self._arena.stacks, 0)
            os.lseek(self._arena.stacks, 0, os.SEEK_SET)  # where the replica's copy of the descriptor writes, too
            _send(process, DUMP)
            seen.stage, seen.due = "dumped", seen.silent + 1.0
        elif seen.stage == "dumped":
            stack = os.pread(self._arena.stacks, 1 << 16, 0).decode(errors="replace")
            replica.cause += f" and was killed:\n{stack}"
            replica.kill()
            seen.stage = "killed"

    def _look_for_wait(self, replica: Replica, elapsed: float) -> None:
        step, phase = (replica.generation, self._steps_of(replica)), self._phase(replica)
        wait = self._waits.get(replica.label)
        if wait is None or (step, phase) != (wait.step, wait.phase) or not phase.startswith(WAITING):
            if wait is not None and wait.named and wait.step[0] == step[0]:
                log.info("%s no longer waits, after %.0f s", replica.label, wait.seconds)
            self._waits[replica.label] = _Wait(step, phase)
            return
        wait.seconds += elapsed
        if wait.seconds >= self._limit / 2 and not wait.named:
            wait.named = True
            log.info("%s has waited at '%s' for %.0f s", replica.label, phase.removeprefix(WAITING), wait.seconds)

    def _look_for_deadlock(self, replicas: list[Replica], elapsed: float) -> None:
        steps = sum(map(self._steps_of, replicas))
        needed = [r for r in replicas if not r.given_up]
        phases = {r.label: self._phase(r) for r in replicas}  # read once: who waits looks up now and then
        waiting = all(r.process is not None and phases[r.label].startswith(WAITING) for r in needed)
        self._waiting = self._waiting + elapsed if waiting and steps == self._steps else 0.0
        self._steps = steps
        if self._waiting and any(_stopped(r.process.pid) for r in needed if r.process is not None):
            self._waiting = 0.0  # it may be the one that all others wait for
        if self._waiting >= self._limit:
            ports = "\n".join(f"  {label}: {phase.removeprefix(WAITING)}" for label, phase in phases.items())
            raise api.Deadlock(f"no role can step, each waits for another at its channel:\n{ports}")

    def _describe(self, replica: Replica, seen: _Seen) -> str:
        phase = self._phase(replica)
        doing = f"in the phase '{phase}'" if phase and phase != "start" else "while it starts"
        why = ": it was stopped by a signal (SIGCONT lets it go on)" if seen.stopped else ""
        return f"{replica.label} has made no progress for {seen.silent + seen.stopped:.0f} s, {doing}{why}"

    def _line(self, replica: Replica) -> int:
        return self._plan.pulses[replica.role.name] + replica.index * ALIGN

    def _phase(self, replica: Replica) -> str:
        start = self._line(replica)
        return bytes(self._arena.words.cast("B")[start + 8 : start + ALIGN]).rstrip(b"\0").decode(errors="replace")

    def _steps_of(self, replica: Replica) -> int:
        steps: int = self._arena.words[self._plan.status[replica.role.name] // 8 + replica.index * LINE]
        return steps


def _stopped(pid: int | None, family: bool = False) -> bool:
    """Return whether a process, or one of its ``family``, was stopped by a signal or is held by a debugger."""
    try:
        process = psutil.Process(pid)
        return any(p.status() in STOPPED for p in (process, *(process.children(recursive=True) if family else ())))
    except psutil.NoSuchProcess:
        return False


def _send(process: Process, number: int) -> None:
    assert process.pid is not None, "it was started"
    with contextlib.suppress(OSError):
        os.kill(process.pid, number)
