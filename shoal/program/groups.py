"""Channels between equals in a program: what makes them valid, how many bytes they take, how they are described."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from shoal.api import GROUPS, WiringError, spec_nbytes
from shoal.program.wiring import Channel, Port, RoleSpec
from shoal.words import counted

ROUNDS = 2  # items of a reduce channel that each replica keeps: of the round that it reads, and of the next
DRAFTS = 2  # copies of each row of a board: one is read while the other is written


class Topology(Protocol):
    """As much of a program as is looked at here."""

    name: str

    def ends(self, channel: Channel, direction: str) -> list[tuple[RoleSpec, Port]]: ...
    def writers(self, channel: Channel) -> int: ...


def check(program: Topology, channel: Channel) -> None:
    """WiringError unless ``channel`` is wired as its kind wants it."""
    where = f"{program.name}: channel '{channel.name}'"
    both = program.ends(channel, "both")
    if channel.kind not in GROUPS:
        if both:
            raise WiringError(f"{where} is a {channel.kind}, so role '{both[0][0].name}' cannot be a member of it")
    elif channel.kind == "reduce":
        _check_reduce(program, channel, where)
    elif channel.kind == "shared":
        if any(port.lockstep for _, port in program.ends(channel, "read")):
            raise WiringError(f"{where} changes with every step of every worker: no reader can wait for each version")
        if channel.rule is None:
            raise WiringError(f"{where} has no rule by which a gradient moves its parameters")
        if not both or any(port.direction == "write" for _, port in program.ends(channel, "write")):
            raise WiringError(f"{where} needs members, which copy its parameters and add to them, and has none "
                              "or has writers")  # fmt: skip
        if clash := channel.spec.keys() & channel.rule.statistics(channel.spec).keys():
            raise WiringError(f"{where} and its rule both have a field '{min(clash)}'")


def _check_reduce(program: Topology, channel: Channel, where: str) -> None:
    ends = program.ends(channel, "write") + program.ends(channel, "read")
    if len({role.name for role, _ in ends}) != 1 or any(port.direction != "both" for _, port in ends) or len(ends) != 2:
        raise WiringError(f"{where} is a reduce: exactly one role must be its member, by one port")
    ((role, _),) = program.ends(channel, "both")
    if role.on_failure != "stop":
        raise WiringError(
            f"{where} joins the replicas of role '{role.name}', which would wait for one that failed; "
            f"its on_failure is '{role.on_failure}', expected 'stop'"
        )
    for name, field in channel.spec.items():
        kind = np.dtype(field.dtype).kind
        if kind not in ("f" if channel.mean else "fiu"):
            what = "averages" if channel.mean else "adds"
            raise WiringError(f"{where} {what} its items, but field '{name}' is {field.dtype}")


def nbytes(program: Topology, channel: Channel) -> int:
    """Bytes that a reduce, board or shared channel holds."""
    item = spec_nbytes(channel.spec)
    if channel.kind == "reduce":
        return item * ROUNDS * (program.writers(channel) + 1)
    if channel.kind == "board":
        return item * DRAFTS * program.writers(channel)
    assert channel.rule is not None
    return item + spec_nbytes(channel.rule.statistics(channel.spec))


def lines(program: Topology, channel: Channel) -> list[str]:
    """Return how a picture describes the use of such a channel."""
    members = program.writers(channel)
    if channel.kind == "reduce":
        return [f"{'mean' if channel.mean else 'sum'} over {counted(members, 'replica')}"]
    if channel.kind == "board":
        return [f"{counted(members, 'row')}, the latest of each wins"]
    return [f"changed in place by {counted(members, 'worker')}, without a lock"]
