"""The serial runtime: one process, roles swept in declared order, bit-for-bit deterministic.

A role fires when all its ports are ready; a sweep in which nothing fires is a deadlock, and is named.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from shoal.api import Deadlock, Diverged, ShoalError, Stopped, UsageError
from shoal.metering.aggregator import Aggregator, Observer
from shoal.metering.recorder import OTHER
from shoal.own_settings import own_settings
from shoal.program import Program, held
from shoal.records import dumps
from shoal.runtime import memory
from shoal.runtime.interrupts import Interrupts
from shoal.runtime.launch import CannotGoOn, Launch, Report, run_from_newest
from shoal.serial import checkpoint, generators
from shoal.serial.channels import SerialQueue, SerialReplay
from shoal.serial.divided import DividedQueue
from shoal.serial.instance import Instance, Published, Replica

log = logging.getLogger("shoal.runtime")

ROW_EVERY = 1_000  # environment steps between two rows of the metric files: a count, so that runs repeat exactly
TURN = "wait:turn"  # the phase of a role while others step
_ALONE = threading.Lock()  # of the process's random generators


class SerialRuntime:
    """Runtime that runs a program in this process, deterministically."""

    in_process = deterministic = True

    def check(self, program: Program) -> None:
        """See ``runtime.launch.Runtime``: whether it fits into memory."""
        program.validate()
        memory.check_fits(program.memory(), held(program))

    def launch(self, program: Program, launch: Launch) -> Report:
        """See ``runtime.launch.Runtime``; also raises whatever a role raises.

        Observers are told every ``ROW_EVERY`` steps, so that what they write repeats exactly. Checkpoints lie between
        two sweeps, and a resumed run is the same bit for bit. The process's generators are as they were when it ends.
        """
        self.check(program)
        if not _ALONE.acquire(blocking=False):
            raise UsageError(
                "a serial run is going on in this process already, in another thread or as what an observer sees, and "
                "both would draw from the same random numbers: give runtime='local', or a process to each"
            )
        try:
            # PyTorch's threads wait for one another where others use the cores
            with own_settings(threads=max(role.threads for role in program.roles)):
                return self._alone(program, launch)
        finally:
            _ALONE.release()

    def _alone(self, program: Program, launch: Launch) -> Report:
        """Launch while no other serial run goes on in this process."""
        before = generators.state()
        with Interrupts() as interrupts:
            try:
                return run_from_newest(launch, lambda from_this: _Run(program, from_this, interrupts).go())
            finally:
                generators.restore(before)


class _Run:
    """One launch, begun or put where its checkpoint was. aggregator: what observers are told; live: the same for the
    display, which looks more often."""

    def __init__(self, program: Program, launch: Launch, interrupts: Interrupts) -> None:
        if launch.resume is not None:
            launch = replace(launch, exact=launch.exact and bool(launch.resume.manifest.get("exact", True)))
        self.program, self.launch, self.interrupts = program, launch, interrupts
        self.aggregator, self.live = Aggregator(), Aggregator()
        self.instance = Instance(program, launch, lambda: bool(interrupts.reason))
        try:
            if launch.resume is not None:
                checkpoint.load(launch.resume, self.instance, self.aggregator, self.live)
                launch.loaded()
            else:
                for replica in self.instance.replicas:
                    getattr(replica.role, "start", lambda: None)()
        except BaseException:
            self._close()
            raise

    def go(self) -> Report:
        launch, saving, display = self.launch, self.launch.saving, self.launch.display
        for recorder in self.instance.recorders.values():
            recorder.enter(TURN)
        reason, shown, saved = "", time.monotonic(), time.monotonic()
        replicas = [r for r in self.instance.replicas if r.unfinished]  # the end of a sweep that was cut short
        try:
            while not reason:
                self._sweep(replicas or self.instance.replicas)
                replicas = []
                reason = self.interrupts.reason or launch.stop.reached(self.aggregator)
                now = time.monotonic()
                if launch.publication is not None:
                    launch.publication.look(lambda: self._report(""))
                if display is not None and now - shown >= launch.interval:
                    shown = now
                    self._tell([display], self.live)
                if saving is not None and (reason or 0 < saving.every <= now - saved):
                    # before the last row, which a run that goes on would not have
                    checkpoint.save(saving, self.instance, self.aggregator)
                    saved = time.monotonic()
        except Stopped:
            reason = "stopped"
        except Diverged as error:
            raise Diverged(f"{error}. {dumps.save(error, launch.run_dir)}".rstrip()) from error
        except (ShoalError, OSError, MemoryError):
            raise
        except Exception as error:
            if launch.resume is None:
                raise
            log.info("failed", exc_info=True)  # into the log, which nobody is shown
            raise CannotGoOn(launch.resume, error) from error
        finally:
            self._drain()
            self._close()
            if self.aggregator.changed:
                self._tell(launch.observers, self.aggregator)
            if display is not None:
                self._tell([display], self.live)
        return self._report(reason)

    def _close(self) -> None:
        for replica in self.instance.replicas:
            getattr(replica.role, "close", lambda: None)()

    def _report(self, reason: str) -> Report:
        channels = self.instance.channels.items()
        params = {name: c.published() for name, c in channels if isinstance(c, Published) and c.version}
        return Report.of(reason, self.aggregator, params)

    def _sweep(self, replicas: Sequence[Replica]) -> None:
        """Step every role whose ports are ready, and report if a row is due."""
        fired = False
        for replica in replicas:
            if replica.ready():
                replica.recorder.enter(OTHER)
                replica.role.step()
                replica.recorder.enter(TURN)
                fired = True
        if not fired:
            raise Deadlock(_describe(self.program.name, self.instance.replicas))
        self._drain()
        due = self.aggregator.steps // ROW_EVERY > self.aggregator.told // ROW_EVERY
        if due and not any(replica.unfinished for replica in replicas):
            self._tell(self.launch.observers, self.aggregator)

    def _drain(self) -> None:
        for name, recorder in self.instance.recorders.items():
            telemetry = recorder.drain()
            self.aggregator.add(name, telemetry)
            if self.launch.display is not None:
                self.live.add(name, telemetry)

    def _tell(self, observers: Sequence[Observer], aggregator: Aggregator) -> None:
        if observers:
            channels = self.instance.channels.items()
            fill = {name: c.fill() for name, c in channels if isinstance(c, (SerialQueue, DividedQueue))}
            snapshot = aggregator.snapshot(fill, memory.used())
            moving = (SerialQueue, DividedQueue, SerialReplay)
            snapshot.moved = {name: c.moved for name, c in channels if isinstance(c, moving)}
            for observer in observers:
                observer.update(snapshot)


def _describe(program: str, replicas: Sequence[Replica]) -> str:
    lines = [f"{program}: deadlock, no role can step; not ready:"]
    lines += [f"  {r.name}[{r.index}]: {', '.join(r.waits_for())}" for r in replicas]
    return "\n".join(lines)
