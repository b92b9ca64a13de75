"""What a plan says: a program at several sizes, its bottleneck, its knee, the smallest that is fast enough."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

from shoal.api import UsageError, WiringError
from shoal.planning.costs import Costs
from shoal.planning.gpu import on_gpu
from shoal.planning.rehearsal import shortened
from shoal.program import Program
from shoal.simulation import Behaviour, Figures, Machine, steady
from shoal.simulation.figures import WAITING
from shoal.simulation.placement import memory, place
from shoal.types import Values

CYCLES, LEAST = 40, 2.0  # of the slowest role, and seconds, that are simulated
WARM = 0.5  # of that time, before what is measured
SEEDS = 3  # simulations of each point; the middle one is told, the others are the band
STEPS = 400_000  # of all roles that a simulation is worth
KNEE = 0.5  # of the share of the first actors, below which another does not pay


@dataclass(frozen=True)
class Point:
    """A size of a program. envs: of each actor; 0: as the configuration says."""

    actors: int
    learners: int = 0
    nodes: int = 1
    envs: int = 0


@dataclass(frozen=True)
class Row:
    """What a point makes. low, high: steps per second of the slowest and the fastest seed; memory: bytes of each node;
    why: of a point that cannot be, instead of figures."""

    point: Point
    figures: Figures | None = None
    low: float = 0.0
    high: float = 0.0
    memory: tuple[float, ...] = ()
    why: str = ""
    gain: float = 1.0  # steps per second that the last actors add, over those of the first

    @property
    def steps(self) -> float:
        return 0.0 if self.figures is None else self.figures.steps

    def as_json(self) -> Values:
        out: Values = {"actors": self.point.actors, "learners": self.point.learners, "nodes": self.point.nodes}
        out["envs"] = self.point.envs
        if self.figures is None:
            return {**out, "why": self.why}
        more = {"low": self.low, "high": self.high, "gain": self.gain, "memory": list(self.memory)}
        return {**out, "steps_per_second": self.steps, "updates_per_second": self.figures.updates, **more,
                **self.figures.as_json()}  # fmt: skip


class Planner:
    """Simulates a system under a configuration on machines. seed: of the first simulation of each point."""

    def __init__(
        self, system: Any, cfg: Any, costs: Costs, machine: Machine, seed: int = 0, seeds: int = SEEDS
    ) -> None:
        self.system, self.cfg, self.costs, self.machine, self.seed, self.seeds = (
            system, cfg, costs, machine, seed, seeds,
        )  # fmt: skip

    def row(self, point: Point) -> Row:
        """What a point makes; one that this system cannot have, or of which the costs say nothing, is a row that says
        why."""
        try:
            cfg = configured(self.cfg, point)
            program = shortened(self.system.program(cfg))
            program.validate()
            known = self.costs.behaviours(program)
        except (UsageError, WiringError) as error:
            return Row(point, why=str(error))
        point = replace(point, envs=cfg.envs, learners=getattr(cfg, "learners", 1))
        behaviours = on_gpu(program, known, self.machine.gpu)
        machine = self.machine.repeated(point.nodes) if point.nodes > 1 else self.machine
        seconds = duration(program, behaviours, machine)
        found = [
            steady(program, behaviours, machine, seconds=seconds, warm_up=WARM * seconds, seed=self.seed + k)
            for k in range(self.seeds)
        ]
        found.sort(key=lambda f: f.steps)
        room = tuple(memory(program, machine, place(program, machine)))
        return Row(point, found[len(found) // 2], found[0].steps, found[-1].steps, room)

    def rows(self, points: Iterable[Point], told: Callable[[Row], None] = lambda row: None) -> list[Row]:
        """Every point in turn, with what its last actors add."""
        out: list[Row] = []
        for point in points:
            row = self.row(point)
            if row.figures is not None:
                row = replace(row, gain=_gain(out, row))
            out.append(row)
            told(row)
        return out

    def smallest(self, target: float, points: Sequence[Point], told: Callable[[Row], None] = lambda row: None) -> Row:
        """The first of ``points`` that makes so many steps per second. UsageError if none does, with the best."""
        best: Row | None = None
        for point in points:
            row = self.row(point)
            told(row)
            if row.steps >= target:
                return row
            best = row if best is None or row.steps > best.steps else best
        assert best is not None
        if best.figures is None:
            raise UsageError(f"none of the sizes can be: {best.why}")
        raise UsageError(
            f"no size reaches {target:,.0f} steps per second: the most is {best.steps:,.0f} with {best.point.actors} "
            f"actors, which {best.figures.bottleneck()} holds back"
        )


def configured(cfg: Any, point: Point) -> Any:
    """The configuration at a point."""
    values: Values = {"actors": point.actors}
    if point.envs:
        values |= {"envs": point.envs, "total_envs": 0}
    if point.learners:
        if not hasattr(cfg, "learners"):
            raise UsageError(f"{cfg.system()} has no --learners")
        values["learners"] = point.learners
    return replace(cfg, **values)


def points(actors: Sequence[int], learners: Sequence[int], nodes: Sequence[int], envs: Sequence[int]) -> list[Point]:
    """Every combination, actors the fastest to change."""
    return [Point(a, v, n, e) for n, v, e, a in product(nodes, learners, envs, actors)]


def duration(program: Program, behaviours: dict[str, list[Behaviour]], machine: Machine) -> float:
    """Seconds to simulate: some tens of the slowest role's cycles, but no more steps than are worth it."""
    cores = sum(node.cores for node in machine.nodes)
    slowest, rate, work = 0.0, 0.0, 0.0
    for role in program.roles:
        for behaviour in behaviours.get(role.name, [])[:1]:
            cycle = sum(op.busy.mean + op.idle.mean for step in behaviour.cycle for op in step.ops)
            slowest = max(slowest, cycle)
            work += cycle * role.replicas / max(1, len(behaviour.cycle))
            rate += role.replicas * len(behaviour.cycle) / max(cycle, 1e-6)
    slowest = max(slowest, work / cores)
    return max(min(max(CYCLES * slowest, LEAST), STEPS / rate if rate else LEAST), 10 * slowest, 1e-3)


def knee(rows: Sequence[Row]) -> Row | None:
    """The last row before an actor adds less than half of what the first ones do; None if none does yet."""
    for before, row in pairwise(rows):
        if row.figures is not None and before.figures is not None and row.gain < KNEE:
            return before
    return None


def _gain(before: Sequence[Row], row: Row) -> float:
    """Steps per second that each actor more adds, over what each of the first ones makes."""
    same = [r for r in before if r.figures is not None and replace(r.point, actors=0, envs=0) ==
            replace(row.point, actors=0, envs=0)]  # fmt: skip
    if not same or row.point.actors <= same[-1].point.actors:
        return 1.0
    each = same[0].steps / same[0].point.actors
    return (row.steps - same[-1].steps) / (row.point.actors - same[-1].point.actors) / each if each else 0.0


def advice(row: Row, cfg: Any) -> str:
    """What would move a bottleneck, by the switches that the system has."""
    figures = row.figures
    assert figures is not None
    limit = figures.limit()

    def has(name: str) -> bool:
        return hasattr(cfg, name)

    if max(figures.cores) > 0.95 and limit not in ("network",):
        return "cores: all of a node's are at work; another node, or more cores"
    if limit == "network":
        return f"a faster link, or {_fewer_bytes(figures.traffic, has)}"
    if limit == WAITING:
        return "fewer nodes with more cores each, or links with less latency"
    if limit in ("actor", "inference", "worker", "rank"):
        return "more --actors"
    if limit == "replay":
        return "--replay-shards" if has("replay_shards") else "a smaller batch"
    if limit == "learner":
        switches = {"--learners": has("learners"), "--learner-processes": cfg.shares_gradient, "a faster device": True}
        return " or ".join(name for name, there in switches.items() if there)
    return f"more replicas of '{limit}'" if statistics.fmean(figures.cores) < 0.9 else "more cores"


def _fewer_bytes(kind: str, has: Callable[[str], bool]) -> str:
    """What takes bytes off the busiest link, by the kind of channel that sends most of them."""
    if kind == "params" and has("shards"):
        return "--shards: parameters from more nodes"
    if kind in ("params", "reduce"):
        return "fewer nodes with more cores each, or a smaller network"
    if kind == "replay" and has("replay_shards"):
        return "--replay-shards: items to more nodes"
    if kind == "queue" and has("learners"):
        return "--learners: trajectories to more nodes"
    return "smaller observations"
