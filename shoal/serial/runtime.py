"""The serial runtime: one process, roles swept in declared order, bit-for-bit deterministic.

A role fires when all its ports are ready; a sweep in which nothing fires is a deadlock, and is named.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.api import Context, Deadlock, Diverged, Report, Role, RoleSpec, Stop, Stopped
from shoal.metering.aggregator import Aggregator, Observer
from shoal.metering.recorder import OTHER, Recorder, recorder as recorder_of
from shoal.program import Program
from shoal.records import dumps
from shoal.records.checkpoint import Checkpoint, Saving
from shoal.runtime import memory
from shoal.runtime.interrupts import Interrupts
from shoal.runtime.seeds import life_seed, table_seed
from shoal.serial import checkpoint as serial_state
from shoal.serial.channels import (
    QueueReader,
    ReplayReader,
    SerialParams,
    SerialParamsReader,
    SerialQueue,
    SerialReplay,
    SerialWriter,
)

ROW_EVERY = 1_000  # environment steps between two rows of the metric files: a count, so that runs repeat exactly
TURN = "wait:turn"  # the phase of a role while others step


@dataclass(frozen=True)
class Replica:
    """One replica of a role, with the ends it was given."""

    name: str
    index: int
    role: Role
    ports: dict[str, Any]
    recorder: Recorder


class SerialRuntime:
    """Launches a program in this process. spans: how many each role records for a profile."""

    def __init__(self, spans: int = 0) -> None:
        self.spans = spans

    def launch(
        self,
        program: Program,
        *,
        seed: int,
        stop: Stop,
        run_dir: Path | None = None,
        observers: Sequence[Observer] = (),
        display: Observer | None = None,
        interval: float = 0.5,
        saving: Saving | None = None,
        resume: Checkpoint | None = None,
    ) -> Report:
        """Run ``program`` until ``stop``, from its beginning or from where ``resume`` was saved; raises Deadlock if no
        role can step.

        ``observers`` are told at fixed counts of steps, so that what they write repeats exactly; ``display``
        every ``interval`` seconds. Checkpoints lie between two sweeps, and a resumed run is the same bit for bit.
        """
        program.validate()
        exact = saving is not None or resume is not None
        run = _Run(program, seed, stop, run_dir, observers, display, interval, exact, self.spans)
        with Interrupts() as interrupts:
            return run.go(interrupts, saving, resume)


class _Run:
    """One launch."""

    def __init__(
        self,
        program: Program,
        seed: int,
        stop: Stop,
        run_dir: Path | None,
        observers: Sequence[Observer],
        display: Observer | None,
        interval: float,
        exact: bool,
        spans: int,
    ) -> None:
        self.program, self.stop, self.run_dir, self.exact = program, stop, run_dir, exact
        self.observers, self.display, self.interval = observers, display, interval
        self.aggregator, self.live = Aggregator(), Aggregator()
        self.channels: dict[str, SerialQueue | SerialReplay | SerialParams] = {}
        for channel in program.channels.values():
            if channel.kind == "queue":
                self.channels[channel.name] = SerialQueue(channel, program.writers(channel))
            elif channel.kind == "replay":
                drawn_by = table_seed(seed, channel.name, 0)
                self.channels[channel.name] = SerialReplay(channel, program.writers(channel), drawn_by)
            else:
                self.channels[channel.name] = SerialParams(channel)
        serial_state.seed_generators(seed)
        self.recorders = {role.name: recorder_of(spans) for role in program.roles}  # its replicas take turns
        next_writer = dict.fromkeys(self.channels, 0)
        self.replicas: list[Replica] = []
        for role in program.roles:
            for index in range(role.replicas):
                self.replicas.append(self._build(role, index, seed, next_writer))

    def _build(self, spec: RoleSpec, index: int, seed: int, next_writer: dict[str, int]) -> Replica:
        recorder = self.recorders[spec.name]
        ctx = Context(
            spec.name,
            index,
            spec.replicas,
            0,
            life_seed(seed, len(self.replicas)),
            recorder,
            total_steps=self.stop.steps,
            run_dir=self.run_dir,
            exact=self.exact,
            steps=self._steps,
        )
        ports: dict[str, Any] = {}
        for key, port in spec.ports.items():
            channel = self.channels[port.channel.name]
            if isinstance(channel, SerialParams):
                ports[key] = channel if port.direction == "write" else SerialParamsReader(channel, port)
            elif port.direction == "write":
                ports[key] = SerialWriter(channel, next_writer[port.channel.name], recorder)
                next_writer[port.channel.name] += 1
            elif isinstance(channel, SerialReplay):
                ports[key] = ReplayReader(channel, port, recorder)
            else:
                ports[key] = QueueReader(channel, port)
        return Replica(spec.name, index, spec.make(ctx, **ports), ports, recorder)

    def _steps(self) -> int:
        return sum(recorder.totals.get("env_steps", 0) for recorder in self.recorders.values())

    def go(self, interrupts: Interrupts, saving: Saving | None, resume: Checkpoint | None) -> Report:
        if resume is not None:
            serial_state.load(resume, self)
        else:
            for replica in self.replicas:
                getattr(replica.role, "start", lambda: None)()
        for recorder in self.recorders.values():
            recorder.enter(TURN)
        reason, shown, saved = "", time.monotonic(), time.monotonic()
        try:
            while not reason:
                self._sweep()
                reason = interrupts.reason or self.aggregator.ended(self.stop)
                now = time.monotonic()
                if self.display is not None and now - shown >= self.interval:
                    shown = now
                    self._tell([self.display], self.live)
                if saving is not None and (reason or 0 < saving.every <= now - saved):
                    serial_state.save(saving, self)  # before the last row, which a run that goes on would not have
                    saved = time.monotonic()
        except Stopped:
            reason = "stopped"
        except Diverged as error:
            raise Diverged(f"{error}. {dumps.save(error, self.run_dir)}".rstrip()) from error
        finally:
            self._drain()
            for replica in self.replicas:
                getattr(replica.role, "close", lambda: None)()
            if self.aggregator.changed:
                self._tell(self.observers, self.aggregator)
            if self.display is not None:
                self._tell([self.display], self.live)
        run = self.aggregator
        return Report(
            reason=reason,
            steps=run.steps,
            updates=run.updates,
            seconds=run.seconds,
            episode_return=run.episode_return,
            episodes=run.episodes,
            params={name: c.kept[-1][1] for name, c in self.channels.items() if isinstance(c, SerialParams) and c.kept},
        )

    def _sweep(self) -> None:
        """Step every role whose ports are ready, and report if a row is due."""
        fired = False
        for replica in self.replicas:
            if all(p.ready() for p in replica.ports.values()) and getattr(replica.role, "due", _always)():
                replica.recorder.enter(OTHER)
                replica.role.step()
                replica.recorder.enter(TURN)
                fired = True
        if not fired:
            raise Deadlock(_describe(self.program.name, self.replicas))
        rows = self.aggregator.steps // ROW_EVERY
        self._drain()
        if self.aggregator.steps // ROW_EVERY > rows:
            self._tell(self.observers, self.aggregator)

    def _drain(self) -> None:
        for name, recorder in self.recorders.items():
            telemetry = recorder.drain()
            self.aggregator.add(name, telemetry)
            if self.display is not None:
                self.live.add(name, telemetry)

    def _tell(self, observers: Sequence[Observer], aggregator: Aggregator) -> None:
        if observers:
            fill = {name: c.fill() for name, c in self.channels.items() if isinstance(c, SerialQueue)}
            snapshot = aggregator.snapshot(fill, memory.used())
            for observer in observers:
                observer.update(snapshot)


def _always() -> bool:
    return True


def _describe(program: str, replicas: Sequence[Replica]) -> str:
    lines = [f"{program}: deadlock, no role can step; not ready:"]
    for replica in replicas:
        waiting = ", ".join(k for k, p in replica.ports.items() if not p.ready())
        lines.append(f"  {replica.name}[{replica.index}]: {waiting}")
    return "\n".join(lines)
