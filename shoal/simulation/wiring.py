"""A program as the simulator has it: channels without data, ends that count, and replicas in their places."""

from __future__ import annotations

from random import Random
from typing import Any

from shoal.api import UsageError, spec_nbytes
from shoal.extras import pip_install
from shoal.program import Channel, Port, Program, RoleSpec
from shoal.simulation.behaviour import Behaviours
from shoal.simulation.channels import Queue, QueueReader, QueueWriter, ReplayReader
from shoal.simulation.groups import Board, Params, ParamsReader, Reduce, Reducer, Shared, SharedEnd
from shoal.simulation.machine import Machine
from shoal.simulation.placement import place
from shoal.simulation.processors import Network, Processors
from shoal.simulation.replica import Phases, Replica


class Wiring:
    """channels: by name; replicas: in declared order; waits: (role, port) -> the phase of waiting for its channel."""

    def __init__(self, program: Program, behaviours: Behaviours, machine: Machine, seed: int) -> None:
        try:
            import simpy
        except ImportError:
            raise UsageError(f"the simulator needs SimPy: {pip_install('plan')}") from None
        self.env = simpy.Environment()
        self._program, self._tree = program, machine.reduce == "tree"
        self.places, nodes = place(program, machine), machine.nodes
        self.network = Network(self.env, [n.bandwidth for n in nodes], [n.latency for n in nodes])
        self.processors = [Processors(self.env, n.cores, n.speed, n.busy) for n in nodes]
        self._given = {d: dict.fromkeys(program.channels, 0) for d in ("write", "read", "both")}
        self.channels = {name: self._channel(channel) for name, channel in program.channels.items()}
        self.waits: dict[tuple[str, str], Phases] = {
            (role.name, key): ((f"wait:{port.channel.name}", 1.0),)
            for role in program.roles
            for key, port in role.ports.items()
        }
        self.replicas: list[Replica] = []
        for role in program.roles:
            if not role.background:  # it rests whenever it has had a hundredth of the machine
                self._add(role, behaviours, seed)

    def _nodes(self, channel: Channel, direction: str) -> list[int]:
        """The nodes of a channel's ends, in order."""
        ends = self._program.ends(channel, direction)
        return [self.places[role.name, i] for role, port in ends for i in range(port.of(role.replicas))]

    def _channel(self, channel: Channel) -> Any:
        writers, readers = self._nodes(channel, "write"), self._nodes(channel, "read")
        if channel.lag:
            raise UsageError(f"channel '{channel.name}' delays versions by {channel.lag}, as serial runs alone do")
        if channel.kind in ("queue", "replay"):
            return Queue(self.env, self.network, channel, writers, readers)
        if channel.kind == "params":
            return Params(self.env, self.network, channel, writers, readers)
        if channel.kind == "reduce":
            between, nbytes = sorted({*writers}), spec_nbytes(channel.spec)
            return Reduce(self.env, len(writers), lambda: self.network.all_reduce(between, nbytes, self._tree))
        if channel.kind == "board":
            return [0] * len(writers)
        if channel.kind == "constant":
            return None
        if channel.kind == "shared":
            return Shared(self.env, len(writers))
        raise UsageError(f"the simulator does not know channel '{channel.name}', which is a {channel.kind}")

    def _add(self, role: RoleSpec, behaviours: Behaviours, seed: int) -> None:
        known = behaviours.get(role.name)
        if not known:
            raise UsageError(f"the simulator does not know what role '{role.name}' of {self._program.name} does")
        for index in range(role.replicas):
            behaviour, node = known[min(index, len(known) - 1)], self.places[role.name, index]
            replica = Replica(role.name, index, node, behaviour, Random(f"{seed}/{role.name}/{index}"))
            for key, port in role.ports.items():
                if index < port.of(role.replicas) and port.channel.kind != "constant":
                    replica.ends[key] = self._end(port, node)
            self.replicas.append(replica)
        for behaviour in known:
            if not any(step.ops for step in behaviour.cycle):
                raise UsageError(f"role '{role.name}' does nothing in its steps")
            for op in (*behaviour.start, *(o for s in (*behaviour.first, *behaviour.cycle) for o in s.ops)):
                self._check(role, op.port, op.do)

    def _check(self, role: RoleSpec, key: str, do: str) -> None:
        if do == "work":
            return
        if key not in role.ports:
            raise UsageError(f"role '{role.name}' has no port '{key}', found {', '.join(role.ports) or 'none'}")
        end = next(r.ends.get(key) for r in self.replicas if r.role == role.name)
        if end is not None and not hasattr(end, do):
            kind = role.ports[key].channel.kind
            raise UsageError(f"the simulator does not know how role '{role.name}' can {do} by '{key}', a {kind}'s end")

    def _end(self, port: Port, node: int) -> Any:
        channel, direction = port.channel, port.direction
        target, number = self.channels[channel.name], self._given[direction][channel.name]
        self._given[direction][channel.name] += 1
        if channel.kind in ("queue", "replay"):
            if direction == "write":
                return QueueWriter(target, number)
            return (QueueReader if channel.kind == "queue" else ReplayReader)(target, port, number)
        if channel.kind == "params":
            return target.stores[number] if direction == "write" else ParamsReader(target, port.lockstep, node)
        member = None if direction == "read" else number
        if channel.kind == "board":
            return Board(target, member)
        return SharedEnd(target, member) if channel.kind == "shared" else Reducer(target, number)
