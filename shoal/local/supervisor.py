"""The supervisor: starts a program's replicas, watches over them, and ends them in order."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import selectors
import time
from multiprocessing import connection
from multiprocessing.process import BaseProcess

import cloudpickle

from shoal import api
from shoal.local import checkpoint_commit as checkpointer, child, processes
from shoal.local.checkpoint_commit import Checkpointer
from shoal.local.failures import Failures
from shoal.local.heartbeat import Watch
from shoal.local.replica import Replica
from shoal.metering.aggregator import Aggregator
from shoal.program import Program, RoleSpec
from shoal.records.checkpoint import Checkpoint, Unloadable, newest_with, part
from shoal.runtime import memory, seeds
from shoal.runtime.interrupts import Interrupts
from shoal.runtime.launch import Launch, Report
from shoal.shm import bells, divided, ports, ring, shared_params
from shoal.shm.arena import Arena
from shoal.shm.group_layout import SharedLayout
from shoal.shm.layout import LINE, MAKING, STOP, Plan

log = logging.getLogger("shoal.runtime")

LAUNCH = 1_000_000  # generations that one launch of a run may use: none is ever used twice
INTERRUPTED = 22.0  # seconds that replicas have for their last checkpoint after a signal
LAST_SAVE = 600.0  # and without one
REST, MOMENT = 0.05, 0.005  # seconds between two looks at many replicas, in which a few are not worth a rest
ROWS = 7_200  # metric files of a run of days grow with the logarithm of its length: 12 s between rows after one


class Supervisor:
    """One launch of a program in processes of its own, from the first start to the last death."""

    def __init__(
        self, program: Program, plan: Plan, launch: Launch, failures: Failures, grace: float, hang_timeout: float
    ) -> None:
        self._program, self._plan, self._launch, self._failures, self._grace = program, plan, launch, failures, grace
        self._shown = [launch.display] if launch.display is not None else []  # while states are loaded, too
        self._told = [*launch.observers, *self._shown]
        self._arena = Arena(plan.total)
        self._aggregator = Aggregator()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._interrupts = Interrupts(self._wake_write, self._abandon)
        self._news = selectors.DefaultSelector()
        self._news.register(self._wake_read, selectors.EVENT_READ)
        self._blobs = {role.name: _pickle(plan, role) for role in program.roles}
        self._replicas = [self._replica(role, i) for role in program.roles for i in range(role.replicas)]
        self._rest = min(REST, len(self._replicas) / 5_000)
        self._watch = Watch(self._arena, plan, hang_timeout)
        self._next_update = 0.0
        self._checkpoints: Checkpointer | None = None
        saving = launch.saving
        self._lives = itertools.count(seeds.LAUNCH * (saving.launch if saving is not None else 0))
        if saving is not None:
            for replica in self._replicas:
                replica.generation = saving.launch * LAUNCH
            shared = self._arena, self._aggregator, self._ring_bells, self._groups
            self._checkpoints = Checkpointer(saving, program, plan, *shared)
        resumed = self._replicas if launch.resume is not None else []
        self._loading = {r.label for r in resumed if checkpointer.saves(r.role)}  # those yet to load their states

    def go(self) -> Report:
        try:
            if self._launch.resume is not None:
                checkpointer.resume(self._launch.resume, self._program, self._plan, self._arena, self._aggregator)
            log.info("processes start: %d", len(self._replicas))
            self._prepare()
            with self._interrupts:
                return self._go()
        finally:
            self._news.close()
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._arena.close()

    def _go(self) -> Report:
        try:
            reason = self._supervise()
            self._shut_down()
            log.info("ended: %s (steps: %d, %.1f s)", reason, self._aggregator.steps, self._aggregator.seconds)
            if self._aggregator.changed:
                self._observe()
            return Report.of(reason, self._aggregator, self._params())
        finally:
            self._shut_down()
            if self._checkpoints is not None:
                self._checkpoints.last()

    # ------------------------------------------------------------------------------ supervision
    def _prepare(self) -> None:
        """Before any replica starts."""
        ports.fill(self._arena, self._plan)

    def _replica(self, role: RoleSpec, index: int) -> Replica:
        return Replica(role, index, self._start, self._news)

    def _start(self, replica: Replica, pipe: connection.Connection) -> BaseProcess:
        launch = self._launch
        job = child.Job(
            replica.index,
            replica.generation,
            launch.seed,
            next(self._lives),
            (launch.stop.steps, launch.stop.updates),
            launch.run_dir,
            dict(os.environ),
            launch.spans,
            launch.saving if checkpointer.saves(replica.role) else None,
            launch.resume,
        )
        if replica.role.on_failure == "restore" and replica.failures:
            job = dataclasses.replace(job, resume=self._newest(replica), again=True)
        args = (self._arena, self._blobs[replica.role.name], job, pipe)
        return processes.start(child.main, args, f"shoal-{replica.label}")

    def _newest(self, replica: Replica) -> Checkpoint | None:
        """The checkpoint that a replica which failed goes on from: the newest of this launch, or that of the launch."""
        saving, name = self._launch.saving, part("role", replica.role.name, replica.index)
        found = newest_with(saving.folder, name) if saving is not None else None
        return found or self._launch.resume

    def _supervise(self) -> str:
        """Returns why the run ends; raises RoleFailed, or Unloadable before ``launch.loaded``."""
        if not self._loading:
            self._launch.loaded()
        for replica in self._replicas:
            if self._interrupts.reason:
                return self._interrupts.reason
            replica.start()
        began = time.monotonic()
        self._next_update = began + self._launch.interval
        while True:
            reason = self._interrupts.reason or ("" if self._loading else self._ended())
            if reason:
                return reason
            for replica in self._wait(self._timeout()):
                self._listen(replica)
                if replica.process is not None and not replica.process.is_alive():
                    self._bury(replica)
            for replica in self._replicas:
                if replica.restart_at is not None and time.monotonic() >= replica.restart_at:
                    replica.generation += 1
                    self._arena.words[self._status(replica)] = 0
                    replica.start()
            self._look()
            if self._checkpoints is not None:
                self._checkpoints.look()
            self._publish()
            if (now := time.monotonic()) >= self._next_update:
                self._next_update = now + max(self._launch.interval, (now - began) / ROWS)
                self._observe()

    def _look(self) -> None:
        """Find replicas that hang, and a run in which each waits for another."""
        self._watch.look(self._replicas)

    def _timeout(self) -> float:
        """Seconds until something is due without a message."""
        due = [self._next_update] if self._told else []
        due += [r.restart_at for r in self._replicas if r.restart_at is not None]
        now = time.monotonic()
        times = [at - now for at in due] + [1.0]
        if self._checkpoints is not None:
            times.append(self._checkpoints.timeout())
        if self._launch.stop.seconds is not None and not self._loading:
            times.append(self._launch.stop.seconds - self._aggregator.seconds)
        return max(0.0, min(times))

    def _wait(self, timeout: float) -> list[Replica]:
        """Sleep until there is news, or for so many seconds: those who sent a message, or died. Of many, the news of a
        moment is heard together."""
        if timeout > self._rest > MOMENT:
            time.sleep(self._rest)
            timeout -= self._rest
        found = [key.data for key, _ in self._news.select(timeout)]
        if None in found:
            os.read(self._wake_read, 64)
        return [replica for replica in dict.fromkeys(found) if replica is not None]

    def _listen(self, replica: Replica) -> None:
        for kind, content in replica.receive():
            if kind == "telemetry":
                self._aggregator.add(replica.role.name, content, replica.index)
            elif kind == "log":
                log.log(*content)
            elif kind in ("snapshot", "saved"):
                if self._checkpoints is not None:
                    self._checkpoints.hear(replica.label, kind, content)
            elif kind == "repeats":
                replica.repeats, replica.users = True, content
            elif kind == "loaded":
                self._has_loaded(replica)
            elif kind != "unloadable":
                replica.cause = content
            elif replica.label in self._loading and self._launch.resume is not None:  # else it fails as others do
                raise Unloadable(self._launch.resume, content)

    def _has_loaded(self, replica: Replica) -> None:
        """A life of a replica has put itself where it was saved: the first may be the last that was waited for."""
        if replica.label in self._loading:
            self._loading.discard(replica.label)
            if not self._loading:
                self._launch.loaded()

    def _bury(self, replica: Replica) -> None:
        """A replica died though the run goes on: restart it later, go on without it, or fail."""
        self._listen(replica)
        exitcode = replica.reap()
        if self._interrupts.count or (exitcode == 0 and self._arena.words[STOP // 8]):
            return  # it ended because the run does, a moment before the supervisor noticed
        self._failures.plan_restart(replica, exitcode, stepped=bool(self._arena.words[self._status(replica)]))
        self._aggregator.failed(replica.label, restarted=replica.restart_at is not None)
        if replica.restart_at is not None and self._checkpoints is not None:
            self._checkpoints.again(replica.label)

    def _status(self, replica: Replica) -> int:
        return self._plan.status[replica.role.name] // 8 + replica.index * LINE

    def _limited(self, column: int) -> int:
        """Sum over all replicas of a column of the status lines."""
        return sum(
            int(self._arena.words[at // 8 + i * LINE + column]) for at, n in self._plan.replicas() for i in range(n)
        )

    def _ended(self) -> str:
        stop = self._launch.stop
        if self._arena.words[STOP // 8]:  # a replica reached a limit
            for replica in self._replicas:
                self._listen(replica)
            reached = stop.updates is not None and self._limited(2) >= stop.updates
            return "updates" if reached else "steps"
        return stop.reached(self._aggregator)

    def _observe(self) -> None:
        observers = self._told if not self._loading else self._shown
        if not observers:
            return
        snapshot = self._aggregator.snapshot(self._fill(), self._used(), self._limited(MAKING))
        snapshot.phases, snapshot.moved = self._watch.phases(self._replicas), self._items_moved()
        with self._interrupts.in_foreign_code():
            for observer in observers:
                observer.update(snapshot)

    def _publish(self) -> None:
        """Write the newest parameters where somebody may evaluate them."""
        if self._launch.publication is not None and not self._loading:
            self._launch.publication.look(lambda: Report.of("", self._aggregator, self._params()))

    def _fill(self) -> dict[str, float]:
        """channel -> the share of its slots that is in use."""
        return {name: ring.fill(self._arena, r) for name, r in self._plan.rings.items()}

    def _items_moved(self) -> dict[str, int]:
        """channel -> items put into it since the launch; not of rings that others hold, where none arrives here."""
        moved = {name: int(ring.moved(self._arena, r).sum()) for name, r in self._plan.rings.items()}
        return {name: n for name, n in moved.items() if n}

    def _used(self) -> int:
        """Bytes of memory that the run takes."""
        return memory.used()

    def _groups(self) -> api.State:
        """part -> state of each channel that belongs to no replica."""
        return checkpointer.groups_state(self._plan, self._arena)

    def _params(self) -> dict[str, api.Tensors]:
        """channel -> the parameters published last."""
        params = divided.read(self._arena, self._plan)
        for name, group in self._plan.groups.items():
            if isinstance(group, SharedLayout) and (shared := shared_params.read(self._arena, group)) is not None:
                params[name] = shared
        return params

    # --------------------------------------------------------------------------------- the end
    def _shut_down(self) -> None:
        """Leaves no process behind; does nothing the second time."""
        self._arena.words[STOP // 8] = 1
        stepped = any(self._arena.words[self._status(r)] for r in self._replicas)
        if self._loading or (self._interrupts.count and not stepped):
            if self._checkpoints is not None:  # nobody has done anything that is to be saved
                self._checkpoints.give_up()
        else:
            self._end_in_order()
        late = [r for r in self._replicas if r.process is not None]
        for replica in late:
            replica.kill()
        for replica in late:
            replica.reap()

    def _abandon(self) -> None:
        """Leave no process behind, though this one's main thread hangs."""
        for replica in self._replicas:
            replica.kill()

    def _end_in_order(self) -> None:
        """Give all their time to end, and those that save theirs to do so; tell who has not done it."""
        if self._checkpoints is not None:
            self._checkpoints.ending()
        self._ring_bells()
        self._let_end(self._replicas, self._grace)
        waited = self._grace
        if self._checkpoints is not None:  # replicas that save may take longer, the others have had their time
            saving = [r for r in self._replicas if checkpointer.saves(r.role) and r.process is not None]
            waited = max(self._grace, (INTERRUPTED if self._interrupts.count else LAST_SAVE) if saving else 0.0)
            self._let_end(saving, waited - self._grace)
        late = [r.label for r in self._replicas if r.process is not None]
        if late and self._interrupts.count < 2:
            log.warning("killing %s, busy %.0f s after the end", ", ".join(late), waited)

    def _let_end(self, replicas: list[Replica], seconds: float) -> None:
        """Wait until these have ended, or for so many seconds, or for the second interrupt."""
        while self._interrupts.count < 2 and any(r.process is not None for r in replicas):
            if seconds <= 0:
                return
            began = time.monotonic()
            found = self._wait(min(seconds, 1.0))
            seconds -= min(time.monotonic() - began, 2.0)  # not the time in which this process itself was stopped
            for replica in found:
                self._listen(replica)
                if replica.process is not None and not replica.process.is_alive():
                    self._listen(replica)
                    replica.reap()
                    if replica.cause and not self._failures.is_known(replica, replica.cause):
                        level = logging.INFO if self._interrupts.count else logging.WARNING  # a signal may be the cause
                        log.log(level, "%s failed while it ended: %s", replica.label, replica.cause.rstrip())

    def _ring_bells(self) -> None:
        bells.ring(self._arena, self._plan)


def _pickle(plan: Plan, role: RoleSpec) -> bytes:
    try:
        blob: bytes = cloudpickle.dumps((plan, role))
    except Exception as error:  # whatever a user's object raises when it is pickled
        raise api.WiringError(f"Role {role.name!r} cannot be sent to its process: {error}") from error
    return blob
