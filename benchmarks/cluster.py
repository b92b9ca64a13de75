"""What Ray costs: environment steps per second on one node by ``ray`` and by ``local``, and the bytes that cross nodes.

    python benchmarks/cluster.py --only impala-cartpole

``ray`` is an instance of its own on this machine. ``nodes`` is a cluster of as many nodes of one processor as there are
replicas, so that every item and every version crosses (raylets on this machine: it counts bytes, and says nothing of a
network); ``must`` are the bytes of the items themselves and of each version that was sent, without headers and padding.
``rllib`` is RLlib's IMPALA as benchmarks/throughput.py has it, where $SHOAL_PEERS has its environment.
(This file cannot be called ray.py: it would be what ``import ray`` finds.)
"""

from __future__ import annotations

import json
from typing import Any

import throughput
from common import Figures, Side, alternate, chosen, listed, middle, parser, publish, ratio, shorten, table

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "impala-cartpole": ("impala", "CartPole-v1", {"envs": 256, "unroll": 16}),
    "apex-dqn-cartpole": ("apex-dqn", "CartPole-v1", {"samples_per_insert": 0.0}),
    "apex-dqn-shards": ("apex-dqn", "CartPole-v1", {"samples_per_insert": 1.0, "replay_shards": 2}),
    "gorila-cartpole": ("gorila", "CartPole-v1", {"samples_per_insert": 1.0}),
    "dd-ppo-cartpole": ("dd-ppo", "CartPole-v1", {"envs": 64, "unroll": 32}),
    "impala-pong": ("impala", "ALE/Pong-v5", {"batch": 32, "replay": 0, "torso": "nature"}),
    "apex-dqn-pong": ("apex-dqn", "ALE/Pong-v5", {"samples_per_insert": 0.0, "replay": 50_000, "torso": "nature"}),
}
RUNTIMES = ("local", "ray", "nodes")


def main() -> None:
    options = parser(__doc__, seconds=15)
    options.add_argument("--actors", type=int, default=2)
    args = options.parse_args()
    cases = {name: sides(*case, args.actors) for name, case in chosen(CASES, args, ["impala-cartpole"]).items()}
    if args.list:
        listed(cases)
        return
    shorten(args)
    warmup = 0.5 if args.smoke else 5.0
    tables, data = {}, {}
    for name, case in cases.items():
        print(name, flush=True)
        found = alternate(case, args.repeats, ("--seconds", str(args.seconds), "--warmup", str(warmup)))
        local = middle(found["local"], "env_steps_per_s")
        rows = []
        for runtime, figures in found.items():
            rates = [middle(figures, key) for key in ("env_steps_per_s", "updates_per_s", "first_update_s", "pss_mb")]
            rows.append([runtime, rates[0], ratio(rates[0], local), *rates[1:], describe(figures)])
        columns = ["runtime", "steps/s", "of local", "updates/s", "first update s", "PSS MB", "bytes per step"]
        tables[name], data[name] = table(columns, rows), found
    publish("cluster", __doc__ or "", tables, data, args.smoke)


def sides(system: str, env: str, fields: dict[str, Any], actors: int) -> list[Side]:
    """Shoal by each runtime, and RLlib."""
    given = {**fields, "steps": 10**9, "actors": actors, "learner_threads": 1}
    command = (system, "--env", env, "--preset", "none", "--fields", json.dumps(given))
    ours = [Side("shoal", "ours.py", (*command, "--runtime", runtime), name=runtime) for runtime in RUNTIMES]
    return ours + rllib(system, env)


def rllib(system: str, env: str) -> list[Side]:
    """RLlib's side of a case of benchmarks/throughput.py, if there is one."""
    cases = [case for case in throughput.CASES.values() if (case.system, case.env) == (system, env)]
    return [side for case in cases for side in case.peers if side.label == "rllib"]


def describe(figures: list[Figures]) -> str:
    """What crossed in the middle round, and what had to."""
    one = figures[len(figures) // 2]
    must = one.get("must", {})
    parts = [f"{name} {nbytes:,.1f} (must: {must[name]:,.1f})" for name, nbytes in one.get("between", {}).items()]
    return ", ".join(parts) or "-"


if __name__ == "__main__":
    main()
