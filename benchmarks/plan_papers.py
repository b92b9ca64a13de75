"""The scaling figures of the papers beside what the simulator says of Shoal's programs, with published parameters only.

    python benchmarks/plan_papers.py

Every program is the system's own, as a runtime would launch it. What its roles take comes from the papers; what these
do not say is an assumption, which is printed with the row. Results: results/plan/papers.md and papers.json. A case of
10,000 actors takes minutes; those that the file has are not simulated again, so a run that was stopped goes on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from common import table

from shoal import systems
from shoal.program import Program
from shoal.replay import Ratio
from shoal.simulation import Behaviour, Behaviours, Machine, Node, Op, Step, Times, simulate
from shoal.simulation.behaviour import work

RESULTS = Path(__file__).parent / "results" / "plan"
SMALL = {"env": "CartPole-v1", "total_envs": 0}  # the environment is not stepped: its times are the papers'


@dataclass(frozen=True)
class Row:
    """published: the paper's figure, None where it gives none."""

    system: str
    what: str
    published: float | None
    predicted: float
    assumed: str

    @property
    def error(self) -> str:
        return "" if self.published is None else f"{self.predicted / self.published - 1:+.0%}"


def program(system: str, **fields: Any) -> Program:
    module = systems.load(system)
    found: Program = module.program(module.Config(**SMALL, **fields))
    return found


def free(found: Program) -> Program:
    """Without a ratio of samples to inserts, as in the papers: nobody waits for the learner."""
    channels = {n: replace(c, ratio=Ratio()) if c.kind == "replay" else c for n, c in found.channels.items()}
    roles = [
        replace(r, ports={k: replace(p, channel=channels[p.channel.name]) for k, p in r.ports.items()})
        for r in found.roles
    ]
    return replace(found, channels=channels, roles=roles)


def cycle(*ops: Op, **counts: float) -> list[Behaviour]:
    return [Behaviour((Step(ops, counts),))]


def learning(channel: str, seconds: float) -> list[Behaviour]:
    """A learner: a batch, an update, new parameters."""
    step = Step((Op("get", channel), work(seconds, "learn"), Op("publish", "params")), {"updates": 1})
    return [Behaviour((step,), start=(Op("publish", "params"),))]


def acting(channel: str, seconds: float, frames: float) -> list[Behaviour]:
    """An actor: parameters, an unroll of so many frames."""
    ops = Op("reserve", channel), Op("latest", "params"), work(seconds, "env"), Op("commit", channel)
    return cycle(*ops, env_steps=frames)


def impala() -> list[Row]:
    """Espeholt et al. 2018, table 1: frames per second by number of actors, each on a CPU of its own."""
    rate, rows = 80_000 / 150, []
    for actors, published, batch, name in (
        (150, 80_000, 32, "150 actors"), (375, 200_000, 32, "375 actors"), (500, 250_000, 128, "500 actors, batch 128"),
    ):  # fmt: skip
        found = program("impala", actors=actors, envs=1, unroll=20, batch=batch)
        behaviours = {
            "actor": acting("trajectories", 20 * 4 / rate, 20 * 4),
            "learner": learning("trajectories", 0.9 * batch * 80 / 250_000),
        }
        figures = simulate(found, behaviours, Machine.here(actors + 1), seconds=20, warm_up=5)
        rows.append(Row("IMPALA", f"{name}, frames/s", published, figures.steps, "an actor makes 533 frames/s, so the "
                        "first row is no evidence; a learner makes 278,000"))  # fmt: skip
    return rows


def apex() -> list[Row]:
    """Horgan et al. 2018: 139 frames/s an actor, 19 batches/s of 512, 360 actors: about 50,000 frames/s."""
    rows = []
    for actors, published in ((8, None), (64, None), (256, None), (360, 50_000.0)):
        found = free(program("apex-dqn", actors=actors, envs=1, unroll=50, batch=512))
        behaviours: Behaviours = {
            "actor": acting("transitions", 50 * 4 / 139, 50 * 4),
            "learner": learning("transitions", 1 / 19),
        }
        figures = simulate(found, behaviours, Machine.here(actors + 1), seconds=60, warm_up=10)
        rows.append(Row("Ape-X DQN", f"{actors} actors, frames/s", published, figures.steps,
                        "inserting into the replay takes no time beside the learner's 53 ms"))  # fmt: skip
    return rows


def dd_ppo(ranks: int, preempted: bool, learn: float = 0.5) -> float:
    """Steps per second of so many ranks; a rollout of 128 steps takes one second on average."""
    found = program("dd-ppo", actors=ranks, envs=4, unroll=128, epochs=2, minibatches=2)
    part = Times((1 / 32,), "exponential")
    slices = [Step((work(part, "env"),), {"env_steps": 16.0}) for _ in range(31)]
    last = Step((work(part, "env"), Op("put", "progress"), Op("put", "moments")), {"env_steps": 16.0})
    share = work(learn / 4, "learn")
    more = [Step((Op("get", "gradients"), share, Op("put", "gradients"))) for _ in range(3)]
    steps = [*slices, last, Step((Op("get", "moments"), share, Op("put", "gradients"))), *more]
    end = Step((Op("get", "gradients"), Op("publish", "params")), {"updates": 1.0 / ranks})
    behaviour = Behaviour((*steps, end), start=(Op("publish", "params"),), preempt=(0.6, 0.25) if preempted else None)
    return simulate(found, {"rank": [behaviour]}, Machine.here(ranks), seconds=60, warm_up=6).steps


def dd_ppo_rows() -> list[Row]:
    """Wijmans et al. 2020: 107 times one worker on 128 GPUs, 196 times on 256 (the latter from memory)."""
    rows, one = [], dd_ppo(1, False)
    for ranks, published in ((8, None), (64, None), (128, 107.0), (256, 196.0)):
        for preempted in (True, False):
            told = f"{ranks} workers, {'preempted' if preempted else 'all wait'}, times one"
            rows.append(Row("DD-PPO", told, published if preempted else None, dd_ppo(ranks, preempted) / one,
                            "a 32nd of a rollout takes an exponential time; learning half of collecting; the network "
                            "between workers is free"))  # fmt: skip
    return rows


def es(cores: int, pairs: int = 4_320, episode: float = 1.0) -> float:
    """Generations per second with so many workers."""
    found = program("es", actors=cores, envs=2, pairs=pairs, block=1)
    uniform = [(k + 0.5) / 16 * episode for k in range(32)]  # to twice the mean, where the paper cuts episodes off
    pair = Times(tuple(sorted(a + b for a in uniform for b in uniform)))
    ops = Op("latest", "params"), Op("reserve", "results"), work(pair, "env")
    get, publish = Op("get", "results"), Op("publish", "params")
    steps = [Step((get,))] * (pairs - 1) + [Step((get, publish), {"updates": 1.0})]
    behaviours: Behaviours = {
        "worker": cycle(*ops, Op("commit", "results")),
        "learner": [Behaviour(tuple(steps), start=(publish,))],
    }
    long = 12 * 2 * episode * pairs / cores
    return simulate(found, behaviours, Machine.here(cores + 1), seconds=long, warm_up=long / 4).updates


def es_rows() -> list[Row]:
    """Salimans et al. 2017, figure 1: 657 minutes on 18 cores, 10 on 1,440."""
    one = es(18)
    assumed = "8,640 episodes a generation (about 10,000 in the paper's code), uniform up to twice their mean; the "
    return [Row("ES", f"{n} cores, times 18", published, es(n) / one, assumed + "update takes no time")
            for n, published in ((144, None), (720, None), (1_440, 65.7))]  # fmt: skip


def a3c_rows() -> list[Row]:
    """Mnih et al. 2016, table 2: time to a score, times that of one thread; 12.5 with 16 threads (from memory)."""
    rows, rates = [], {}
    for threads, published in ((1, 1.0), (2, None), (4, None), (8, None), (16, 12.5)):
        found = program("a3c", actors=threads, envs=1, unroll=5)
        step = Step((Op("copy", "params"), work(0.01), Op("add", "params")), {"env_steps": 5.0})
        behaviour = Behaviour((step,), start=(Op("offer", "params"),))
        rates[threads] = simulate(found, {"worker": [behaviour]}, Machine.here(16), seconds=20).steps
        rows.append(Row("A3C", f"{threads} threads, times one", published, rates[threads] / rates[1],
                        "a core each, and copies of the parameters cost nothing beside five steps"))  # fmt: skip
    return rows


def gorila_rows() -> list[Row]:
    """Nair et al. 2015: 100 learners and 31 shards. Equal learners see the gradients of all others land first."""
    found = free(program("gorila", actors=100, learners=100, shards=31, envs=1, hidden=(512, 512)))
    fetch, send = Op("latest", "params"), (Op("reserve", "gradients"), Op("commit", "gradients"))
    step = Step((Op("get", "transitions"), fetch, work(Times((1.0,), "exponential"), "learn"), *send))
    served = Step((Op("get", "gradients"), work(0.0001, "learn"), Op("publish", "params")), {"updates": 1 / 31})
    behaviours: Behaviours = {
        "actor": acting("transitions", 5.0, 16),
        "learner": [Behaviour((step,), start=send), Behaviour((step,))],
        "server": [Behaviour((served,))],
    }
    figures = simulate(found, behaviours, Machine.here(300), seconds=10, warm_up=5)
    return [Row("Gorila", "updates behind, median of 100 learners", 99.0 * math.log(2), figures.lag["server"][0],
                "theory, not the paper: a gradient takes an exponential second, so N - 1 others land meanwhile on "
                "average, and the median is ln 2 of that; a shard's step takes 0.1 ms")]  # fmt: skip


CLUSTER = Node(34, bandwidth=25e9 / 8, latency=50e-6)  # 300 of them have 10,200 cores


def beyond(folder: Path, rows: list[list[Any]]) -> Iterator[None]:
    """10,000 actors on 300 machines with 25 Gbit/s, by the costs that ``plan.py`` has measured: what breaks first, and
    what the switches that there are do to it. Adds to ``rows`` what they lack, and yields after each."""
    import plan

    from shoal.planning.costs_file import read
    from shoal.planning.scan import Planner, Point, advice

    cases = ("impala-pong", "impala-cartpole", "apex-dqn-cartpole", "r2d2-cartpole", "gorila-cartpole", "a3c-cartpole",
             "dd-ppo-cartpole", "recurrent-ppo-cartpole")  # fmt: skip
    switches: dict[str, tuple[dict[str, int], ...]] = {name: ({},) for name in cases}
    switches["gorila-cartpole"] += ({"learners": 32},)  # costs of the others are of a program that is wired otherwise
    for name, changes in switches.items():
        path = folder / f"{name}.json"
        if not path.exists():
            continue
        module, cfg = plan.resolved(name)
        cfg = replace(cfg, total_envs=0, envs=8)
        for change in changes:
            planner = Planner(module, replace(cfg, **change), read(path), Machine((CLUSTER,) * 300), seeds=1)
            for actors in (100, 1_000, 10_000):
                if any(known[:3] == [name, change or "", actors] for known in rows):
                    continue
                row = planner.row(Point(actors, nodes=300))
                if row.figures is None:
                    rows.append([name, change or "", actors, "-", "", row.why, ""])
                    yield
                    continue
                link = max(*row.figures.sent, *row.figures.received) / 1e9
                told = row.figures.bottleneck()
                rows.append([name, change or "", actors, row.steps, link, told, advice(row, cfg)])
                print(rows[-1], flush=True)
                yield


def main() -> None:
    path = RESULTS / "papers.json"
    far: list[list[Any]] = json.loads(path.read_text())["beyond"] if path.exists() else []
    rows = [*impala(), *apex(), *dd_ppo_rows(), *es_rows(), *a3c_rows(), *gorila_rows()]
    text = table(
        ["system", "what", "published", "predicted", "error", "assumed"],
        [[r.system, r.what, "" if r.published is None else r.published, r.predicted, r.error, r.assumed] for r in rows],
    )
    print(text, flush=True)
    columns = ["case", "switch", "actors", "steps/s", "busiest link, GB/s", "what holds it back", "what would move it"]
    RESULTS.mkdir(parents=True, exist_ok=True)
    for _ in chain([None], beyond(RESULTS / "costs", far)):
        after = f"\n\n# 10,000 actors\n\n{table(columns, far)}\n" if far else "\n"
        (RESULTS / "papers.md").write_text(f"# The papers' figures\n\n{text}{after}")
        path.write_text(json.dumps({"papers": [vars(r) for r in rows], "beyond": far}, indent=1) + "\n")


if __name__ == "__main__":
    main()
