"""Costs: what each role of a system does and how long that takes, at several sizes; measured, or read from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.api import UsageError, spec_nbytes
from shoal.program import Program, RoleSpec
from shoal.records.atomic_write import write_output
from shoal.simulation import Behaviour, Op, Step, Times
from shoal.types import Values

FORMAT = 1
Network = dict[str, list[int]]  # parameter -> shape
Sized = tuple[float, list[Behaviour]]  # a role's size, and what its replicas do there


@dataclass
class Costs:
    """system, env: of what; network: shapes of all parameters; cores, processor: where it was measured; busy: speed of
    a core while all work, relative to one that works alone; roles: by size, see ``size``."""

    system: str
    env: str
    network: Network
    cores: int
    processor: str
    busy: float
    roles: dict[str, list[Sized]]

    def behaviours(self, program: Program) -> dict[str, list[Behaviour]]:
        """What the roles of a program do, between and beyond the sizes that were measured by a straight line.
        UsageError for a program of other roles, or another network."""
        check_network(self.network, network(program))
        out = {}
        for role in program.roles:
            if role.background:
                continue
            if role.name not in self.roles:
                known = ", ".join(self.roles)
                raise UsageError(f"these costs say nothing of role '{role.name}': they are of {known}")
            out[role.name] = at_size(self.roles[role.name], size(program, role))
            check_ports(role, out[role.name][0])
        return out

    def write(self, path: Path) -> None:
        facts = {**vars(self), "format": FORMAT, "roles": {}}
        for name, found in self.roles.items():
            facts["roles"][name] = [{"size": s, "behaviours": [_packed(b) for b in known]} for s, known in found]
        write_output(path, json.dumps(facts, separators=(",", ":")) + "\n")

    def check(self, system: str, env: str, where: Path) -> None:
        """UsageError unless these are the costs of such a system in such an environment."""
        for what, mine, asked in (("system", self.system, system), ("environment", self.env, env)):
            if mine != asked:
                raise UsageError(f"{where} has the costs of the {what} {mine}, not of {asked}")


def size(program: Program, role: RoleSpec) -> float:
    """Bytes that a replica's step has to do with: items that it puts, batches that it gets, what it keeps itself. Its
    work grows with them."""
    total = float(role.memory)
    for port in role.ports.values():
        channel = port.channel
        if channel.kind not in ("queue", "replay"):
            continue
        item = spec_nbytes(channel.spec)
        if port.direction == "write":
            total += item
        elif channel.kind == "queue":
            share = program.readers(channel)
            total += item * (program.writers(channel) / share if port.each else port.count) / _parts(channel, share)
        else:
            total += item * port.count / max(1, channel.table.items_per_insert(channel.spec) if channel.table else 1)
    return total


def _parts(channel: Any, readers: int) -> int:
    return readers if channel.divided else 1


def network(program: Program) -> Network:
    """The shapes of all parameters."""
    kinds = ("params", "shared")
    return {
        f"{channel.name}/{name}": list(f.shape)
        for channel in program.channels.values()
        if channel.kind in kinds
        for name, f in channel.spec.items()
    }


def check_ports(role: RoleSpec, behaviour: Behaviour) -> None:
    """UsageError for costs of a role that had other channels to wait for, such as one learner in place of several."""
    ops = [*behaviour.start, *(op for step in (*behaviour.first, *behaviour.cycle) for op in step.ops)]
    used = {op.port for op in ops if op.port}
    kinds = ("queue", "replay", "reduce")
    missing = {key for key, port in role.ports.items() if port.channel.kind in kinds} - used
    if other := missing or used - role.ports.keys():
        raise UsageError(
            f"these costs are of a role '{role.name}' that was wired otherwise: they disagree on its port "
            f"'{min(other)}'; measure them with the same --learners and shards"
        )


def check_network(known: Mapping[str, Sequence[int]], found: Network) -> None:
    """UsageError for costs of another network."""
    for name in {**known, **found}:
        mine, theirs = (list(n[name]) if name in n else None for n in (known, found))
        if mine != theirs:
            told = [f"{'none' if s is None else tuple(s)}" for s in (mine, theirs)]
            raise UsageError(f"these costs are of another network: of '{name}' they know {told[0]}, found {told[1]}")


def at_size(known: Sequence[Sized], wanted: float) -> list[Behaviour]:
    """Behaviours at a size, from those at the two sizes around it."""
    known = sorted(known, key=lambda one: one[0])
    if len(known) == 1 or any(s == wanted for s, _ in known):
        return next((b for s, b in known if s == wanted), known[0][1])
    above = next((i for i, (s, _) in enumerate(known) if s > wanted), len(known) - 1)
    (small, first), (large, second) = known[max(0, above - 1)], known[max(1, above)]
    share = (wanted - small) / (large - small)
    return [between(a, second[min(i, len(second) - 1)], share) for i, a in enumerate(first)]


def between(first: Behaviour, second: Behaviour, share: float) -> Behaviour:
    """``first`` and ``share`` of the way to ``second``; the nearer of the two, if they do other things."""
    if _shape(first) != _shape(second):
        return first if share < 0.5 else second
    cycle = tuple(_between_steps(a, b, share) for a, b in zip(first.cycle, second.cycle, strict=True))
    return replace(first, cycle=cycle, insert=_mixed(first.insert, second.insert, share))


def _shape(behaviour: Behaviour) -> Any:
    return behaviour.regular, [[(op.do, op.port) for op in step.ops] for step in behaviour.cycle]


def _between_steps(first: Step, second: Step, share: float) -> Step:
    def op(a: Op, b: Op) -> Op:
        stale = None if a.stale is None or b.stale is None else _mixed(a.stale, b.stale, share)
        return replace(a, busy=_mixed(a.busy, b.busy, share), idle=_mixed(a.idle, b.idle, share), stale=stale)

    names = {**first.counts, **second.counts}
    counts = {n: _line(first.counts.get(n, 0.0), second.counts.get(n, 0.0), share) for n in names}
    return Step(tuple(op(a, b) for a, b in zip(first.ops, second.ops, strict=True)), counts)


def _mixed(first: Times, second: Times, share: float) -> Times:
    a, b = first.values, second.values
    n = max(len(a), len(b))
    return Times(tuple(_line(a[i * len(a) // n], b[i * len(b) // n], share) for i in range(n)))


def _line(a: float, b: float, share: float) -> float:
    """A point on the line, and beyond its ends no less than in proportion to nothing."""
    return max(a + share * (b - a), 0.0)


def _packed(behaviour: Behaviour) -> Values:
    def times(t: Times) -> list[float]:
        return [float(f"{v:.4g}") for v in t.values]

    def op(o: Op) -> Values:
        out: Values = {"do": o.do}
        if o.do != "work":
            return {**out, "port": o.port}
        out |= {"busy": times(o.busy), "idle": times(o.idle), "phases": dict(o.phases), "cores": o.cores}
        return out if o.stale is None else {**out, "stale": times(o.stale)}

    def steps(found: Sequence[Step]) -> list[Values]:
        return [{"ops": [op(o) for o in s.ops], "counts": dict(s.counts)} for s in found]

    return {
        "cycle": steps(behaviour.cycle), "first": steps(behaviour.first), "start": [op(o) for o in behaviour.start],
        "insert": times(behaviour.insert), "steps_per_update": behaviour.steps_per_update,
        "regular": behaviour.regular, "preempt": behaviour.preempt,
    }  # fmt: skip
