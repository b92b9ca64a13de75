"""SAC and TD3, as ``examples/`` writes them with Shoal's public parts, beside Stable-Baselines3's: equal settings and
steps, three seeds.

    SHOAL_PEERS=DIR python benchmarks/own_systems.py                every run that is missing
    SHOAL_PEERS=DIR python benchmarks/own_systems.py --cores 0 1    two slots of one core each
    python benchmarks/own_systems.py --table                        the table of what is recorded

``$SHOAL_PEERS/sb3`` is a virtual environment with stable-baselines3 and gymnasium[mujoco] (benchmarks/peers/setup.sh).
Both sides have the values of ``SHARED``: networks, Adam's rate, batches, replay, one update per step after the same
number of steps, target averaging and discount; TD3 adds noise of the same size to its actions. Three things stay each
library's own: the first actions (Stable-Baselines3's are uniform; SAC's of ``examples/`` are sampled from the untrained
policy, TD3's have noise of standard deviation 1 on top of it), the optimisers (Stable-Baselines3 has one of each
network, the examples one of all), and the order of steps and updates (strictly in turn there; an actor and a learner
in processes of their own here, an unroll of 8 steps apart). Recorded per seed, in
``benchmarks/results/own_systems/ENV/SIDE/SEED``: the learning curve (mean return of the last 100 training episodes) and
the returns of 20 fresh episodes of the greedy policy. What is recorded is not run again, unless with ``--again``.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from common import RESULTS, interpreter, machine, refuse, table
from learning import thin
from recorded_runs import Job, keep, kept, kept_seeds, parser, run_jobs

KEPT = RESULTS / "own_systems"
EXAMPLES = Path(__file__).parent.parent / "examples"
STEPS = {"Pendulum-v1": 8_000, "InvertedPendulum-v5": 15_000}
SIDES = ("sac", "sb3-sac", "td3", "sb3-td3")
NAMES = {"sac": "SAC of `examples/`", "td3": "TD3 of `examples/`", "sb3-sac": "SB3's SAC", "sb3-td3": "SB3's TD3"}
SEEDS = (0, 1, 2)
EPISODES = 20  # of an evaluation
HOURS = 2.0  # after which a run is given up
SHARED: dict[str, Any] = {
    "hidden": (64, 64), "learning_rate": 1e-3, "batch": 128, "replay": 100_000, "min_replay": 1_000, "gamma": 0.99,
}  # fmt: skip
TAU = 0.005  # of both examples and of Stable-Baselines3
NOISE = 0.1  # of TD3's actions on both sides, as in the paper
PEER = {
    "policy_kwargs": {"net_arch": list(SHARED["hidden"])}, "learning_rate": SHARED["learning_rate"],
    "batch_size": SHARED["batch"], "buffer_size": SHARED["replay"], "learning_starts": SHARED["min_replay"],
    "gamma": SHARED["gamma"], "tau": TAU, "train_freq": 1, "gradient_steps": 1,
}  # fmt: skip
Run = tuple[str, str, int]  # environment, side, seed


def folder(env: str, side: str, seed: int) -> Path:
    """Where a run is recorded."""
    return KEPT / env / side / str(seed)


def missing(again: bool) -> list[Run]:
    """The runs that are not recorded, the first seed of every side before the second of any."""
    every = [(env, side, seed) for seed, env, side in product(SEEDS, STEPS, SIDES)]
    return [run for run in every if again or kept(folder(*run)) is None]


def play(env: str, side: str, seed: int) -> None:
    """Train and evaluate one seed of one side and record it. Called in a process of its own."""
    (play_peer if side.startswith("sb3-") else play_own)(env, side, seed)


def play_own(env: str, side: str, seed: int) -> None:
    import shoal

    example = EXAMPLES / f"own_{side}.py"
    with tempfile.TemporaryDirectory() as scratch:
        run = shoal.train(
            str(example), env=env, seed=seed, steps=STEPS[env], total_envs=1, unroll=8, n_step=1, prioritised=False,
            samples_per_insert=float(SHARED["batch"]), run_dir=Path(scratch) / "run", **SHARED,
        )  # fmt: skip
        report = run.report
        assert report is not None
        returns = list(run.policy().evaluate(EPISODES, seed=10_000 + seed))
        curve = Path(scratch) / "curve.csv"
        thin(run.path, curve)
        result = {"steps": report.steps, "updates": report.updates, "returns": returns}
        record(env, side, seed, result, curve)


def play_peer(env: str, side: str, seed: int) -> None:
    name = side.removeprefix("sb3-")
    values = PEER | ({"action_noise": NOISE} if name == "td3" else {})
    script = str(Path(__file__).parent / "peers" / "train_sb3.py")
    words = [name, env, str(STEPS[env]), str(seed), "inf", "inf", str(EPISODES), "greedy", json.dumps(values)]
    done = subprocess.run([str(interpreter("sb3")), script, *words], stdout=subprocess.PIPE, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    with tempfile.TemporaryDirectory() as scratch:
        curve = Path(scratch) / "curve.csv"
        with curve.open("w", newline="") as file:
            csv.writer(file).writerows([("steps", "seconds", "episode_return"), *told["curve"]])
        result = {"steps": told["steps"], "updates": told["updates"], "returns": told["evaluation"]}
        record(env, side, seed, result, curve)


def record(env: str, side: str, seed: int, result: dict[str, Any], curve: Path) -> None:
    values = {**SHARED, "tau": TAU, "noise": NOISE}
    about = {"env": env, "side": side, "seed": seed, "values": values, "machine": machine()}
    keep(folder(env, side, seed), about | result, {"curve.csv": curve})


def summary() -> str:
    """Return the table of what is recorded, in Markdown."""
    rows = []
    for env, side in product(STEPS, SIDES):
        if found := kept_seeds(folder(env, side, 0).parent):
            scores = [mean(result["returns"]) for result in found]
            spread = f"{mean(scores):.1f} ± {stdev(scores):.1f}" if len(scores) > 1 else f"{scores[0]:.1f}"
            each = " / ".join(f"{score:.1f}" for score in scores)
            updates = f"{mean(result['updates'] for result in found):,.0f}"
            rows.append([env, NAMES[side], f"{found[0]['steps']:,}", updates, each, spread])
    return table(["task", "system", "steps", "updates", "score of each seed", "mean ± deviation of the seeds"], rows)


def main() -> None:
    args = parser(__doc__).parse_args()
    if args.play:
        env, side, seed = args.play
        play(env, side, int(seed))
        return
    if not args.table:
        if "SHOAL_PEERS" not in os.environ or interpreter("sb3") is None:
            refuse("set $SHOAL_PEERS to the directory with the virtual environment 'sb3'")
        jobs = [
            Job(f"{side} on {env}, seed {seed}", (sys.executable, __file__, "--play", env, side, str(seed)))
            for env, side, seed in missing(args.again)
        ]
        run_jobs(jobs, [[core] for core in args.cores], HOURS)
    print(summary())


if __name__ == "__main__":
    main()
