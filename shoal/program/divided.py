"""Divided channels in a program: what makes them valid, and the plain channels that their parts are."""

from __future__ import annotations

from dataclasses import replace

from shoal.api import PART, Field, WiringError, bounds, spec_size
from shoal.program.groups import Topology
from shoal.program.wiring import Channel
from shoal.words import counted


def owners(program: Topology, channel: Channel) -> int:
    """Replicas that each have a part: the readers of a queue, the writers of parameters."""
    return sum(role.replicas for role, _ in program.ends(channel, "read" if channel.kind == "queue" else "write"))


def parts(channel: Channel, count: int) -> list[Channel]:
    """One channel for each of ``count`` parts, called NAME/0, NAME/1, ..."""
    if channel.kind == "params":
        cut = bounds(spec_size(channel.spec), count, channel.divided)
        specs = [{PART: Field((end - begin,), axis=0)} for begin, end in cut]
    else:
        cuts = {name: bounds(f.shape[0], count, channel.divided) for name, f in channel.spec.items()}
        specs = [
            {n: replace(f, shape=(cuts[n][k][1] - cuts[n][k][0], *f.shape[1:])) for n, f in channel.spec.items()}
            for k in range(count)
        ]
    return [replace(channel, name=f"{channel.name}/{k}", spec=spec, divided=0) for k, spec in enumerate(specs)]


def check(program: Topology, channel: Channel) -> None:
    """WiringError unless a divided channel is wired as it should be."""
    where = f"{program.name}: channel '{channel.name}'"
    if channel.kind not in ("queue", "params"):
        raise WiringError(f"{where} is a {channel.kind}, which cannot be divided; a queue or parameters can")
    direction = "read" if channel.kind == "queue" else "write"
    owning, reading = program.ends(channel, direction), program.ends(channel, "read")
    if len(owning) != 1 or owning[0][1].first:
        raise WiringError(f"{where} is divided, so exactly one role must {direction} it, with all of its replicas")
    if any(port.each or port.lockstep for _, port in reading):
        raise WiringError(f"{where} is divided: it can be read neither in lockstep nor one of each writer")
    count = owning[0][0].replicas
    if channel.kind == "params":
        if wrong := [f"'{name}' is {f.dtype}" for name, f in channel.spec.items() if f.dtype != "float32"]:
            raise WiringError(f"{where} is divided, so all of it must be float32, but {wrong[0]}")
        _check_size(where, "parameters", spec_size(channel.spec), count, channel.divided)
        return
    for name, f in channel.spec.items():
        if not f.shape:
            raise WiringError(f"{where} is divided along the first axis of its fields, but '{name}' has none")
        _check_size(where, f"'{name}'", f.shape[0], count, channel.divided)


def _check_size(where: str, what: str, length: int, count: int, unit: int) -> None:
    if -(-length // unit) < count:
        cut = f" at multiples of {unit}" if unit > 1 else ""
        raise WiringError(f"{where} is divided{cut}, but {what} of length {length} cannot be shared by {count}")


def line(program: Topology, channel: Channel) -> str:
    """Return how a picture describes the parts."""
    count = owners(program, channel)
    whose = "one for each reader" if channel.kind == "queue" else "one of each writer"
    return f"cut into {counted(count, 'part')}, {whose}"
