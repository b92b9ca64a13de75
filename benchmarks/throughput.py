"""Environment steps per second with the learner on: Shoal and its peers, in turn, in one run.

    python benchmarks/throughput.py --list
    SHOAL_PEERS=~/.cache/shoal-peers python benchmarks/throughput.py --only pong-impala --seconds 40

Both sides of a case have the same environment protocol, network, batch and number of epochs; the peers run the best
configuration found for them, RLlib on Gymnasium's NumPy CartPole, the others on Python instances. A step is an agent
step (Atari: four emulator frames). ``limit`` is what two cores could do if nothing but the environment, inference and
gradients cost anything (benchmarks/limits.py, measured in each round just before); ``share`` is how much of it was
reached (median of the rounds).
``first update`` counts from the start of the side's process (RLlib: to its first result); ``PSS`` is of all processes.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from common import Figures, Side, alternate, chosen, listed, middle, parser, publish, ratio, shorten, table


@dataclass(frozen=True)
class Case:
    """One comparison. ``fields``: of Shoal's configuration; ``variants``: name -> further fields; ``minibatch`` and
    ``passes``: what one gradient step learns from, and how often each step is learned from."""

    system: str
    env: str
    fields: dict[str, Any]
    minibatch: int
    passes: float
    peers: tuple[Side, ...]
    variants: tuple[tuple[str, dict[str, Any]], ...] = (("shoal", {}),)
    what: str = ""

    def ours(self) -> list[Side]:
        return [Side("shoal", "ours.py", self.arguments(extra), name=name) for name, extra in self.variants]

    def limit(self, variant: str, extra: dict[str, Any]) -> Side:
        given = ("--minibatch", str(self.minibatch), "--passes", str(self.passes))
        return Side("shoal", "limits.py", (*self.arguments(extra), *given), name=f"limit of {variant}")

    def arguments(self, extra: dict[str, Any]) -> tuple[str, ...]:
        return (self.system, "--env", self.env, "--preset", "none", "--fields", json.dumps({**self.fields, **extra}))


def rllib(*args: str) -> Side:
    return Side("rllib", "peers/bench_rllib.py", args)


def sample_factory(*args: str, threads: int = 1) -> Side:
    return Side("sf", "peers/bench_sf.py", args, {"OMP_NUM_THREADS": str(threads)})


def sb3(*args: str) -> Side:
    return Side("sb3", "peers/bench_sb3.py", args)


def rlox(*args: str) -> Side:
    return Side("rlox", "peers/bench_rlox.py", args)


def tianshou(*args: str) -> Side:
    return Side("tianshou", "peers/bench_tianshou.py", args)


CARTPOLE, PONG = ("--env", "CartPole-v1"), ("--env", "ALE/Pong-v5")
NUMPY = ("--vectorize", "vector_entry_point")
FOREVER = {"steps": 10**9}
PLAIN = {"double": False, "n_step": 1}  # as the peers' DQN is
PRECISIONS = (("shoal fp32", {"precision": "fp32"}), ("shoal bf16", {"precision": "bf16"}))

CASES = {
    "cartpole-impala": Case(
        "impala", "CartPole-v1",
        {**FOREVER, "actors": 1, "envs": 512, "unroll": 16, "queue": 2, "activation": "tanh"}, 8192, 1,
        (
            rllib("--algo", "impala", *CARTPOLE, "--envs", "64", "--fragment", "64", "--batch", "8192", *NUMPY),
            sample_factory(
                *CARTPOLE, "--", "--num_workers=2", "--num_envs_per_worker=64", "--worker_num_splits=2",
                "--rollout=32", "--batch_size=8192", "--batched_sampling=True", "--num_epochs=1",
            ),
        ),
        (("shoal", {}), ("shoal, two learners", {"actors": 2, "learners": 2})),
        what="64-64 tanh MLP shared by policy and value; batches of 8,192 steps, one epoch",
    ),
    "cartpole-ppo": Case(
        "recurrent-ppo", "CartPole-v1",
        {**FOREVER, "actors": 2, "envs": 512, "unroll": 16, "minibatches": 2, "epochs": 4}, 8192, 4,
        (
            sb3(*CARTPOLE, "--envs", "64", "--steps", "256", "--batch", "8192", "--hidden", "64", "64"),
            rllib("--algo", "ppo", *CARTPOLE, "--envs", "64", "--batch", "16384", "--minibatch", "8192", *NUMPY),
            rlox(*CARTPOLE, "--envs", "64", "--steps", "256", "--batch", "8192"),
        ),
        (("shoal", {}), ("shoal, one learner process", {"learner_processes": 1})),
        "64-64 tanh MLP shared by policy and value; rollouts of 16,384 steps, 4 epochs in minibatches of 8,192",
    ),
    "cartpole-dqn": Case(
        "dqn", "CartPole-v1",
        {**FOREVER, **PLAIN, "envs": 8, "unroll": 8, "batch": 64, "samples_per_insert": 8.0, "hidden": [128, 128]},
        64, 8,
        (
            sb3("--algo", "dqn", *CARTPOLE, "--envs", "8", "--batch", "64", "--hidden", "128", "128"),
            tianshou(*CARTPOLE, "--envs", "8", "--batch", "64"),
        ),
        what="128-128 MLP, uniform replay, batches of 64, 8 samples per environment step",
    ),
    "pong-impala": Case(
        "impala", "ALE/Pong-v5",
        {**FOREVER, "envs": 32, "unroll": 16, "batch": 32, "queue": 2, "replay": 0, "torso": "nature"}, 512, 1,
        (
            sample_factory(
                *PONG, "--", "--num_workers=2", "--num_envs_per_worker=8", "--worker_num_splits=2", "--rollout=32",
                "--batch_size=512", "--num_epochs=1", threads=2,
            ),
            rllib("--algo", "impala", *PONG, "--envs", "4", "--fragment", "50", "--batch", "400"),
        ),
        PRECISIONS,
        "84x84x4, Nature network; batches of 512 steps (RLlib 400), one epoch",
    ),
    "pong-ppo": Case(
        "recurrent-ppo", "ALE/Pong-v5",
        {**FOREVER, "envs": 16, "unroll": 32, "minibatches": 4, "epochs": 4, "torso": "nature"}, 256, 4,
        (
            sb3(*PONG, "--vec", "subproc", "--envs", "8", "--steps", "128", "--batch", "256", "--threads", "2"),
            rllib("--algo", "ppo", *PONG, "--envs", "4", "--batch", "1024", "--minibatch", "256"),
        ),
        PRECISIONS,
        "84x84x4, Nature network; rollouts of 1,024 steps, 4 epochs in minibatches of 256",
    ),
    "pong-dqn": Case(
        "dqn", "ALE/Pong-v5",
        {
            **FOREVER, **PLAIN, "envs": 8, "unroll": 16, "batch": 32, "samples_per_insert": 8.0, "torso": "nature",
            "hidden": [512], "replay": 100_000,
        },
        32, 8,
        (
            sb3("--algo", "dqn", *PONG, "--envs", "8", "--batch", "32", "--threads", "2"),
            tianshou(*PONG, "--envs", "8", "--batch", "32"),
        ),
        PRECISIONS,
        "84x84x4, Nature network, uniform replay, batches of 32, 8 samples per environment step",
    ),
    "cartpole-apex-dqn": Case(
        "apex-dqn", "CartPole-v1",
        {**FOREVER, **PLAIN, "actors": 1, "envs": 16, "unroll": 16, "batch": 64, "samples_per_insert": 8.0,
         "hidden": [128, 128], "dueling": False},
        64, 8,
        (
            sb3("--algo", "dqn", *CARTPOLE, "--envs", "8", "--batch", "64", "--hidden", "128", "128"),
            tianshou(*CARTPOLE, "--envs", "8", "--batch", "64"),
        ),
        what="as cartpole-dqn; Shoal also prioritises, which the peers do not",
    ),
    "pong-apex-dqn": Case(
        "apex-dqn", "ALE/Pong-v5",
        {
            **FOREVER, **PLAIN, "actors": 1, "envs": 16, "unroll": 16, "batch": 32, "samples_per_insert": 8.0,
            "torso": "nature", "hidden": [512], "replay": 100_000, "dueling": False,
        },
        32, 8,
        (
            sb3("--algo", "dqn", *PONG, "--envs", "8", "--batch", "32", "--threads", "2"),
            tianshou(*PONG, "--envs", "8", "--batch", "32"),
        ),
        PRECISIONS,
        "as pong-dqn; Shoal also prioritises, which the peers do not",
    ),
}  # fmt: skip
SMOKE = ("cartpole-dqn",)


def feasible(case: Case) -> Case:
    """Without the variants in bfloat16 where the CPU would have to imitate it."""
    from shoal.nets.precision import supports_bf16

    if supports_bf16("cpu"):
        return case
    kept = tuple(variant for variant in case.variants if variant[1].get("precision") != "bf16")
    if len(kept) < len(case.variants):
        print("bfloat16 is left out: this CPU has neither AMX nor AVX512_BF16", file=sys.stderr, flush=True)
    return replace(case, variants=kept)


def shares(found: Sequence[Figures], limits: Sequence[Figures]) -> list[Figures]:
    """Of each round, how much of the limit taken just before it was reached."""
    key = "env_steps_per_s"
    return [{"share": f[key] / of[key]} for f, of in zip(found, limits, strict=False) if key in f and key in of]


def run(name: str, case: Case, args: Any) -> tuple[str, dict[str, Any]]:
    """Measure one case: its table, and all figures."""
    print(f"{name}: {case.what}", flush=True)
    warmup = 0.5 if args.smoke else max(5.0, args.seconds / 4)
    extra = ("--seconds", str(args.seconds), "--warmup", str(warmup))
    limits = {name: case.limit(name, fields) for name, fields in case.variants}
    sides = [side for ours in case.ours() for side in (limits[ours.label], ours)] + list(case.peers)
    figures = alternate(sides, args.repeats, extra)
    speeds = {label: middle(found, "env_steps_per_s") for label, found in figures.items()}
    columns = ["side", "precision", "steps/s", "updates/s", "limit", "share", *(f"x {s.label}" for s in case.peers)]
    columns += ["first update, s", "PSS, MB"]
    rows = []
    for side in [*case.ours(), *case.peers]:
        if (label := side.label) not in figures:
            continue  # a peer that is missing
        limit = limits[label].label if label in limits else ""
        ratios = [ratio(speeds[label], speeds.get(p.label, 0.0)) if limit else "" for p in case.peers]
        facts = [middle(figures[label], key) for key in ("updates_per_s", "first_update_s", "pss_mb")]
        share = middle(shares(figures[label], figures.get(limit, [])), "share")
        precision = figures[label][0].get("precision", "")
        rows.append(
            [label, precision, speeds[label], facts[0], speeds.get(limit, math.nan), share, *ratios, *facts[1:]]
        )
    text = [case.what + ".", "", table(columns, rows), ""]
    for bound in limits.values():
        found = figures[bound.label]
        parts = [f"{part} {middle(found, f'{part}_us'):.3g} us" for part in ("env", "inference", "gradient")]
        text.append(
            f"- {bound.label}: {', '.join(parts)}, passes {found[0].get('passes')}, {found[0].get('cores')} cores"
        )
    for side in sides:
        text.append(f"- {side.label}: `{side.script} {' '.join(side.args)}`")
    return "\n".join(text), {"sides": figures}


def main() -> None:
    options = parser(__doc__, seconds=30)
    options.add_argument(
        "--machine", default="", help="keep the results beside those of another machine, under this name"
    )
    args = options.parse_args()
    cases = chosen(CASES, args, SMOKE)
    if args.list:
        sides = {name: [*case.ours(), *case.peers] for name, case in cases.items()}
        listed(sides, {name: case.what for name, case in cases.items()})
        return
    shorten(args)
    tables, data = {}, {}
    for name, case in cases.items():
        title = f"{name}, {args.machine}" if args.machine else name
        tables[title], data[title] = run(name, feasible(case), args)
    publish("throughput", __doc__ or "", tables, data, args.smoke)


if __name__ == "__main__":
    main()
