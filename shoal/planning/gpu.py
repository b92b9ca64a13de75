"""A GPU in a simulation: seconds of learning and inference by batch, in place of those measured on a core."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace

from shoal.program import Program, RoleSpec
from shoal.simulation import Behaviour, Op, Step, Times

Table = Sequence[tuple[float, float]]  # (environment steps in a batch, seconds)


def on_gpu(
    program: Program, behaviours: dict[str, list[Behaviour]], gpu: Mapping[str, Table] | None
) -> dict[str, list[Behaviour]]:
    """Behaviours whose phases ``learn`` and ``inference`` take what ``gpu`` says, and no core meanwhile."""
    if not gpu:
        return behaviours
    out = {}
    for role in program.roles:
        known = behaviours.get(role.name, [])
        learned, (length, envs) = batch(program, role), unroll(role)
        seconds = {}
        if "learn" in gpu and learned:
            seconds["learn"] = at(gpu["learn"], learned)
        if "inference" in gpu and envs:
            seconds["inference"] = length * at(gpu["inference"], envs)
        out[role.name] = [_moved(b, seconds) for b in known]
    return {**behaviours, **out}


def at(table: Table, rows: float) -> float:
    """Seconds of a batch of so many rows, between and beyond those in the table by straight lines."""
    if len(table) == 1:
        return table[0][1] * rows / table[0][0]
    i = min(max(1, bisect_left([n for n, _ in table], rows)), len(table) - 1)
    (a, x), (b, y) = table[i - 1], table[i]
    return max(0.0, x + (y - x) * (rows - a) / (b - a))


def batch(program: Program, role: RoleSpec) -> float:
    """Environment steps in a batch that a role gets; 0: none."""
    for port in role.ports.values():
        channel = port.channel
        if port.direction == "read" and channel.kind in ("queue", "replay") and "reward" in channel.spec:
            length, envs = channel.spec["reward"].shape[:2]
            if channel.kind == "replay":
                return float(port.count)
            writers = program.writers(channel) / program.readers(channel)
            return length * envs * (writers if port.each else port.count)
    return 0.0


def unroll(role: RoleSpec) -> tuple[int, int]:
    """(steps, environments) of what a role sends; zeros: nothing of that kind."""
    for port in role.ports.values():
        if port.direction == "write" and port.channel.kind in ("queue", "replay") and "reward" in port.channel.spec:
            length, envs = port.channel.spec["reward"].shape[:2]
            return int(length), int(envs)
    return 0, 0


def _moved(behaviour: Behaviour, seconds: Mapping[str, float]) -> Behaviour:
    for phase, takes in seconds.items():
        total = sum(_part(op, phase) for step in behaviour.cycle for op in step.ops)
        if total > 0:
            steps = tuple(
                Step(tuple(_op(op, phase, takes * _part(op, phase) / total) for op in step.ops), step.counts)
                for step in behaviour.cycle
            )
            behaviour = replace(behaviour, cycle=steps)
    return behaviour


def _part(op: Op, phase: str) -> float:
    """Mean seconds of a phase in a piece of work."""
    return op.busy.mean * dict(op.phases).get(phase, 0.0)


def _op(op: Op, phase: str, seconds: float) -> Op:
    share = dict(op.phases).get(phase, 0.0)
    if not share:
        return op
    rest = 1.0 - share
    left, idle = op.busy.mean * rest, op.idle.mean + seconds
    whole = left + idle
    phases = (
        tuple((k, (seconds if k == phase else v * op.busy.mean) / whole) for k, v in op.phases) if whole else op.phases
    )
    stale = None if op.stale is None else op.stale.times(rest)
    return replace(op, busy=op.busy.times(rest), stale=stale, idle=Times((idle,)), phases=phases, cores=1)
