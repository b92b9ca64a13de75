"""The local runtime: one process per replica, shared memory between them, one supervisor."""

from __future__ import annotations

import itertools
import logging
import os
import re
import time
from collections.abc import Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any

import cloudpickle

from shoal import api
from shoal.local import checkpoint_commit as checkpointer, child, processes
from shoal.local.checkpoint_commit import Checkpointer
from shoal.local.heartbeat import Watch
from shoal.local.replica import Replica
from shoal.metering.aggregator import Aggregator, Observer
from shoal.program import Program
from shoal.records.checkpoint import Checkpoint, Saving
from shoal.runtime import memory, seeds
from shoal.runtime.interrupts import Interrupts
from shoal.shm import futex, layout, ring, store
from shoal.shm.arena import Arena
from shoal.shm.layout import LINE, STOP, Plan

log = logging.getLogger("shoal.runtime")

LAUNCH = 1_000_000  # generations that one launch of a run may use: none is ever used twice
INTERRUPTED = 22.0  # seconds that replicas have for their last checkpoint after a signal
LAST_SAVE = 600.0  # and without one
ROWS = 7_200  # metric files of a run of days grow with the logarithm of its length: 12 s between rows after one


class LocalRuntime:
    """Runs a program on this machine.

    restarts: how often one replica may fail within ``window`` seconds before the run fails; before each
        restart it waits ``backoff`` seconds, doubling up to ``longest_backoff``.
    still_born: how often it may fail in a row without ever completing a step.
    grace: seconds replicas have to finish their step at the end; then they are killed.
    hang_timeout: seconds a replica may make no progress, see ``pulse.Watch``; 0: for ever.
    spans: how many each replica records for a profile.
    """

    def __init__(
        self,
        *,
        restarts: int = 10,
        window: float = 60.0,
        backoff: float = 0.1,
        longest_backoff: float = 2.0,
        still_born: int = 3,
        grace: float = 5.0,
        hang_timeout: float = 60.0,
        spans: int = 0,
    ) -> None:
        self.restarts, self.window = restarts, window
        self.backoff, self.longest_backoff = backoff, longest_backoff
        self.still_born, self.grace, self.hang_timeout = still_born, grace, hang_timeout
        self.spans = spans

    def launch(
        self,
        program: Program,
        *,
        seed: int,
        stop: api.Stop,
        run_dir: Path | None = None,
        observers: Sequence[Observer] = (),
        display: Observer | None = None,
        interval: float = 0.5,
        saving: Saving | None = None,
        resume: Checkpoint | None = None,
    ) -> api.Report:
        """Run ``program`` until ``stop``, from its beginning or from where ``resume`` was saved. Interrupt once for an
        orderly end, twice to kill at once.

        ``observers`` and ``display`` are told every ``interval`` seconds; in a long run, every 7,200th of its length.
        """
        observers = [*observers, *([display] if display is not None else [])]
        program.validate()
        plan = layout.plan(program)
        memory.check_fits(layout.needed(plan))
        processes.prepare()
        return _Run(self, program, plan, seed, stop, run_dir, observers, interval, saving, resume).go()


class _Run:
    """One launch."""

    def __init__(
        self,
        options: LocalRuntime,
        program: Program,
        plan: Plan,
        seed: int,
        stop: api.Stop,
        run_dir: Path | None,
        observers: Sequence[Observer],
        interval: float,
        saving: Saving | None,
        resume: Checkpoint | None,
    ) -> None:
        self._options, self._plan, self._seed, self._stop = options, plan, seed, stop
        self._run_dir, self._observers, self._interval = run_dir, observers, interval
        self._saving, self._resume = saving, resume
        self._arena = Arena(plan.total)
        self._aggregator = Aggregator()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._interrupts = Interrupts(self._wake_write)
        self._blobs = {role.name: _pickle(plan, role) for role in program.roles}
        self._replicas = [Replica(role, i, self._launch) for role in program.roles for i in range(role.replicas)]
        self._lives = itertools.count(seeds.LAUNCH * (saving.launch if saving is not None else 0))
        self._watch = Watch(self._arena, plan, options.hang_timeout)
        self._next_update = 0.0
        self._told: set[str] = set()  # failures whose cause was printed
        self._checkpoints: Checkpointer | None = None
        if saving is not None:
            for replica in self._replicas:
                replica.generation = saving.launch * LAUNCH
            self._checkpoints = Checkpointer(saving, program, plan, self._arena, self._aggregator, self._ring_bells)
        if resume is not None:
            checkpointer.resume(resume, program, plan, self._arena, self._aggregator)

    def go(self) -> api.Report:
        log.info("%d processes start", len(self._replicas))
        try:
            with self._interrupts:
                return self._go()
        finally:
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._arena.close()

    def _go(self) -> api.Report:
        try:
            reason = self._supervise()
            self._shut_down()
            log.info("ended: %s, after %d steps and %.1f s", reason, self._aggregator.steps, self._aggregator.seconds)
            if self._aggregator.changed:
                self._observe()
            return self._report(reason)
        finally:
            self._shut_down()
            if self._checkpoints is not None:
                self._checkpoints.last()

    # ------------------------------------------------------------------------------ supervision
    def _launch(self, replica: Replica, pipe: Any) -> Any:
        job = child.Job(
            replica.index,
            replica.generation,
            self._seed,
            next(self._lives),
            (self._stop.steps, self._stop.updates),
            self._run_dir,
            dict(os.environ),
            self._options.spans,
            self._saving if checkpointer.saves(replica.role) else None,
            self._resume,
        )
        args = (self._arena, self._blobs[replica.role.name], job, pipe)
        return processes.start(child.main, args, f"shoal-{replica.label}")

    def _supervise(self) -> str:
        """Returns why the run ends; raises RoleFailed."""
        for replica in self._replicas:
            replica.start()
        began = time.monotonic()
        self._next_update = began + self._interval
        while True:
            reason = self._interrupts.reason or self._ended()
            if reason:
                return reason
            self._wait(self._timeout())
            for replica in self._replicas:
                self._listen(replica)
                if replica.process is not None and not replica.process.is_alive():
                    self._bury(replica)
                elif replica.restart_at is not None and time.monotonic() >= replica.restart_at:
                    replica.generation += 1
                    self._arena.words[self._status(replica)] = 0
                    replica.start()
            self._watch.look(self._replicas)
            if self._checkpoints is not None:
                self._checkpoints.look()
            if (now := time.monotonic()) >= self._next_update:
                self._next_update = now + max(self._interval, (now - began) / ROWS)
                self._observe()

    def _timeout(self) -> float:
        """Seconds until something is due without a message."""
        due = [self._next_update] if self._observers else []
        due += [r.restart_at for r in self._replicas if r.restart_at is not None]
        now = time.monotonic()
        times = [at - now for at in due] + [1.0]
        if self._checkpoints is not None:
            times.append(self._checkpoints.timeout())
        if self._stop.seconds is not None:
            times.append(self._stop.seconds - self._aggregator.seconds)
        return max(0.0, min(times))

    def _wait(self, timeout: float) -> None:
        sources: list[Any] = [self._wake_read]
        for replica in self._replicas:
            if replica.process is not None:
                sources.append(replica.process.sentinel)
            if replica.inbox is not None:
                sources.append(replica.inbox.fd)
        if self._wake_read in connection.wait(sources, timeout):
            os.read(self._wake_read, 64)

    def _listen(self, replica: Replica) -> None:
        for kind, content in replica.receive():
            if kind == "telemetry":
                self._aggregator.add(replica.role.name, content, replica.index)
            elif kind in ("snapshot", "saved"):
                if self._checkpoints is not None:
                    self._checkpoints.hear(replica.label, kind, content)
            else:
                replica.cause = content

    def _bury(self, replica: Replica) -> None:
        """A replica died though the run goes on: restart it later, or fail."""
        self._listen(replica)
        exitcode = replica.reap()
        cause = replica.cause or processes.describe_exit(exitcode)
        now = time.monotonic()
        options = self._options
        if self._interrupts.count or (exitcode == 0 and self._arena.words[STOP // 8]):
            return  # it ended because the run does, a moment before the supervisor noticed
        allowed = replica.may_restart(now, options.restarts, options.window)
        if not self._stepped(replica):
            replica.still_born += 1
            allowed = allowed and replica.still_born < options.still_born
        else:
            replica.still_born = 0
        known = self._is_known(replica, cause)
        if not allowed and replica.role.on_failure == "ignore":
            log.warning("%s failed too often, the run goes on without it: %s", replica.label, cause.rstrip())
            replica.given_up = True
            return
        if not allowed:
            if known:
                cause = cause.rstrip().rpartition("\n")[2] + "\n(its traceback is printed above)"
            if replica.role.on_failure == "restart":
                cause += f"\n(gave up after {len(replica.failures)} failures)"
            told = f"gave up after {len(replica.failures)} failures" if known else cause.rstrip()
            log.error("%s (generation %d) failed: %s", replica.label, replica.generation, told)
            raise api.RoleFailed(replica.role.name, replica.index, replica.generation, exitcode, cause)
        delay = min(options.backoff * 2 ** (len(replica.failures) - 1), options.longest_backoff)
        replica.restart_at = now + delay
        self._aggregator.restarts += 1
        text = "the same failure again" if known else cause.rstrip()
        log.warning("%s failed, restarting in %.1f s: %s", replica.label, delay, text)

    def _is_known(self, replica: Replica, cause: str) -> bool:
        """Whether this cause was told before, of whatever replica; numbers (indices, seeds) do not count."""
        key = replica.role.name + re.sub(r"\b(0x)?[0-9a-f]*[0-9][0-9a-f.]*\b", "#", cause)
        known = key in self._told
        self._told.add(key)
        return known

    def _stepped(self, replica: Replica) -> bool:
        return bool(self._arena.words[self._status(replica)])

    def _status(self, replica: Replica) -> int:
        return self._plan.status[replica.role.name] // 8 + replica.index * LINE

    def _limited(self, column: int) -> int:
        """Sum over all replicas of a counter in the status lines."""
        return sum(
            int(self._arena.words[at // 8 + i * LINE + column]) for at, n in self._plan.replicas() for i in range(n)
        )

    def _ended(self) -> str:
        stop = self._stop
        if self._arena.words[STOP // 8]:  # a replica reached a limit
            for replica in self._replicas:
                self._listen(replica)
            reached = stop.updates is not None and self._limited(2) >= stop.updates
            return "updates" if reached else "steps"
        return self._aggregator.ended(stop)

    def _observe(self) -> None:
        if not self._observers:
            return
        fill = {name: ring.fill(self._arena, r) for name, r in self._plan.rings.items()}
        snapshot = self._aggregator.snapshot(fill, memory.used())
        for observer in self._observers:
            observer.update(snapshot)

    def _report(self, reason: str) -> api.Report:
        run = self._aggregator
        params = {name: store.read(self._arena, s) for name, s in self._plan.stores.items()}
        return api.Report(
            reason=reason,
            steps=run.steps,
            updates=run.updates,
            seconds=run.seconds,
            episode_return=run.episode_return,
            episodes=run.episodes,
            params={name: p for name, p in params.items() if p is not None},
            restarts=run.restarts,
        )

    # --------------------------------------------------------------------------------- the end
    def _shut_down(self) -> None:
        """Leaves no process behind; does nothing the second time."""
        if self._checkpoints is not None:
            self._checkpoints.ending()
        self._arena.words[STOP // 8] = 1
        self._ring_bells()
        self._let_end(self._replicas, self._options.grace)
        if self._checkpoints is not None:  # replicas that save may take longer, the others have had their time
            seconds = INTERRUPTED if self._interrupts.count else LAST_SAVE
            self._let_end([r for r in self._replicas if checkpointer.saves(r.role)], seconds - self._options.grace)
        late = [r for r in self._replicas if r.process is not None]
        if late and self._interrupts.count < 2:
            log.warning("killing %s, busy %.0f s after the end", ", ".join(r.label for r in late), self._options.grace)
        for replica in late:
            processes.kill(replica.process)
        for replica in late:
            replica.reap()

    def _let_end(self, replicas: list[Replica], seconds: float) -> None:
        """Wait until these have ended, or for so many seconds, or for the second interrupt."""
        end = time.monotonic() + seconds
        while self._interrupts.count < 2 and any(r.process is not None for r in replicas):
            left = end - time.monotonic()
            if left <= 0:
                return
            self._wait(left)
            for replica in self._replicas:
                self._listen(replica)
                if replica.process is not None and not replica.process.is_alive():
                    self._listen(replica)
                    replica.reap()
                    if replica.cause and not self._is_known(replica, replica.cause):
                        log.warning("%s failed while it ended: %s", replica.label, replica.cause.rstrip())

    def _ring_bells(self) -> None:
        base = self._arena.base
        for r in self._plan.rings.values():
            for i in range(r.readers):
                futex.wake(base + r.bells + i * layout.ALIGN)
            for i in range(r.writers):
                futex.wake(base + r.tails + i * layout.ALIGN)
        for s in self._plan.stores.values():
            futex.wake(base + s.control)


def _pickle(plan: Plan, role: api.RoleSpec) -> bytes:
    try:
        blob: bytes = cloudpickle.dumps((plan, role))
    except Exception as error:  # whatever a user's object raises when it is pickled
        raise api.WiringError(f"Role {role.name!r} cannot be sent to its process: {error}") from error
    return blob
