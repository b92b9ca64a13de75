"""The serial runtime: one process, roles swept in declared order, bit-for-bit deterministic.

A role fires when all its ports are ready; a sweep in which nothing fires is a deadlock, and is named.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.api import (
    Arrays,
    Batch,
    Channel,
    Context,
    Deadlock,
    Diverged,
    Port,
    Report,
    Role,
    Stop,
    Stopped,
    Tensors,
    UsageError,
)
from shoal.data.limiter import RateLimiter
from shoal.program import Program
from shoal.runtime import dumps, memory
from shoal.runtime.aggregator import Aggregator, Observer
from shoal.runtime.metrics import OTHER, Recorder, recorder
from shoal.runtime.seeds import replica_seed

ROW_EVERY = 1_000  # environment steps between two rows of the metric files: a count, so that runs repeat exactly
TURN = "wait:turn"  # the phase of a role while others step


class SerialQueue:
    """A bounded first-in-first-out queue per writer."""

    def __init__(self, channel: Channel, writers: int):
        self.channel = channel
        self.queues: list[deque[tuple[int, Arrays]]] = [deque() for _ in range(writers)]  # (version, item)
        self.turn = 0

    def fill(self) -> float:
        return sum(map(len, self.queues)) / (len(self.queues) * self.channel.capacity)


class SerialWriter:
    """Write end of a queue or replay channel for one writer."""

    def __init__(self, target: SerialQueue | SerialReplay, index: int, metrics: Recorder):
        self.target, self.index, self.metrics = target, index, metrics

    def ready(self) -> bool:
        if isinstance(self.target, SerialReplay):
            return self.target.can_insert()
        return len(self.target.queues[self.index]) < self.target.channel.capacity

    def put(self, items: Arrays, version: int = 0) -> None:
        check_item(self.target.channel, items)
        with self.slot(version) as slot:
            for name, array in slot.items():
                array[...] = items[name]

    @contextmanager
    def slot(self, version: int = 0) -> Iterator[Arrays]:
        if not self.ready():
            raise Deadlock(f"put into the full channel '{self.target.channel.name}': a role may put once per step")
        spec = self.target.channel.spec
        arrays = {name: np.empty(f.shape, f.dtype) for name, f in spec.items()}
        yield arrays
        if isinstance(self.target, SerialReplay):
            with self.metrics.phase("insert"):
                self.target.table.add(arrays, self.index, 0)
        else:
            self.target.queues[self.index].append((version, arrays))


class QueueReader:
    """Read end of a queue: ``count`` items joined along each field's batch axis."""

    def __init__(self, queue: SerialQueue, port: Port):
        self.queue, self.port = queue, port

    def ready(self) -> bool:
        if self.port.each:
            return all(self.queue.queues)
        return sum(map(len, self.queue.queues)) >= self.port.count

    def get(self) -> Batch:
        if not self.ready():
            raise Deadlock(f"get from the empty channel '{self.queue.channel.name}': a role may get once per step")
        queues = self.queue.queues
        items = []
        if self.port.each:
            items = [q.popleft() for q in queues]
        while len(items) < (0 if self.port.each else self.port.count):
            if queues[self.queue.turn]:
                items.append(queues[self.queue.turn].popleft())
            self.queue.turn = (self.queue.turn + 1) % len(queues)
        versions, arrays = zip(*items, strict=True)
        joined = {
            name: torch.from_numpy(np.concatenate([a[name] for a in arrays], f.axis) if len(arrays) > 1 else a0)
            for (name, f), a0 in zip(self.queue.channel.spec.items(), arrays[0].values(), strict=True)
        }
        return Batch(joined, versions=versions)

    def reprioritise(self, keys: torch.Tensor, priorities: torch.Tensor) -> None:
        raise UsageError(f"channel '{self.queue.channel.name}' is a queue: its items have no priorities")


class SerialReplay:
    """A replay channel: writers insert straight into the table, as the ratio allows."""

    def __init__(self, channel: Channel, writers: int, seed: int):
        assert channel.table is not None
        self.channel = channel
        self.table = channel.table.build(channel.spec, writers, seed)
        steps, envs = channel.spec["reward"].shape
        self.limiter = RateLimiter(channel.ratio, steps * envs)

    def can_insert(self) -> bool:
        return self.limiter.can_insert(self.table.inserted, self.table.sampled)


class ReplayReader:
    """Read end of a replay channel."""

    def __init__(self, replay: SerialReplay, port: Port, metrics: Recorder):
        self.replay, self.port, self.metrics = replay, port, metrics

    def ready(self) -> bool:
        table = self.replay.table
        return self.replay.limiter.can_sample(table.size, table.inserted, table.sampled, self.port.count)

    def get(self) -> Batch:
        replay = self.replay
        with self.metrics.phase("sample"):
            batch = replay.table.sample(self.port.count)
        if (ratio := replay.limiter.samples_per_insert(replay.table.inserted, replay.table.sampled)) is not None:
            self.metrics.record("samples_per_insert", ratio)
        return batch

    def reprioritise(self, keys: torch.Tensor, priorities: torch.Tensor) -> None:
        self.replay.table.reprioritise(keys.numpy(), priorities.float().cpu().numpy())


class SerialParams:
    """Versioned parameters; keeps ``lag`` old versions so that staleness can be reproduced."""

    def __init__(self, channel: Channel):
        self.channel = channel
        self.version = 0
        self.kept: deque[tuple[int, Tensors]] = deque(maxlen=channel.lag + 1)

    def ready(self) -> bool:
        return True

    def publish(self, params: Tensors) -> int:
        self.version += 1
        self.kept.append((self.version, {k: v.detach().cpu().clone() for k, v in params.items()}))
        return self.version


class SerialParamsReader:
    """Read end of a params channel."""

    def __init__(self, store: SerialParams, port: Port):
        self.store, self.port = store, port
        self.seen = 0

    def ready(self) -> bool:
        if not self.store.kept:
            return False
        return not self.port.lockstep or self.store.kept[0][0] > self.seen

    def latest(self, newer_than: int = -1) -> tuple[int, Tensors] | None:
        if not self.ready():
            raise Deadlock(f"no new version on channel '{self.store.channel.name}'")
        version, params = self.store.kept[0]
        self.seen = version
        return None if version <= newer_than else (version, params)

    def newest(self) -> int:
        return self.store.version


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
    ) -> Report:
        """Run ``program`` until ``stop``; raises Deadlock if no role can step.

        ``observers`` are told at fixed counts of steps, so that what they write repeats exactly; ``display``
        every ``interval`` seconds.
        """
        program.validate()
        aggregator, live = Aggregator(), Aggregator()
        backs: dict[str, Any] = {}
        for channel in program.channels.values():
            if channel.kind == "queue":
                backs[channel.name] = SerialQueue(channel, program.writers(channel))
            elif channel.kind == "replay":
                table_seed = replica_seed(seed, channel.name, 0, 0)
                backs[channel.name] = SerialReplay(channel, program.writers(channel), table_seed)
            else:
                backs[channel.name] = SerialParams(channel)
        recorders = {role.name: recorder(self.spans) for role in program.roles}  # its replicas take turns
        replicas = self._build(program, backs, recorders, seed, stop, run_dir)
        for _, role, _, _ in replicas:
            getattr(role, "start", lambda: None)()
        for clock in recorders.values():
            clock.enter(TURN)

        def drain() -> None:
            for name, clock in recorders.items():
                telemetry = clock.drain()
                aggregator.add(name, telemetry)
                if display is not None:
                    live.add(name, telemetry)

        def fill() -> dict[str, float]:
            return {n: b.fill() for n, b in backs.items() if hasattr(b, "fill")}

        reason, last = "", time.monotonic()
        try:
            while not reason:
                fired = False
                for _, role, ports, clock in replicas:
                    if all(p.ready() for p in ports.values()) and getattr(role, "due", _always)():
                        clock.enter(OTHER)
                        role.step()
                        clock.enter(TURN)
                        fired = True
                if not fired:
                    raise Deadlock(_describe(program.name, replicas))
                rows = aggregator.steps // ROW_EVERY
                drain()
                reason = aggregator.ended(stop)
                if aggregator.steps // ROW_EVERY > rows:
                    _tell(observers, aggregator, fill())
                if display is not None and time.monotonic() - last >= interval:
                    last = time.monotonic()
                    _tell([display], live, fill())
        except Stopped:
            reason = "stopped"
        except KeyboardInterrupt:
            reason = "interrupted"
        except Diverged as error:
            raise Diverged(f"{error}. {dumps.save(error, run_dir)}".rstrip()) from error
        finally:
            drain()
            for _, role, _, _ in replicas:
                getattr(role, "close", lambda: None)()
            if aggregator.changed:
                _tell(observers, aggregator, fill())
            if display is not None:
                _tell([display], live, fill())
        return Report(
            reason=reason,
            steps=aggregator.steps,
            updates=aggregator.updates,
            seconds=aggregator.seconds,
            episode_return=aggregator.episode_return,
            episodes=aggregator.episodes,
            params={name: b.kept[-1][1] for name, b in backs.items() if isinstance(b, SerialParams) and b.kept},
        )

    def _build(
        self,
        program: Program,
        backs: dict[str, Any],
        recorders: dict[str, Recorder],
        seed: int,
        stop: Stop,
        run_dir: Path | None,
    ) -> list[tuple[str, Role, dict[str, Any], Recorder]]:
        """Construct every role, in declared order, and its ports."""
        replicas: list[tuple[str, Role, dict[str, Any], Recorder]] = []
        next_writer = dict.fromkeys(backs, 0)

        def steps() -> int:
            return sum(recorder.totals.get("env_steps", 0) for recorder in recorders.values())

        for spec in program.roles:
            for index in range(spec.replicas):
                clock = recorders[spec.name]
                ctx = Context(
                    spec.name,
                    index,
                    spec.replicas,
                    0,
                    replica_seed(seed, spec.name, index, 0),
                    clock,
                    total_steps=stop.steps,
                    run_dir=run_dir,
                    steps=steps,
                )
                ports: dict[str, Any] = {}
                for key, port in spec.ports.items():
                    back = backs[port.channel.name]
                    if isinstance(back, SerialParams):
                        ports[key] = back if port.direction == "write" else SerialParamsReader(back, port)
                    elif port.direction == "write":
                        ports[key] = SerialWriter(back, next_writer[port.channel.name], clock)
                        next_writer[port.channel.name] += 1
                    elif isinstance(back, SerialReplay):
                        ports[key] = ReplayReader(back, port, clock)
                    else:
                        ports[key] = QueueReader(back, port)
                replicas.append((spec.name, spec.make(ctx, **ports), ports, clock))
        return replicas


def _tell(observers: Sequence[Observer], aggregator: Aggregator, fill: dict[str, float]) -> None:
    if observers:
        snapshot = aggregator.snapshot(fill, memory.used())
        for observer in observers:
            observer.update(snapshot)


def _always() -> bool:
    return True


def check_item(channel: Channel, items: Arrays) -> None:
    """Raise UsageError unless ``items`` has the names and shapes of the channel's spec."""
    if items.keys() != channel.spec.keys():
        raise UsageError(f"channel '{channel.name}' has the fields {sorted(channel.spec)}, put got {sorted(items)}")
    for name, f in channel.spec.items():
        if np.shape(items[name]) != f.shape:
            raise UsageError(f"channel '{channel.name}': field '{name}' is {f.shape}, put got {np.shape(items[name])}")


def _describe(program: str, replicas: list[tuple[str, Role, dict[str, Any], Recorder]]) -> str:
    lines = [f"{program}: deadlock, no role can step; not ready:"]
    for index, (name, _, ports, _) in enumerate(replicas):
        waiting = ", ".join(k for k, p in ports.items() if not p.ready())
        lines.append(f"  {name} (replica {index}): {waiting}")
    return "\n".join(lines)
