"""Environment steps per second against the number of actors, per system, with the time shares that explain the curve.

    python benchmarks/scaling.py --only impala-cartpole --actors 1 2 4 8

Figures and the drawing go to benchmarks/results/scaling. On a machine with a GPU, ``--device cuda`` puts the learner
there.
"""

from __future__ import annotations

import json
import os
from typing import Any

from common import RESULTS, Side, alternate, chosen, listed, middle, parser, publish, shorten, table

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "impala-cartpole": ("impala", "CartPole-v1", {"envs": 256, "unroll": 16}),
    "ppo-cartpole": ("recurrent-ppo", "CartPole-v1", {"envs": 256, "unroll": 16, "minibatches": 2}),
    "apex-dqn-cartpole": ("apex-dqn", "CartPole-v1", {"samples_per_insert": 0.0}),
    "impala-pong": ("impala", "ALE/Pong-v5", {"batch": 32, "replay": 0, "torso": "nature"}),
    "ppo-pong": ("recurrent-ppo", "ALE/Pong-v5", {"envs": 16, "unroll": 32, "torso": "nature"}),
    "apex-dqn-pong": ("apex-dqn", "ALE/Pong-v5", {"samples_per_insert": 0.0, "replay": 50_000, "torso": "nature"}),
}


def main() -> None:
    cores = len(os.sched_getaffinity(0))
    options = parser(__doc__, seconds=15)
    options.add_argument("--actors", type=int, nargs="+", default=sorted({1, 2, cores, 2 * cores, 4 * cores}))
    options.add_argument("--device", default="auto", help="of the learner")
    args = options.parse_args()
    shorten(args)
    counts = args.actors[:1] if args.smoke else args.actors
    cases = {
        name: [side(*case, actors, args.device) for actors in counts]
        for name, case in chosen(CASES, args, ["impala-cartpole"]).items()
    }
    if args.list:
        listed(cases)
        return
    warmup = 0.5 if args.smoke else 5.0
    tables, data = {}, {}
    for name, sides in cases.items():
        print(name, flush=True)
        data[name] = alternate(sides, args.repeats, ("--seconds", str(args.seconds), "--warmup", str(warmup)))
        rows = []
        for actors, found in zip(counts, data[name].values(), strict=True):
            rates = [middle(found, key) for key in ("env_steps_per_s", "updates_per_s", "pss_mb")]
            rows.append([actors, *rates, describe(found[len(found) // 2].get("shares", {}))])
        tables[name] = table(["actors", "steps/s", "updates/s", "PSS MB", "time shares"], rows)
    publish("scaling", __doc__ or "", tables, data, args.smoke)
    if not args.smoke:
        draw(counts, data)


def side(system: str, env: str, fields: dict[str, Any], actors: int, device: str) -> Side:
    given = {**fields, "steps": 10**9, "actors": actors, "device": device}
    command = (system, "--env", env, "--preset", "none", "--fields", json.dumps(given))
    return Side("shoal", "ours.py", command, name=f"{actors} actors")


def describe(shares: dict[str, dict[str, float]]) -> str:
    """The largest shares of each role: ``learner: learn 72 %, wait 21 %``."""
    out = []
    for role, parts in shares.items():
        largest = sorted(parts.items(), key=lambda pair: -pair[1])[:3]
        out.append(f"{role}: " + ", ".join(f"{name} {share:.0%}" for name, share in largest))
    return "; ".join(out)


def draw(actors: list[int], data: dict[str, dict[str, Any]]) -> None:
    """One curve per case, relative to its own speed with the fewest actors."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, figures in data.items():
        speeds = [middle(found, "env_steps_per_s") for found in figures.values()]
        axes.plot(actors, [speed / speeds[0] for speed in speeds], marker="o", label=f"{name} ({speeds[0]:,.0f}/s)")
    axes.axvline(len(os.sched_getaffinity(0)), color="grey", linestyle=":", label="cores")
    axes.set(xlabel="actors", ylabel=f"steps/s relative to {actors[0]}", title="Scaling over actors", ylim=0)
    axes.legend()
    figure.savefig(RESULTS / "scaling" / "scaling.svg")


if __name__ == "__main__":
    main()
