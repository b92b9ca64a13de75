"""The simulation of a program: its replicas as processes of SimPy, on nodes with cores and links."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from shoal.api import Deadlock
from shoal.program import Program
from shoal.simulation.behaviour import Behaviours, Op, Step, Times
from shoal.simulation.channels import Queue, ReplayReader
from shoal.simulation.figures import Figures, quantiles
from shoal.simulation.groups import Board
from shoal.simulation.machine import Machine
from shoal.simulation.replica import Phases, Replica
from shoal.simulation.wiring import Wiring

if TYPE_CHECKING:
    import simpy

INSERT: Phases = (("insert", 1.0),)
ALIKE = 0.3  # share by which steps per second of two windows of a steady state may differ
FULLER = 0.05  # share of its slots by which a queue of a steady state may fill from one window to the next
MOST_WINDOWS = 10
Going = Generator["simpy.Event", Any, None]


def simulate(
    program: Program, behaviours: Behaviours, machine: Machine, *, seconds: float, warm_up: float = 0.0, seed: int = 0
) -> Figures:
    """Simulate a program for ``warm_up`` seconds and then for ``seconds``, and return what happened in these.

    behaviours: of each role, what its replicas do; replica ``i`` does what the i-th says, or the last. The same seed
    gives the same answer. Raises WiringError for a program that cannot run, UsageError for a role or a channel that the
    simulator does not know, Deadlock where no replica can go on.
    """
    run = Simulation(program, behaviours, machine, seed)
    run.advance(warm_up)
    return run.measure(seconds)


def steady(
    program: Program, behaviours: Behaviours, machine: Machine, *, seconds: float, warm_up: float = 0.0, seed: int = 0
) -> Figures:
    """Return what happens in ``seconds`` or more of a program once queues are full and links as busy as they become:
    half of that time after it makes about as many steps, and no queue has filled further. Windows before that are left
    out, each longer by half than the last; the tenth is taken as it is. Raises as ``simulate`` does.
    """
    run = Simulation(program, behaviours, machine, seed)
    run.advance(warm_up)
    for window in range(MOST_WINDOWS):
        figures, after = (run.measure(part * seconds * 1.5**window) for part in (1.0, 0.5))
        now, then = (f.steps or f.updates for f in (figures, after))
        fills = any(share > figures.fill[queue] + FULLER for queue, share in after.fill.items())
        if now and abs(then - now) <= ALIKE * now and not fills:
            break
    return figures


class Simulation:
    """A program under way. wiring: its channels, ends and replicas."""

    def __init__(self, program: Program, behaviours: Behaviours, machine: Machine, seed: int = 0) -> None:
        program.validate()
        self.program, self.machine = program, machine
        self.wiring = Wiring(program, behaviours, machine, seed)
        self.env = self.wiring.env
        self.counts: dict[str, float] = {}
        for replica in self.wiring.replicas:
            self.env.process(self._live(replica))

    def advance(self, seconds: float) -> None:
        """Go on for so many seconds. Deadlock where nobody can."""
        end, env = self.env.now + seconds, self.env
        while env.peek() <= end:
            env.step()
        if env.peek() == math.inf:
            lines = [f"{self.program.name}: deadlock, no role can step; not ready:"]
            lines += [f"  {r.role}[{r.index}]: {r.waits}" for r in self.wiring.replicas]
            raise Deadlock("\n".join(lines))
        if end > env.now:
            env.run(until=end)

    def measure(self, seconds: float) -> Figures:
        """Go on for so many seconds, and return what happened in them."""
        wiring, nodes = self.wiring, self.machine.nodes
        self.counts = {}
        for replica in wiring.replicas:
            replica.clear(self.env.now)
        used = [p.used() for p in wiring.processors]
        ways = wiring.network.sent, wiring.network.received
        before = [[Counter(counts) for counts in way] for way in ways]
        queues = {name: c for name, c in wiring.channels.items() if isinstance(c, Queue)}
        area = {name: queue.area() for name, queue in queues.items()}
        self.advance(seconds)
        fill = {name: (q.area() - area[name]) / (seconds * q.slots) for name, q in queues.items()}
        moved = [[now - then for now, then in zip(*way, strict=True)] for way in zip(ways, before, strict=True)]
        out, into = (tuple(counts.total() / seconds for counts in way) for way in moved)
        links = tuple(max(o, i) / n.bandwidth for o, i, n in zip(out, into, nodes, strict=True))
        busiest = links.index(max(links))
        work = [p.used() - u for p, u in zip(wiring.processors, used, strict=True)]
        return Figures(
            seconds, {k: v / seconds for k, v in self.counts.items()}, self._shares(), fill, self._lags(),
            self._ratios(), out, into, tuple(w / (seconds * n.cores) for w, n in zip(work, nodes, strict=True)),
            links, next((kind for kind, _ in moved[into[busiest] > out[busiest]][busiest].most_common(1)), ""),
        )  # fmt: skip

    def _shares(self) -> dict[str, dict[str, float]]:
        out: dict[str, dict[str, float]] = {}
        for replica in self.wiring.replicas:
            phases = out.setdefault(replica.role, {})
            for name, seconds in replica.seconds(self.env.now).items():
                phases[name] = phases.get(name, 0.0) + seconds
        for phases in out.values():
            total = sum(phases.values())
            phases.update({name: seconds / total for name, seconds in phases.items() if total})
        return out

    def _lags(self) -> dict[str, tuple[float, float]]:
        counts: dict[str, Counter[float]] = {}
        for replica in self.wiring.replicas:
            counts.setdefault(replica.role, Counter()).update(replica.lags)
        return {role: (q[0], q[1]) for role, c in counts.items() if c and (q := quantiles(c, 0.5, 0.95))}

    def _ratios(self) -> dict[str, float]:
        out: dict[str, list[float]] = {}
        for replica in self.wiring.replicas:
            for end in replica.ends.values():
                if isinstance(end, ReplayReader) and (ratio := end.samples_per_insert) is not None:
                    out.setdefault(end.name, []).append(ratio)
        return {name: sum(found) / len(found) for name, found in out.items()}

    # ------------------------------------------------------------------------------- life of a replica
    def _live(self, replica: Replica) -> Going:
        for op in replica.behaviour.start:
            yield from self._do(replica, op)
        counts = self.counts
        for step in self._steps(replica):
            for op in step.ops:
                if op.do == "work":
                    yield from self._work(replica, op)
                else:
                    yield from self._do(replica, op)
            counts = self.counts
            for name, number in step.counts.items():
                counts[name] = counts.get(name, 0.0) + number

    def _steps(self, replica: Replica) -> Iterator[Step]:
        behaviour, random = replica.behaviour, replica.random
        cycle = behaviour.cycle
        yield from behaviour.first
        while not behaviour.regular:
            yield cycle[int(random.random() * len(cycle))]
        ended = _last_of_rollout(cycle) if behaviour.preempt is not None else 0
        while True:
            at = 0
            while at < len(cycle):
                yield cycle[at]
                at = ended if at < ended and _preempted(replica, (at + 1) / ended) else at + 1

    def _do(self, replica: Replica, op: Op) -> Going:
        """One operation; of a port that only other replicas have, nothing."""
        if op.do == "work":
            yield from self._work(replica, op)
        elif (end := replica.ends.get(op.port)) is not None:
            if isinstance(end, ReplayReader):
                while end.insert():
                    yield from self._busy(replica, replica.behaviour.insert, INSERT)
            attempt = getattr(end, op.do)
            while (event := attempt(replica)) is not None:
                replica.begin(self.env.now, self.wiring.waits[replica.role, op.port], op.port)
                yield event
                replica.end(self.env.now)
                if isinstance(end, ReplayReader):
                    while end.insert():
                        yield from self._busy(replica, replica.behaviour.insert, INSERT)

    def _work(self, replica: Replica, op: Op) -> Going:
        busy = op.busy if op.stale is None or replica.fresh else op.stale
        yield from self._busy(replica, busy, op.phases, op.cores)
        if (idle := op.idle.draw(replica.random)) > 0:
            replica.begin(self.env.now, op.phases)
            yield self.env.timeout(idle)
            replica.end(self.env.now)

    def _busy(self, replica: Replica, times: Times, phases: Phases, cores: int = 1) -> Going:
        if (seconds := times.draw(replica.random)) > 0:
            processors = self.wiring.processors[replica.node]
            replica.begin(self.env.now, phases)
            if cores == 1:
                yield processors.run(seconds, replica)
            else:
                yield self.env.all_of([processors.run(seconds) for _ in range(cores)])
            replica.end(self.env.now)


def _last_of_rollout(cycle: Sequence[Step]) -> int:
    """The step that puts: the last of a rollout."""
    return next(i for i, step in enumerate(cycle) if any(op.do == "put" for op in step.ops))


def _preempted(replica: Replica, taken: float) -> bool:
    """Whether enough of the others have put on the board for this replica, which has taken that share of its steps, to
    leave out those before the last."""
    assert replica.behaviour.preempt is not None
    enough, least = replica.behaviour.preempt
    board = next(end for end in replica.ends.values() if isinstance(end, Board) and end.number is not None)
    return taken >= least and board.ahead() >= enough * len(board.puts)
