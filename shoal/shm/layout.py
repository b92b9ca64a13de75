"""Where everything of a program lies in its shared memory: plain data, computed before launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal import api
from shoal.program import Channel, Program, divided
from shoal.program.program import tables_nbytes
from shoal.shm.fields import ALIGN as ALIGN, LINE as LINE, FieldLayout as FieldLayout, fields, up
from shoal.shm.group_layout import GroupLayout, group

STOP = 0  # byte offset of the stop flag
CHECKPOINT = 8  # byte offset of the number of the checkpoint last asked for
COUNTED = ("env_steps", "updates", "actions")  # counters kept in columns 1, 2 ... of a status line, over all lives
MAKING = 1 + len(COUNTED)  # column of a status line: environment steps that are made, and not counted yet


@dataclass(frozen=True)
class RingLayout:
    """A queue, or the input of a replay: one ring of ``capacity`` slots per writer.

    heads: [W, LINE] int64: head, waiting flag of the writer; tails: [W, LINE] int64: tail;
    bells: [R, LINE] int64: bell of the reader, its waiting flag.
    joined: where readers take one item of each of their writers at once, those lie side by side in memory: the fields
    of all, from ``batches`` on, one batch for each slot of a ring. Slots then are no more than their header lines.
    """

    channel: Channel
    writers: int
    readers: int
    heads: int
    tails: int
    bells: int
    slots: int
    stride: int
    fields: tuple[FieldLayout, ...]
    batches: int = 0
    batch_stride: int = 0
    joined: tuple[FieldLayout, ...] = ()

    def slot(self, writer: int, index: int) -> int:
        """Offset of a slot: a header line (version, generation, sequence), then the fields."""
        return self.slots + (writer * self.channel.capacity + index) * self.stride

    def batch(self, reader: int, index: int) -> int:
        """Offset of what the writers of a reader have in their slots ``index``, if it is joined."""
        return self.batches + (reader * self.channel.capacity + index) * self.batch_stride

    @property
    def nbytes(self) -> int:
        """Of all items."""
        return self.channel.capacity * (self.writers * self.stride + self.readers * self.batch_stride)


@dataclass(frozen=True)
class StoreLayout:
    """Versioned parameters: control lines (latest, waiting flag; begin of each buffer), then two buffers.

    ``delivered`` is one line per reader: the version with which a lockstep reader last put an item.
    """

    channel: Channel
    readers: int
    control: int
    delivered: int
    buffers: int
    stride: int
    fields: tuple[FieldLayout, ...]


@dataclass(frozen=True)
class ConstantLayout:
    """One item that is filled before the roles start, and then only read."""

    channel: Channel
    start: int
    nbytes: int
    fields: tuple[FieldLayout, ...]


@dataclass
class Plan:
    """The whole arena. ``ends`` gives the first channel-wide index of a role's port; replica i has that + i."""

    total: int = 0
    rings: dict[str, RingLayout] = field(default_factory=dict)
    stores: dict[str, StoreLayout] = field(default_factory=dict)
    divided: dict[str, tuple[Channel, list[str]]] = field(default_factory=dict)  # by name: its parts' rings or stores
    constants: dict[str, ConstantLayout] = field(default_factory=dict)
    groups: dict[str, GroupLayout] = field(default_factory=dict)
    ends: dict[tuple[str, str], int] = field(default_factory=dict)
    # role -> [replicas, LINE] int64: role steps of this life, then (over all lives) what it has COUNTED, then MAKING
    status: dict[str, int] = field(default_factory=dict)
    pulses: dict[str, int] = field(default_factory=dict)  # role -> [replicas, ALIGN] bytes: see local.heartbeat.Pulse

    counts: dict[str, int] = field(default_factory=dict)  # role -> replicas
    own: dict[str, int] = field(default_factory=dict)  # role -> bytes that it holds itself, outside the arena

    def replicas(self) -> list[tuple[int, int]]:
        """(offset of the status lines, replicas) of each role."""
        return [(self.status[name], n) for name, n in self.counts.items()]

    def take(self, nbytes: int) -> int:
        start = self.total
        self.total += up(nbytes)
        return start


def _joins(program: Program) -> None:
    for role in program.roles:
        for name, port in role.ports.items():
            if port.direction == "read" and port.channel.kind == "queue" and (port.count > 1 or port.each):
                for key, f in port.channel.spec.items():
                    if not -len(f.shape) <= f.axis < len(f.shape):
                        raise api.WiringError(
                            f"Port {name!r} of role {role.name!r} joins items of channel {port.channel.name!r}, "
                            f"but field {key!r} of shape {tuple(f.shape)} has no axis {f.axis} to join along."
                        )


def _count(program: Program, plan: Plan) -> Mapping[tuple[str, str], int]:
    """Number of ends of each (channel, direction); records where each role's begin."""
    ends: dict[tuple[str, str], int] = {}
    for role in program.roles:
        for name, port in role.ports.items():
            key = (port.channel.name, "write" if port.direction == "both" else port.direction)
            plan.ends[role.name, name] = ends.get(key, 0)
            ends[key] = ends.get(key, 0) + port.of(role.replicas)
    return ends


def plan(program: Program) -> Plan:
    """Lay out a program. WiringError for what the local runtime cannot connect."""
    _joins(program)
    out = Plan()
    out.take(ALIGN)  # the stop flag and the number of the checkpoint
    for role in program.roles:
        out.status[role.name] = out.take(role.replicas * ALIGN)
        out.pulses[role.name] = out.take(role.replicas * ALIGN)
        out.counts[role.name] = role.replicas
        if role.memory:
            out.own[role.name] = role.memory * role.replicas
    ends = _count(program, out)
    for channel in program.channels.values():
        writers, readers = ends.get((channel.name, "write"), 0), ends.get((channel.name, "read"), 0)
        if channel.divided:
            _divide(out, channel, writers, readers)
        elif channel.kind == "params":
            if writers > 1:
                raise api.WiringError(f"Channel {channel.name!r} (params) has {writers} writers; it can have only one.")
            out.stores[channel.name] = _store(out, channel, readers)
        elif channel.kind == "constant":
            item, size = fields(channel.spec, 0)
            out.constants[channel.name] = ConstantLayout(channel, out.take(size), size, item)
        elif channel.kind in ("queue", "replay"):
            _check_ring(channel, writers, readers)
            out.rings[channel.name] = _ring(out, channel, writers, readers, _takes_each(program, channel))
        else:
            out.groups[channel.name] = group(channel, writers, out.take)
    return out


def _store(out: Plan, channel: Channel, readers: int) -> StoreLayout:
    slot, size = fields(channel.spec, 0)
    return StoreLayout(
        channel, readers, out.take(2 * ALIGN), out.take(readers * ALIGN), out.take(2 * size), size, slot
    )  # fmt: skip


def _divide(out: Plan, channel: Channel, writers: int, readers: int) -> None:
    """Lay out a divided channel: the part of a reader as a queue of its own, that of a writer as parameters."""
    queue = channel.kind == "queue"
    parts = divided.parts(channel, readers if queue else writers)
    out.divided[channel.name] = (channel, [part.name for part in parts])
    for part in parts:
        if queue:
            _check_ring(part, writers, 1)
            out.rings[part.name] = _ring(out, part, writers, 1, False)
        else:
            out.stores[part.name] = _store(out, part, readers)


def _takes_each(program: Program, channel: Channel) -> bool:
    """Return whether a role reads one item of each writer at once."""
    return any(port.each and port.channel.name == channel.name for r in program.roles for port in r.ports.values())


def _ring(out: Plan, channel: Channel, writers: int, readers: int, joined: bool) -> RingLayout:
    slot, size = fields(channel.spec, ALIGN)
    heads, tails, bells = out.take(writers * ALIGN), out.take(writers * ALIGN), out.take(readers * ALIGN)
    if not joined:
        slots = out.take(writers * channel.capacity * size)
        return RingLayout(channel, writers, readers, heads, tails, bells, slots, size, slot)
    slots = out.take(writers * channel.capacity * ALIGN)
    together, nbytes = fields(channel.spec, 0, -(-writers // readers))
    batches = out.take(readers * channel.capacity * nbytes)
    return RingLayout(
        channel, writers, readers, heads, tails, bells, slots, ALIGN, slot, batches, nbytes, together
    )  # fmt: skip


def _check_ring(channel: Channel, writers: int, readers: int) -> None:
    if writers < 1 or readers < 1:
        raise api.WiringError(f"Channel {channel.name!r} has {writers} writers and {readers} readers.")
    if channel.capacity < 1:
        raise api.WiringError(f"Channel {channel.name!r} has capacity {channel.capacity}; it needs at least 1.")
    if channel.kind == "replay" and channel.table is None:
        raise api.WiringError(f"Channel {channel.name!r} (replay) has no table.")
    if readers > writers:
        raise api.WiringError(
            f"Channel {channel.name!r} has {readers} readers for {writers} writers; each reader needs one of its own."
        )


def needed(plan: Plan) -> dict[str, int]:
    """Bytes each channel takes, the tables of replays and what roles hold themselves included."""
    out: dict[str, int] = {}
    whole = {part: name for name, (_, parts) in plan.divided.items() for part in parts}
    for name, ring in plan.rings.items():
        key = whole.get(name, name)
        out[key] = out.get(key, 0) + ring.nbytes
        if ring.channel.table is not None:
            out[key] += tables_nbytes(ring.channel, ring.writers, ring.readers)
    for name, store in plan.stores.items():
        key = whole.get(name, name)
        out[key] = out.get(key, 0) + 2 * store.stride
    for name, constant in plan.constants.items():
        out[name] = constant.nbytes
    out |= {name: each.nbytes for name, each in plan.groups.items()}
    for name, nbytes in plan.own.items():  # a role may be called like a channel
        out[name] = out.get(name, 0) + nbytes
    return out
