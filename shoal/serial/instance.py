"""A program built in this process: its channels, and its replicas with the ends they were given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shoal.api import GROUPS, Context, Role
from shoal.metering.recorder import Recorder, recorder as recorder_of
from shoal.program import Program, RoleSpec
from shoal.runtime.launch import Launch
from shoal.runtime.seeds import LAUNCH, life_seed, table_name, table_seed
from shoal.serial import generators, groups
from shoal.serial.channels import (
    QueueReader,
    ReplayReader,
    SerialConstant,
    SerialParams,
    SerialParamsReader,
    SerialQueue,
    SerialReplay,
    SerialWriter,
)
from shoal.serial.divided import DividedParams, DividedParamsReader, DividedQueue, DividedWriter

Divided = DividedQueue | DividedParams
Shared = SerialQueue | SerialReplay | SerialParams | SerialConstant | groups.Group | Divided  # between a channel's ends
End = (
    SerialWriter | DividedWriter | QueueReader | ReplayReader | SerialParams | SerialParamsReader | SerialConstant
    | groups.End
)  # fmt: skip
Published = SerialParams | DividedParams | groups.SerialShared  # channels whose parameters are the result of a run


@dataclass(frozen=True)
class Replica:
    """One replica of a role, with the ends it was given."""

    name: str
    index: int
    role: Role
    ends: Mapping[str, End]
    recorder: Recorder

    def ready(self) -> bool:
        """Return whether all its ends are ready, and it has something to do."""
        due: Callable[[], bool] = getattr(self.role, "due", _always)
        would_wait: Callable[[], bool] = getattr(self.role, "would_wait", _never)
        return all(end.ready() for end in self.ends.values()) and due() and not would_wait()

    @property
    def unfinished(self) -> bool:
        """Whether its last step was cut short, in this launch or before it was resumed."""
        return bool(getattr(self.role, "unfinished", False))

    def waits_for(self) -> list[str]:
        """The ports that are not ready."""
        return [key for key, end in self.ends.items() if not end.ready()]


class Instance:
    """``program`` as ``launch`` has it: every replica, in declared order, with a seed of its own.

    channels: by name; recorders: one for each role, as its replicas take turns; exact, interrupted: as ``Context`` has
    them.
    """

    def __init__(self, program: Program, launch: Launch, interrupted: Callable[[], bool] = lambda: False) -> None:
        self.program, self._launch, self._interrupted = program, launch, interrupted
        # a launch that does not go on exactly starts new episodes: they are another life's, as after a restart
        self._generation = launch.saving.launch if launch.saving is not None and not launch.exact else 0
        self._first_life = LAUNCH * self._generation
        self.exact = launch.exact and (launch.saving is not None or launch.resume is not None)
        self.channels = {c.name: self._channel(program, c.name, launch.seed) for c in program.channels.values()}
        generators.seed(launch.seed)
        self.recorders = {role.name: recorder_of(launch.spans) for role in program.roles}
        self.replicas: list[Replica] = []
        self._writers = dict.fromkeys(self.channels, 0)  # write ends given so far
        for role in program.roles:
            for index in range(role.replicas):
                self.replicas.append(self._replica(role, index))

    def steps(self) -> int:
        """Environment steps of all replicas."""
        return sum(recorder.totals.get("env_steps", 0) for recorder in self.recorders.values())

    @staticmethod
    def _channel(program: Program, name: str, seed: int) -> Shared:
        channel = program.channels[name]
        writers, readers = program.writers(channel), program.readers(channel)
        if channel.divided:
            queue = channel.kind == "queue"
            return DividedQueue(channel, writers, readers) if queue else DividedParams(channel, writers)
        if channel.kind == "queue":
            return SerialQueue(channel, writers)
        if channel.kind == "replay":
            return SerialReplay(channel, writers, [table_seed(seed, table_name(name, r), 0) for r in range(readers)])
        if channel.kind in GROUPS:
            return groups.channel(channel, writers)
        return SerialConstant(channel) if channel.kind == "constant" else SerialParams(channel)

    def _replica(self, role: RoleSpec, index: int) -> Replica:
        launch, recorder = self._launch, self.recorders[role.name]
        context = Context(
            role.name,
            index,
            role.replicas,
            self._generation,
            life_seed(launch.seed, self._first_life + len(self.replicas)),
            recorder,
            total_steps=launch.stop.steps,
            run_dir=launch.run_dir,
            exact=self.exact,
            steps=self.steps,
            interrupted=self._interrupted,
        )
        keys = [key for key, port in role.ports.items() if index < port.of(role.replicas)]
        ends = {key: self._end(role, key, index, recorder) for key in keys}
        given = {key: ends.get(key) for key in role.ports}
        return Replica(role.name, index, role.make(context, **given), ends, recorder)

    def _end(self, role: RoleSpec, key: str, index: int, recorder: Recorder) -> End:
        port = role.ports[key]
        channel = self.channels[port.channel.name]
        if isinstance(channel, SerialConstant):
            return channel
        if isinstance(channel, groups.Group):
            number = None if port.direction == "read" else self._writers[port.channel.name]
            self._writers[port.channel.name] += number is not None
            return groups.end(channel, number)
        if isinstance(channel, DividedParams):
            return channel.parts[index] if port.direction == "write" else DividedParamsReader(channel)
        if isinstance(channel, SerialParams):
            return channel if port.direction == "write" else SerialParamsReader(channel, port)
        if port.direction == "write":
            number = self._writers[port.channel.name]
            self._writers[port.channel.name] += 1
            if isinstance(channel, DividedQueue):
                ends = [SerialWriter(part, number, recorder, self._generation) for part in channel.parts]
                return DividedWriter(channel, ends)
            return SerialWriter(channel, number, recorder, self._generation)
        if isinstance(channel, SerialReplay):
            return ReplayReader(channel, port, recorder, index)
        return QueueReader(channel.parts[index] if isinstance(channel, DividedQueue) else channel, port)


def _always() -> bool:
    return True


def _never() -> bool:
    return False
