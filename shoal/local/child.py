"""What runs inside a replica's process: build the role, step it until the run ends, report."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from multiprocessing import connection, parent_process
from pathlib import Path
from types import FrameType

import cloudpickle
import torch

from shoal import api, jit
from shoal.errors import repeats
from shoal.local import processes, signals
from shoal.local.checkpoint_save import Saver, restore, saves
from shoal.local.failures import cause_of
from shoal.local.heartbeat import DUMP, RAISE, Pulse
from shoal.local.pace import Pace, lower_priority
from shoal.local.telemetry import Outbox
from shoal.local.workers import Team
from shoal.metering.recorder import OTHER, Recorder, recorder as recorder_of
from shoal.program import RoleSpec
from shoal.records import dumps
from shoal.records.checkpoint import Checkpoint, SaveOptions, Unloadable, part
from shoal.records.logs import RoleLog
from shoal.runtime import seeds
from shoal.runtime.launch import CannotGoOn
from shoal.shm import ports
from shoal.shm.arena import Arena
from shoal.shm.layout import COUNTED, LINE, MAKING, STOP, Plan
from shoal.shm.session import Session
from shoal.types import Values

FLUSH, MANY = 0.5, 32  # seconds between reports of up to so many replicas; more report less often
_FIRST_FLUSH = 0.02


@dataclass(frozen=True)
class Job:
    """What one replica needs besides its role. ``seed`` is the run's, ``life`` counts the starts of all its replicas;
    ``environ`` is the parent's environment."""

    index: int
    generation: int
    seed: int
    life: int
    limits: tuple[int | None, ...]  # of the first counters of ``COUNTED``, over all replicas
    run_dir: Path | None
    environ: dict[str, str]
    spans: int = 0  # to record, for a profile
    saving: SaveOptions | None = None  # for replicas that save
    resume: Checkpoint | None = None
    again: bool = False  # ``resume`` is for this replica alone: it failed in the middle of the run
    joins: Mapping[str, ports.Join] = field(default_factory=dict)  # reduce channels whose members share no arena


class _Reporter:
    """Ships the recorder's figures: soon after the start, then every ``every`` seconds."""

    def __init__(self, recorder: Recorder, outbox: Outbox) -> None:
        self._recorder, self.outbox = recorder, outbox
        self.every = FLUSH
        self.log: RoleLog | None = None
        self._period = _FIRST_FLUSH
        self._due = time.monotonic() + self._period

    def tick(self) -> None:
        now, idle = time.monotonic(), self.outbox.idle()  # what did not fit into the pipe leaves between two steps
        if now < self._due:
            return
        if idle:
            self.outbox.send(("telemetry", self._recorder.drain()))
        if self.log is not None:
            self.log.trim()
        self._period = min(2 * self._period, self.every)
        self._due = now + self._period

    def last(self) -> None:
        self.outbox.send(("telemetry", self._recorder.drain()))


class _Told(logging.Handler):
    """Sends what Shoal's own code logs in this replica to the supervisor, which tells it as its own."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__()
        self._outbox = outbox

    def emit(self, record: logging.LogRecord) -> None:
        self._outbox.send(("log", (record.levelno, "%s", record.getMessage())))


class _Progress:
    """Keeps this replica's limited counters in shared memory and raises the stop flag where a limit is reached,
    so that a fast run ends within one step of a role, not at the supervisor's next look."""

    def __init__(self, session: Session, plan: Plan, at: int, limits: tuple[int | None, ...]) -> None:
        self._words, self._totals = session.arena.words, session.metrics.totals
        self._stop = STOP // 8
        lines = [start // 8 + i * LINE for start, n in plan.replicas() for i in range(n)]
        self._columns: list[tuple[str, int, int, list[int], int | None]] = []
        # name, ours, before us, everyone's, limit
        self.before: dict[str, int] = {}
        for column, (name, limit) in enumerate(zip_longest(COUNTED, limits), 1):
            mine = at + column
            self.before[name] = int(self._words[mine])
            self._columns.append((name, mine, self.before[name], [n + column for n in lines], limit))

    def tick(self) -> None:
        for name, mine, before, lines, limit in self._columns:
            self._words[mine] = before + self._totals.get(name, 0)
            if limit is not None and sum(self._words[i] for i in lines) >= limit:
                self._words[self._stop] = 1

    def counted(self) -> list[int]:
        """Return this replica's counts over all its lives, in the order of ``COUNTED``."""
        return [int(self._words[mine]) for _, mine, _, _, _ in self._columns]

    def steps(self) -> int:
        """Environment steps of all replicas over all their lives."""
        return sum(int(self._words[i]) for i in self._columns[COUNTED.index("env_steps")][3])


def _die() -> None:
    """End this process and the helpers it started (it leads a process group of its own)."""
    with contextlib.suppress(OSError):
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
    os._exit(1)


def follow_parent() -> None:
    """Die with the parent, however it dies and whatever the main thread is doing then."""
    parent = parent_process()
    if parent is None:
        return
    sentinel: int = parent.sentinel

    def watch() -> None:
        connection.wait([sentinel])
        _die()

    threading.Thread(target=watch, name="shoal-parent-watch", daemon=True).start()
    if sys.platform == "linux":  # the kernel's SIGIO to the group ends even a C call that keeps the interpreter lock
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(sentinel, fcntl.F_SETOWN, -os.getpgrp() if os.getpgrp() == os.getpid() else os.getpid())
        fcntl.fcntl(sentinel, fcntl.F_SETFL, fcntl.fcntl(sentinel, fcntl.F_GETFL) | fcntl.FASYNC)


def _hang(number: int, frame: FrameType | None) -> None:
    raise TimeoutError("no progress for longer than the hang timeout")


def _settle(job: Job, threads: int, stacks: int) -> None:
    """Signals (the parent coordinates), environment variables, threads."""
    signals.shield()
    os.register_at_fork(after_in_child=signals.unshield)
    faulthandler.enable()
    faulthandler.register(DUMP, stacks)
    signal.signal(RAISE, _hang)
    os.environ.clear()
    os.environ.update(job.environ)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)  # else the averages of Adam, where units died, make its step five times slower
    processes.keep_freed_memory()


def main(arena: Arena, program: bytes, job: Job, pipe: connection.Connection) -> None:
    """Entry point of a replica. Exit code 1 after an exception, whose traceback goes to the parent."""
    outbox, recorder = Outbox(pipe.fileno()), recorder_of(job.spans)
    reporter = _Reporter(recorder, outbox)
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    try:
        follow_parent()
        spec: RoleSpec
        plan: Plan
        plan, spec = cloudpickle.loads(program)
        _settle(job, spec.threads, arena.stacks)
        logging.getLogger("shoal").addHandler(_Told(outbox))
        reporter.every = FLUSH * max(1.0, sum(plan.counts.values()) / MANY)
        seed = seeds.life_seed(job.seed, job.life)
        if job.run_dir is not None:
            reporter.log = _log(spec, job, seed)
        _run(plan, spec, job, seed, Session(arena, recorder, reporter.tick), reporter)
    except BaseException as error:  # noqa: BLE001 - told to the parent, which names it
        reporter.last()
        if repeats(error):
            outbox.send(("repeats", isinstance(error, api.UsageError)))
        if isinstance(error, Unloadable):
            outbox.send(("unloadable", error.why))
        outbox.send(("failed", cause_of(error) + dumps.save(error, job.run_dir)))
        if reporter.log is not None:
            reporter.log.note(f"failed: {traceback.format_exc().rstrip()}")
            reporter.log.trim()
        outbox.finish(2.0)
        sys.stderr.flush()
        os._exit(1)
    reporter.last()
    outbox.finish(2.0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # no interpreter shutdown: nothing here needs it, and native threads may hang in it


def _log(spec: RoleSpec, job: Job, seed: int) -> RoleLog | None:
    assert job.run_dir is not None
    try:
        log = RoleLog(job.run_dir, spec.name, job.index)
    except OSError:  # a full disk costs the log, not the training
        return None
    log.note(f"{spec.name}[{job.index}] starts: generation {job.generation}, seed {seed}, pid {os.getpid()}")
    return log


def _run(plan: Plan, spec: RoleSpec, job: Job, seed: int, session: Session, reporter: _Reporter) -> None:
    context = api.Context(
        role=spec.name,
        index=job.index,
        replicas=spec.replicas,
        generation=job.generation,
        seed=seed,
        metrics=session.metrics,
        total_steps=job.limits[0],
        run_dir=job.run_dir,
        pipelined=True,
    )
    if spec.background:
        lower_priority()
    words, at = session.arena.words, plan.status[spec.name] // 8 + job.index * LINE
    words[at] = words[at + MAKING] = 0
    progress = _Progress(session, plan, at, job.limits)
    context.counts = progress.before

    def made(steps: int) -> None:
        words[at + MAKING] = steps

    session.metrics.made = made
    session.metrics.show = Pulse(session.arena, plan, spec.name, job.index).show
    context.steps = progress.steps
    jit.on_compile(session.metrics.beat)
    teams = contextlib.ExitStack()
    ends: Values = {}

    def forget() -> None:
        for end in ends.values():
            if isinstance(end, ports.ReplayReader):
                end.forget()

    def team(size: int) -> Team:
        made = Team(size, forget)
        teams.callback(made.close)
        return made

    if sys.platform == "linux":  # elsewhere a forked copy may not compute
        context.team = team
    role: api.Role | None = None
    try:
        ends |= ports.build(session, plan, spec, job.index, job.generation, job.seed, job.joins)
        role = spec.make(context, **ends)
        saver = _saver(job, spec, role, ends, session, reporter, progress.counted)
        session.metrics.enter(OTHER)
        pace = Pace(session, role, spec.background)
        with contextlib.suppress(api.Stopped):
            while not session.stopping():
                if not pace.ready():
                    continue
                session.fresh = True
                role.step()
                session.metrics.enter(OTHER)
                words[at] += 1
                progress.tick()
                reporter.tick()
                if saver is not None:
                    saver.look()
            session.fresh = True
        if saver is not None:
            saver.last(whole=session.fresh)
    except api.Stopped:
        pass
    except (api.ShoalError, OSError, MemoryError):
        raise
    except Exception as error:
        if job.resume is None or not saves(spec) or words[at]:
            raise
        raise CannotGoOn(job.resume, error) from error
    finally:
        teams.close()
        close = getattr(role, "close", None)
        if close is not None:
            close()


def _saver(
    job: Job,
    spec: RoleSpec,
    role: api.Role,
    ends: Values,
    session: Session,
    reporter: _Reporter,
    counted: Callable[[], list[int]],
) -> Saver | None:
    """Put a new role where the run begins or goes on; what saves it from then on."""
    name = part("role", spec.name, job.index)
    if job.resume is not None and saves(spec):
        restore(job.resume, role, spec, job.index, ends, tables=not job.again)
        reporter.outbox.send(("loaded", None))
    else:
        getattr(role, "start", lambda: None)()
    if job.saving is None:
        return None
    saver = Saver(job.saving, role, name, ends, session, reporter, counted)
    session.at_rest = saver.look
    return saver
