"""What must cross between nodes, given where each replica of a program runs: plain data, computed from the wiring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from shoal.program import Port, Program
from shoal.shm.layout import Plan

Where = Mapping[tuple[str, int], str]  # (role, index) -> the node that it runs on


@dataclass(frozen=True)
class Route:
    """One channel from one node to another.

    channel: of one that is divided, the part: its ring or store.
    end: queue and replay: the reader there, as the ring numbers it; params: the first reader there; else 0.
    """

    kind: Literal["queue", "params", "board"]
    channel: str
    source: str
    target: str
    end: int = 0


def routes(program: Program, plan: Plan, where: Where) -> list[Route]:
    """Every route that a placement needs, each once. What stays on its node has none."""
    found: dict[Route, None] = {}
    for channel in program.channels.values():
        writers, readers = _ends(program, plan, channel.name, where)
        if channel.divided:
            for number, part in enumerate(plan.divided[channel.name][1]):
                if channel.kind == "queue":
                    found |= {Route("queue", part, source, readers[number]): None for source in writers.values()}
                else:
                    found |= dict.fromkeys(_params(part, writers[number], readers))
        elif channel.kind in ("queue", "replay"):
            count = plan.rings[channel.name].readers
            for writer, source in writers.items():
                reader = writer % count
                found[Route("queue", channel.name, source, readers[reader], reader)] = None
        elif channel.kind == "params":
            ((_, source),) = writers.items()
            found |= dict.fromkeys(_params(channel.name, source, readers))
        elif channel.kind == "board":
            for source in dict.fromkeys(writers.values()):
                for target in dict.fromkeys([*writers.values(), *readers.values()]):
                    found[Route("board", channel.name, source, target)] = None
    return [route for route in found if route.source != route.target]


def _params(name: str, source: str, readers: Mapping[int, str]) -> list[Route]:
    """From the writer of parameters, or of a part of them, to each node that reads them."""
    first: dict[str, int] = {}
    for number, node in sorted(readers.items()):
        first.setdefault(node, number)
    return [Route("params", name, source, node, number) for node, number in first.items()]


def members(program: Program, plan: Plan, channel: str, where: Where) -> dict[int, str]:
    """Number of each writing end of a channel, or of the channel of which this is a part -> its node."""
    return _ends(program, plan, whole(plan, channel), where)[0]


def written(program: Program, plan: Plan, store: str, where: Where) -> str:
    """The node of whoever writes the parameters of a store."""
    writers = members(program, plan, store, where)
    _, parts = plan.divided.get(whole(plan, store), (None, [store]))
    return writers[parts.index(store)]


def whole(plan: Plan, part: str) -> str:
    """The channel of which a ring or a store is a part; itself where it is a whole one."""
    return next((name for name, (_, parts) in plan.divided.items() if part in parts), part)


def apart(program: Program, where: Where) -> set[str]:
    """Channels whose ends are on more than one node."""
    nodes: dict[str, set[str]] = {}
    for role in program.roles:
        for port in role.ports.values():
            for index in range(port.of(role.replicas)):
                nodes.setdefault(port.channel.name, set()).add(where[role.name, index])
    return {channel for channel, found in nodes.items() if len(found) > 1}


def rings(program: Program, plan: Plan, where: Where) -> dict[tuple[str, int], dict[str, bool]]:
    """For each replica: of the reduce channels whose members are on several nodes, whether the next member, to which it
    sends, is on another one."""
    out: dict[tuple[str, int], dict[str, bool]] = {}
    for name in sorted(apart(program, where)):
        if program.channels[name].kind == "reduce":
            nodes = members(program, plan, name, where)
            ((role, _),) = program.ends(program.channels[name], "both")
            for index, node in nodes.items():
                out.setdefault((role.name, index), {})[name] = node != nodes[(index + 1) % len(nodes)]
    return out


def _ends(program: Program, plan: Plan, channel: str, where: Where) -> tuple[dict[int, str], dict[int, str]]:
    """(writing, reading) ends of a channel: number -> node; a member counts as a writer."""
    writers: dict[int, str] = {}
    readers: dict[int, str] = {}
    for role in program.roles:
        for name, port in role.ports.items():
            if port.channel.name == channel:
                ends = readers if port.direction == "read" else writers
                for index in range(port.of(role.replicas)):
                    ends[plan.ends[role.name, name] + index] = where[role.name, index]
    return writers, readers


def is_known_there_alone(port: Port) -> bool:
    """Return whether what a replica has done with a port is lost with its node: which version it has read, which items
    it has taken, the parameters that it changes, the number of what it published last."""
    kind, writes = port.channel.kind, port.direction != "read"
    if kind in ("queue", "replay"):
        return not writes
    return bool(port.lockstep) or kind == "shared" or (kind in ("params", "board") and writes)
