"""What crosses between nodes when the replicas of each system are dealt out to three of them; nothing is started."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.api import spec_nbytes
from shoal.program import Channel, Program
from shoal.ray_runtime import routes
from shoal.ray_runtime.placement import units
from shoal.shm import layout
from shoal.systems import SYSTEMS, load

sys.path.append(str(Path(__file__).parents[1] / "systems"))

from helpers import config

NODES = "abc"


def dealt(program: Program) -> dict[tuple[str, int], str]:
    """A place for each replica: the units of the program in turn, to one node after the other."""
    return {key: NODES[i % len(NODES)] for i, unit in enumerate(units(program)) for key in unit.replicas}


def ends(program: Program, channel: Channel, directions: str, where: dict[tuple[str, int], str]) -> list[str]:
    """The node of each end, in the order in which a channel numbers them."""
    return [
        where[role.name, i]
        for role in program.roles
        for port in role.ports.values()
        if port.channel.name == channel.name and port.direction in directions.split()
        for i in range(1 if port.first else role.replicas)
    ]


def needed(program: Program, channel: Channel, where: dict[tuple[str, int], str]) -> set[tuple[str, str, str]]:
    """(ring or store, from, to) of every pair of ends that something must pass between."""
    writers, readers = ends(program, channel, "write both", where), ends(program, channel, "read both", where)
    found, name = set(), channel.name
    for w, source in enumerate(writers):
        for r, target in enumerate(readers if channel.kind in ("queue", "replay", "params") else writers + readers):
            if channel.divided:
                found.add((f"{name}/{r if channel.kind == 'queue' else w}", source, target))
            elif channel.kind not in ("queue", "replay") or w % len(readers) == r:
                found.add((name, source, target))
    return {(part, source, target) for part, source, target in found if source != target}


@pytest.mark.parametrize("system", SYSTEMS)
def test_all_that_must_cross_has_a_route_and_nothing_else(system: str) -> None:
    fields: dict[str, Any] = {"actors": 2 if system == "es" else 4}
    if system in ("gorila", "downpour"):
        fields |= {"learners": 2, "shards": 3}
    if system == "r2d2":
        fields["replay_shards"] = 3
    program = load(system).program(config(system, **fields))
    where = dealt(program)
    plan = layout.plan(program)
    found = routes.routes(program, plan, where)
    assert len(set(found)) == len(found)
    wanted, reduced = set(), set()
    for channel in program.channels.values():
        if channel.kind == "reduce":
            nodes = ends(program, channel, "both", where)
            reduced |= {
                (channel.name, i, n != m) for i, (n, m) in enumerate(zip(nodes, nodes[1:] + nodes[:1], strict=True))
            }
        elif channel.kind not in ("shared", "constant"):
            wanted |= needed(program, channel, where)
    assert {(r.channel, r.source, r.target) for r in found} == wanted
    rings = routes.rings(program, plan, where)  # those reduce among themselves
    assert {(c, i, far) for (_, i), channels in rings.items() for c, far in channels.items()} == reduced
    assert bool(wanted | reduced) == (len(set(where.values())) > 1)
    for route in found:
        assert route.channel in (
            plan.rings if route.kind == "queue" else plan.stores if route.kind == "params" else plan.groups
        )
        assert routes.whole(plan, route.channel) in program.channels
    for store in plan.stores:
        assert routes.written(program, plan, store, where) in NODES
    divided = [c for c in program.channels.values() if c.divided]
    assert all(spec_nbytes(c.spec) for c in divided) and bool(divided) == (system in ("gorila", "downpour"))


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_goes_on_elsewhere_reads_nothing_but_parameters(system: str) -> None:
    """A replica whose node is lost, if it may be restarted: of its rings and its parameters nobody else knows."""
    for role in load(system).program(config(system)).roles:
        moves = not any(map(routes.is_known_there_alone, role.ports.values()))
        reads = {p.channel.kind for p in role.ports.values() if p.direction != "write"}
        assert moves == (role.name == "actor"), role.name
        assert not moves or reads <= {"params", "constant"}
