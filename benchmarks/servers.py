"""A parameter server: gradients per second beside those of Ray and torch.distributed.rpc, and Gorila's updates per
second beside DQN's, in turn in one run.

    python benchmarks/servers.py --list
    SHOAL_PEERS=~/.cache/shoal-peers python benchmarks/servers.py

In the first cases, two workers fetch the weights and push one gradient as fast as they can, without learning, and one
server does w <- w - lr g. In the last, both systems learn from batches of the same size of CartPole with one actor and
one learner; Gorila has one shard, a process more.
"""

from __future__ import annotations

import json
from typing import Any

from common import SHOAL, Figures, Side, alternate, middle, parser, publish, ratio, table

FLOATS = {"small (4,610 floats)": 4_610, "nature (1.7 M floats)": 1_700_000}
CARTPOLE: dict[str, Any] = {
    "steps": 10**9, "double": False, "n_step": 1, "actors": 1, "envs": 8, "unroll": 8, "batch": 64,
    "samples_per_insert": 8.0, "hidden": [128, 128],
}  # fmt: skip
UPDATES = "cartpole, updates of gorila and dqn"


def gradients(floats: int) -> list[Side]:
    size = ("--floats", str(floats))
    return [
        Side(SHOAL, "ours_server.py", size),
        Side("rllib", "peers/bench_ps.py", ("--peer", "ray", *size), name="ray"),
        Side(SHOAL, "peers/bench_ps.py", ("--peer", "rpc", *size), name="rpc"),
    ]


def learners() -> list[Side]:
    def side(system: str, **fields: Any) -> Side:
        words = ("--env", "CartPole-v1", "--preset", "none", "--fields", json.dumps({**CARTPOLE, **fields}))
        return Side(SHOAL, "ours.py", (system, *words), name=system)

    return [side("gorila", learners=1, shards=1, max_lag=0, outliers=0.0), side("dqn")]


def rows(found: dict[str, list[Figures]], key: str, first: str) -> list[list[Any]]:
    ours = middle(found.get(first, []), key)
    return [[name, middle(figures, key), ratio(ours, middle(figures, key))] for name, figures in found.items()]


def main() -> None:
    args = parser(__doc__, seconds=10.0).parse_args()
    cases = {name: gradients(floats) for name, floats in FLOATS.items()} | {UPDATES: learners()}
    cases = {name: sides for name, sides in cases.items() if not args.only or any(word in name for word in args.only)}
    if args.list:
        for name, sides in cases.items():
            print(f"{name}\n" + "\n".join(f"  {s.label}: {s.script} {' '.join(s.args)}" for s in sides))
        return
    seconds, repeats = ("0.5", 1) if args.smoke else (str(args.seconds), args.repeats)
    tables, figures = {}, {}
    for name, sides in cases.items():
        print(name, flush=True)
        learn = name == UPDATES
        warm = ("--warmup", "0.2") if learn and args.smoke else ()
        found = alternate(sides, repeats, ("--seconds", seconds, *warm))
        key, first = ("updates_per_s", "gorila") if learn else ("grads_per_s", SHOAL)
        unit = "updates/s" if learn else "gradients/s"
        tables[name] = table(["side", unit, f"{first} is x as fast"], rows(found, key, first))
        figures[name] = found
    publish("servers", __doc__ or "", tables, figures, args.smoke)


if __name__ == "__main__":
    main()
