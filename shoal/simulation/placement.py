"""Which replica is on which node."""

from __future__ import annotations

from shoal.api import UsageError
from shoal.program import Program, RoleSpec
from shoal.simulation.machine import Machine

Place = dict[tuple[str, int], int]  # (role, index) -> node


def place(program: Program, machine: Machine) -> Place:
    """Roles whose end would end the run come first, each replica on the first node with a core for each of its threads;
    once no node has any left, on the one with the fewest threads for its cores. Replicas that change the same memory in
    place are all on the node with the most cores. Nodes that name roles run these alone. UsageError if no node may run
    a role."""
    nodes = machine.nodes
    taken = [0] * len(nodes)
    out: Place = {}
    for role in sorted(program.roles, key=lambda r: (r.device == "cpu", r.on_failure != "stop", -r.threads)):
        allowed = [n for n, node in enumerate(nodes) if role.name in node.roles] or [
            n for n, node in enumerate(nodes) if not node.roles
        ]
        if not allowed:
            raise UsageError(f"no node of the machine runs role '{role.name}': each names others as its roles")
        if any(port.channel.kind == "shared" for port in role.ports.values()):
            allowed = [max(allowed, key=lambda n: nodes[n].cores)]
        first = 0
        for index in range(role.replicas):
            while first < len(allowed) and taken[allowed[first]] + role.threads > nodes[allowed[first]].cores:
                first += 1
            if first < len(allowed):
                node = allowed[first]
            else:
                node = min(allowed, key=lambda n: (taken[n] + role.threads) / nodes[n].cores)
            taken[node] += 0 if role.background else role.threads
            out[role.name, index] = node
    return out


def memory(program: Program, machine: Machine, where: Place) -> list[float]:
    """Bytes that a program takes on each node: buffers of channels where they are read, and what roles hold."""
    from shoal.program import held

    out = [0.0] * len(machine.nodes)
    own = held(program)
    buffers = program.memory()
    for role in program.roles:
        each = own.get(role.name, 0) / role.replicas + role.memory
        for index in range(role.replicas):
            out[where[role.name, index]] += each
    for name, channel in program.channels.items():
        readers = [where[r.name, i] for r, p in program.ends(channel, "read") for i in range(p.of(r.replicas))]
        nbytes = buffers.get(name, 0) - _of_role(program, name)
        everywhere = channel.kind in ("params", "constant")
        for node in {*readers}:
            out[node] += nbytes * (1.0 if everywhere else readers.count(node) / len(readers))
    return out


def _of_role(program: Program, name: str) -> int:
    """Bytes of a role that is called like a channel, which ``Program.memory`` adds to the channel's."""
    found: list[RoleSpec] = [r for r in program.roles if r.name == name]
    return sum(r.memory * r.replicas for r in found)
