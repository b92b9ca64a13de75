"""What each part of a program asks of a node, and whether a cluster has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.api import UsageError
from shoal.program import Program, RoleSpec
from shoal.words import counted

BACKGROUND = 0.01  # CPUs of a role that takes a small share of the processors
Resources = Mapping[str, float]


@dataclass(frozen=True)
class Unit:
    """Replicas that run on one node, and what they need there: CPUs, GPUs, bytes of ``memory``. ``vital``: the run ends
    with them; ``gpus``: those of them that use a GPU, whichever they are given; ``server``: the role that answers their
    questions ("": none); ``serves``: whether they answer others."""

    replicas: tuple[tuple[str, int], ...]
    needs: dict[str, float]
    vital: bool = False
    gpus: tuple[tuple[str, int], ...] = ()
    server: str = ""
    serves: bool = False

    @property
    def order(self) -> tuple[float, bool, float, bool, float]:
        """The largest is placed first, so that learners get the best nodes, and actors the room beside them; a server
        comes before those that it answers."""
        needs = self.needs
        return needs.get("GPU", 0.0), self.vital, needs.get("memory", 0.0), self.serves, needs.get("CPU", 0.0)

    @property
    def label(self) -> str:
        """``actor[3]``, or ``worker[0..7]`` for replicas that may not be parted."""
        (role, first), (_, last) = self.replicas[0], self.replicas[-1]
        roles = dict.fromkeys(name for name, _ in self.replicas)
        if len(roles) > 1:
            return " and ".join(f"'{name}'" for name in roles)
        return f"{role}[{first}]" if first == last else f"{role}[{first}..{last}]"


@dataclass(frozen=True)
class Node:
    """A node of a cluster: its id, the name to show, and its resources."""

    id: str
    name: str
    resources: dict[str, float]


def units(program: Program) -> list[Unit]:
    """The parts of a program that can be placed each for itself, in the order in which they are: a replica, or all that
    change the same parameters in place, as those lie in the memory of one machine."""
    together: dict[str, set[str]] = {}  # role -> the roles that it shares memory with
    for channel in program.channels.values():
        if channel.kind == "shared":
            names = {role.name for role in program.roles if any(p.channel == channel for p in role.ports.values())}
            names = names.union(*(together.get(name, set()) for name in names))
            together |= dict.fromkeys(names, names)
    servers = _servers(program)
    out, done = [], set()
    for role in program.roles:
        if role.name in done:
            continue
        group = together.get(role.name, set())
        roles = [r for r in program.roles if r.name in group] or [role]
        done |= {r.name for r in roles}
        if group:
            replicas = tuple((r.name, i) for r in roles for i in range(r.replicas))
            needs = _sum([_needs(program, r) for r in roles for _ in range(r.replicas)])
            gpus = tuple((r.name, i) for r in roles if r.device == "cuda" for i in range(r.replicas))
            out.append(Unit(replicas, needs, any(r.on_failure == "stop" for r in roles), gpus))
        else:
            needs, vital = _needs(program, role), role.on_failure == "stop"
            each = [((role.name, i),) for i in range(role.replicas)]
            about = servers.get(role.name, ""), role.name in servers.values()
            out += [Unit(replica, needs, vital, replica if role.device == "cuda" else (), *about) for replica in each]
    return sorted(out, key=lambda unit: unit.order, reverse=True)


def units_on(program: Program, nodes: Sequence[Node]) -> list[Unit]:
    """Return ``units(program)``; a learner and the inference servers take equal parts of the GPUs where ``nodes`` have
    too few for each to have its own. Several learners never share one, as NCCL refuses that."""
    wanted = units(program)
    on_gpus = [unit for unit in wanted if unit.gpus]
    gpus = sum(int(node.resources.get("GPU", 0.0)) for node in nodes)
    if not 0 < gpus < len(on_gpus) or sum(not unit.serves for unit in on_gpus) != 1:
        return wanted
    part = 10_000 // -(-len(on_gpus) // gpus) / 10_000  # Ray counts ten-thousandths
    return [replace(unit, needs={**unit.needs, "GPU": part}) if unit.gpus else unit for unit in wanted]


def _servers(program: Program) -> dict[str, str]:
    """Role -> the one that answers it: reads a queue that it writes, and writes to each replica its part of another."""
    ends = [(role.name, port) for role in program.roles for port in role.ports.values() if port.channel.kind == "queue"]
    sent = {(name, port.channel.name) for name, port in ends if port.direction == "write"}
    read = {(name, port.channel.name) for name, port in ends if port.direction == "read"}
    answers = [port.channel.name for _, port in ends if port.channel.divided and port.direction == "write"]
    return {
        client: server
        for client, question in sent
        for server, found in read
        if found == question and any((server, c) in sent and (client, c) in read for c in answers)
    }


def _needs(program: Program, role: RoleSpec) -> dict[str, float]:
    out: dict[str, float] = {"CPU": BACKGROUND if role.background else float(role.threads)}
    if role.device.startswith("cuda"):
        out["GPU"] = 1.0
    tables = [p.channel for p in role.ports.values() if p.direction == "read" and p.channel.table is not None]
    nbytes = role.memory + sum(c.table.nbytes(c.spec, program.writers(c)) for c in tables if c.table is not None)
    if nbytes:
        out["memory"] = float(nbytes)
    return out


def _sum(parts: Sequence[Resources]) -> dict[str, float]:
    out: dict[str, float] = {}
    for part in parts:
        for name, amount in part.items():
            out[name] = out.get(name, 0.0) + amount
    return out


def total(wanted: Sequence[Unit]) -> dict[str, float]:
    """Return what all units need together."""
    return _sum([unit.needs for unit in wanted])


def fit(wanted: Sequence[Unit], nodes: Sequence[Node]) -> tuple[dict[str, list[Unit]], list[Unit]]:
    """(node id -> the units that have room there, those that have none), each in turn on the first node with room; that
    of its server is looked at first."""
    left = {node.id: dict(node.resources) for node in nodes}
    placed: dict[str, list[Unit]] = {node.id: [] for node in nodes}
    over, homes = [], dict[str, Node]()  # role -> the node of its first replica
    for unit in wanted:
        home = homes.get(unit.server)
        for node in nodes if home is None else (home, *nodes):
            if all(left[node.id].get(name, 0.0) >= amount - 1e-9 for name, amount in unit.needs.items()):
                for name, amount in unit.needs.items():
                    left[node.id][name] -= amount
                placed[node.id].append(unit)
                homes.setdefault(unit.replicas[0][0], node)
                break
        else:
            over.append(unit)
    return placed, over


def check(wanted: Sequence[Unit], nodes: Sequence[Node], what: str = "the cluster") -> None:
    """UsageError that names the first unit without room, and what it lacks."""
    _, over = fit(wanted, nodes)
    if not over:
        return
    unit = over[0]
    most = {name: max((node.resources.get(name, 0.0) for node in nodes), default=0.0) for name in unit.needs}
    lacking = [name for name, amount in unit.needs.items() if amount > most[name] + 1e-9]
    if lacking:
        name = lacking[0]
        found = f"the largest of its {counted(len(nodes), 'node')} has {show(name, most[name])}"
        raise UsageError(
            f"{what} has no room for {unit.label}, which needs {show(name, unit.needs[name])} on one node: {found}"
        )
    needs, has = total(wanted), _sum([node.resources for node in nodes])
    short = [name for name in unit.needs if needs[name] > has.get(name, 0.0) + 1e-9] or list(unit.needs)
    roles = ", ".join(f"{len(found)} x {role}" for role, found in _by_role(over).items())
    raise UsageError(
        f"{what} is too small for this program: it needs {_list(needs, short)}, found {_list(has, short)} on "
        f"{counted(len(nodes), 'node')}; without room: {roles} (fewer --actors need less)"
    )


def _by_role(found: Sequence[Unit]) -> dict[str, list[Unit]]:
    out: dict[str, list[Unit]] = {}
    for unit in found:
        out.setdefault(unit.replicas[0][0], []).append(unit)
    return out


def _list(resources: Resources, names: Sequence[str]) -> str:
    return " and ".join(show(name, resources.get(name, 0.0)) for name in names)


def show(name: str, amount: float) -> str:
    """``4 CPUs``, ``1 GPU``, ``2.5 GiB of memory``."""
    if name == "memory":
        return f"{amount / 2**30:.1f} GiB of memory"
    return f"{amount:g} {name}{'s' * (amount != 1)}"


def draw(wanted: Sequence[Unit], nodes: Sequence[Node]) -> str:
    """A picture of what runs where, if each unit takes the first node with room."""
    placed, over = fit(wanted, nodes)
    lines = []
    for node in nodes:
        kinds = [name for name in ("CPU", "GPU", "memory") if node.resources.get(name)]
        shown = ", ".join(show(name, node.resources[name]) for name in kinds)
        lines.append(f"{node.name}  ({shown or 'no resources'})")
        lines += [f"  {len(found)} x {role}" for role, found in _by_role(placed[node.id]).items()] or ["  (nothing)"]
    if over:
        lines.append("without room")
        lines += [f"  {len(found)} x {role}" for role, found in _by_role(over).items()]
    return "\n".join(lines)
