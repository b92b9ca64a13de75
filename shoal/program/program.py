"""A program: roles wired by channels. Plain data, so it can be validated, drawn and counted before it runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from shoal.api import GROUPS, Field, WiringError, spec_nbytes, spec_size
from shoal.program import divided, groups
from shoal.program.wiring import Channel, OnFailure, Port, RoleSpec


@dataclass
class Program:
    """Topology of a system: its roles and channels. ``channel`` and ``role`` add to it; nothing runs until a runtime
    launches it.

    policy: the params channel with the parameters of the policy, for evaluation, saving and export; None: the only
    params channel.
    """

    name: str
    channels: dict[str, Channel] = field(default_factory=dict)
    roles: list[RoleSpec] = field(default_factory=list)
    policy: str | None = None

    def channel(self, channel: Channel) -> Channel:
        """Add a channel and return it, so that its ``writer()`` and ``reader()`` ends can be given to roles."""
        if channel.name in self.channels:
            raise WiringError(f"{self.name}: two channels are called '{channel.name}'")
        self.channels[channel.name] = channel
        return channel

    def role(
        self,
        name: str,
        make: Any,
        *,
        replicas: int = 1,
        on_failure: OnFailure = "stop",
        threads: int = 1,
        device: str = "cpu",
        background: bool = False,
        memory: int = 0,
        **ports: Port,
    ) -> None:
        """Add ``replicas`` copies of a role; ``make(ctx, **ports)`` builds each copy inside its process."""
        if any(r.name == name for r in self.roles):
            raise WiringError(f"{self.name}: two roles are called '{name}'")
        self.roles.append(RoleSpec(name, make, ports, replicas, on_failure, threads, device, background, memory))

    def include(self, other: Program, prefix: str) -> None:
        """Add every channel and role of ``other``, with ``prefix/`` before each name. Also take its ``policy``, unless
        this program has one."""
        renamed = {c.name: replace(c, name=f"{prefix}/{c.name}") for c in other.channels.values()}
        for channel in renamed.values():
            self.channel(channel)
        for role in other.roles:
            ports = {k: replace(p, channel=renamed[p.channel.name]) for k, p in role.ports.items()}
            self.roles.append(replace(role, name=f"{prefix}/{role.name}", ports=ports))
        if self.policy is None and other.policy is not None:
            self.policy = f"{prefix}/{other.policy}"

    def policy_channel(self) -> Channel:
        """Return the params channel of the policy. Raises WiringError if there is none, or if several could be
        meant."""
        params = [name for name, channel in self.channels.items() if channel.kind in ("params", "shared")]
        if self.policy is not None and self.policy not in params:
            found = f"there is only {_listed(params)}" if params else "there is none"
            raise WiringError(f"{self.name}: the policy is said to be in the params channel '{self.policy}'; {found}")
        if self.policy is None and len(params) != 1:
            found = f"it has {_listed(params)}" if params else "it has none"
            raise WiringError(f"{self.name}: expected one params channel, or Program.policy to name one; {found}")
        return self.channels[self.policy or params[0]]

    def ends(self, channel: Channel, direction: str) -> list[tuple[RoleSpec, Port]]:
        """Return the (role, port) pairs at one end of a channel. Members are at both ends; ``both`` returns only
        them."""
        return [
            (role, port)
            for role in self.roles
            for port in role.ports.values()
            if port.channel.name == channel.name and port.direction in (direction, "both")
        ]

    def writers(self, channel: Channel) -> int:
        """Return the number of replicas that write to a channel."""
        return sum(port.of(role.replicas) for role, port in self.ends(channel, "write"))

    def readers(self, channel: Channel) -> int:
        """Return the number of replicas that read from a channel."""
        return sum(port.of(role.replicas) for role, port in self.ends(channel, "read"))

    def validate(self) -> None:
        """Raise WiringError for a program that cannot run."""
        for role in self.roles:
            if role.replicas < 1:
                raise WiringError(f"{self.name}: role '{role.name}' has {role.replicas} replicas, expected at least 1")
            for key, port in role.ports.items():
                if self.channels.get(port.channel.name) != port.channel:
                    raise WiringError(
                        f"{self.name}: port '{key}' of role '{role.name}' uses channel '{port.channel.name}', "
                        "which is not part of the program"
                    )
        for channel in self.channels.values():
            self._validate_channel(channel)
        if self.policy is not None:
            self.policy_channel()

    def _validate_channel(self, channel: Channel) -> None:
        where = f"{self.name}: channel '{channel.name}'"
        writers, readers = self.ends(channel, "write"), self.ends(channel, "read")
        if channel.kind == "constant":
            self._validate_constant(channel, bool(writers), bool(readers))
            return
        if not writers or not readers:
            raise WiringError(f"{where} has no {'writer' if not writers else 'reader'}")
        if channel.capacity < 1:
            raise WiringError(f"{where} has capacity {channel.capacity}, expected at least 1 item")
        reading = self.readers(channel)
        if channel.divided:
            divided.check(self, channel)
        elif channel.kind == "params" and self.writers(channel) != 1:
            raise WiringError(f"{where} has {self.writers(channel)} writers; parameters have exactly one")
        groups.check(self, channel)
        if channel.kind == "replay":
            self._validate_replay(channel, reading)
        if channel.used and (channel.kind != "queue" or channel.spec.get(channel.used) != Field((1,), "int64", 0)):
            raise WiringError(f"{where} has no field '{channel.used}' of shape [1] and int64, to say what is used")
        if channel.kind == "queue":
            if reading > self.writers(channel) and not channel.divided:
                raise WiringError(f"{where} has {reading} readers but only {self.writers(channel)} writers")
            for role, port in readers:
                held = channel.capacity * (self.writers(channel) // (1 if channel.divided else reading))
                if not port.each and port.count > held:
                    raise WiringError(
                        f"{where} holds {held} items for each reader, but role '{role.name}' reads {port.count}"
                    )

    def _validate_constant(self, channel: Channel, written: bool, read: bool) -> None:
        where = f"{self.name}: channel '{channel.name}'"
        if channel.fill is None:
            raise WiringError(f"{where} is a constant without a function that fills it")
        if written or not read:
            raise WiringError(f"{where} is a constant with {'a writer' if written else 'no reader'}")

    def _validate_replay(self, channel: Channel, reading: int) -> None:
        from shoal.replay.limiter import check

        where = f"{self.name}: channel '{channel.name}'"
        if channel.table is None:
            raise WiringError(f"{where} is a replay without a table")
        if len(self.ends(channel, "read")) != 1 or reading > self.writers(channel):
            raise WiringError(
                f"{where} has {reading} readers for {self.writers(channel)} writers; the replicas of one role may read "
                "a replay, each with a writer of its own"
            )
        ((_, port),) = self.ends(channel, "read")
        try:
            check(channel.ratio, port.count, channel.table.items_per_insert(channel.spec))
        except WiringError as error:
            raise WiringError(f"{where}: {error}") from None

    def memory(self) -> dict[str, int]:
        """Return the bytes of each channel, over all its buffers, and of each role; counted without allocating
        anything."""
        out: dict[str, int] = {}
        for channel in self.channels.values():
            item = spec_nbytes(channel.spec)
            if channel.kind in GROUPS:
                out[channel.name] = groups.nbytes(self, channel)
            elif channel.kind == "params":
                out[channel.name] = 2 * (4 * spec_size(channel.spec) if channel.divided else item)
            elif channel.kind == "constant":
                out[channel.name] = item
            else:
                out[channel.name] = item * channel.capacity * max(1, self.writers(channel))
            if channel.table is not None:
                out[channel.name] += tables_nbytes(channel, self.writers(channel), self.readers(channel))
        for role in self.roles:
            if role.memory:  # a role may be called like a channel
                out[role.name] = out.get(role.name, 0) + role.memory * role.replicas
        return out


def held(program: Program) -> dict[str, int]:
    """Bytes that each role holds, over its replicas, of what it reads and writes: networks, of one that learns also the
    gradient, and batches, which are joined from several items or sampled. No less is needed."""
    return {role.name: n * role.replicas for role in program.roles if (n := sum(map(_held, role.ports.values())))}


def _held(port: Port) -> int:
    channel = port.channel
    item = spec_nbytes(channel.spec)
    if channel.kind in ("params", "shared"):
        return item if port.direction == "read" or channel.divided else 2 * item
    if port.direction != "read" or channel.kind not in ("queue", "replay"):
        return 0
    if channel.table is None:
        return item * port.count if port.count > 1 else 0
    batch = getattr(channel.table, "batch", None)  # a table of somebody's own may have none
    return 0 if batch is None else spec_nbytes(batch(channel.spec, port.count))


def tables_nbytes(channel: Channel, writers: int, readers: int) -> int:
    """Bytes of a replay's tables, one of each reader."""
    assert channel.table is not None
    table, spec = channel.table, channel.spec
    return sum(table.nbytes(spec, len(range(r, writers, max(1, readers)))) for r in range(max(1, readers)))


def _listed(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
