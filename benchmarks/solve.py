"""Wall time until the mean return of the last 100 episodes reaches a mark: Shoal and its peers, in turn, in one run.

    python benchmarks/solve.py --only cartpole --seeds 0 1 2 3 4 5 6 7 8 9
    python benchmarks/solve.py --only halfcheetah --seeds 1 2 --add        beside the seeds on record

Strict: all of the last 100 training episodes count, and there must be 100. ``wall`` is training alone, from the first
environment step (the peers: from their call to train); ``total`` begins with the process. Shoal runs the preset that
``--preset auto`` chooses; the peers the best recipe found for them, TD3 the library's defaults. A run that is not
solved counts with its time cap.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from common import Figures, Side, brief, parser, publish, ratio, recorded, run_side, table


@dataclass(frozen=True)
class Task:
    """``mark``: the mean return to reach; ``cap``: seconds; ``systems``: Shoal's contenders; ``fields`` of theirs."""

    env: str
    mark: float
    cap: float
    systems: tuple[str, ...]
    peers: tuple[Side, ...]
    fields: dict[str, Any] = field(default_factory=dict)

    def sides(self) -> list[Side]:
        ours = [
            Side("shoal", "ours.py", (system, "--env", self.env, "--fields", json.dumps(self.fields)), name=system)
            for system in self.systems
        ]
        return [*ours, *self.peers]


def sb3(env: str, *args: str) -> Side:
    return Side("sb3", "peers/bench_sb3.py", ("--env", env, *args))


def sample_factory(env: str, *args: str, threads: int = 1) -> Side:
    return Side("sf", "peers/bench_sf.py", ("--env", env, "--", *args), {"OMP_NUM_THREADS": str(threads)})


TASKS = {
    "cartpole": Task(
        "CartPole-v1", 475, 120, ("recurrent-ppo", "impala"),
        (
            sb3("CartPole-v1", "--envs", "8", "--steps", "32", "--batch", "256", "--epochs", "20", "--lr", "1e-3",
                "--gamma", "0.98", "--gae", "0.8"),
            sample_factory(
                "CartPole-v1", "--num_workers=2", "--num_envs_per_worker=16", "--worker_num_splits=2", "--rollout=32",
                "--batch_size=512", "--num_batches_per_epoch=2", "--batched_sampling=True", "--num_epochs=4",
                "--reward_scale=0.1", "--learning_rate=0.001", "--gamma=0.98", "--gae_lambda=0.9",
            ),
        ),
    ),
    "lunarlander": Task(
        "LunarLander-v3", 200, 600, ("recurrent-ppo", "impala"),
        (
            # rl-baselines3-zoo's recipe for LunarLander with PPO
            sb3("LunarLander-v3", "--envs", "16", "--steps", "1024", "--batch", "64", "--epochs", "4",
                "--gamma", "0.999", "--gae", "0.98", "--entropy", "0.01"),
            # as Shoal's preset but for the learning rate: Sample Factory has no recipe of its own
            sample_factory(
                "LunarLander-v3", "--num_workers=2", "--num_envs_per_worker=16", "--worker_num_splits=2",
                "--rollout=128", "--batch_size=512", "--num_batches_per_epoch=8", "--batched_sampling=True",
                "--num_epochs=4", "--reward_scale=0.05", "--learning_rate=5e-4", "--gamma=0.995", "--gae_lambda=0.97",
                "--exploration_loss_coeff=0.01", "--encoder_mlp_layers", "128", "128",
            ),
        ),
    ),
    "pong": Task(
        "ALE/Pong-v5", 18, 5400, ("recurrent-ppo", "impala"),
        (
            # rl-baselines3-zoo's recipe for Atari with PPO, its schedule over 10 M steps
            sb3("ALE/Pong-v5", "--vec", "subproc", "--envs", "8", "--steps", "128", "--batch", "256", "--epochs", "4",
                "--lr", "2.5e-4", "--clip", "0.1", "--entropy", "0.01", "--linear", "--total", "10000000",
                "--threads", "2"),
            sample_factory(
                "ALE/Pong-v5", "--num_workers=2", "--num_envs_per_worker=8", "--worker_num_splits=2", "--rollout=32",
                "--batch_size=512", "--num_epochs=2", "--learning_rate=2.5e-4", "--gamma=0.99",
                "--exploration_loss_coeff=0.01", "--normalize_input=False", threads=2,
            ),
        ),
    ),
    "halfcheetah": Task(  # Stable-Baselines3's own defaults of TD3, and 10,000 random steps
        "HalfCheetah-v5", 4000, 3600, ("d4pg",),
        (sb3("HalfCheetah-v5", "--algo", "td3", "--envs", "1", "--batch", "256", "--lr", "1e-3"),),
    ),
}  # fmt: skip


def main() -> None:
    options = parser(__doc__, seconds=0, repeats=1)
    options.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    options.add_argument("--add", action="store_true", help="count the runs on record too, those of other seeds")
    options.add_argument("--cap", type=float, help="seconds after which a run is given up, instead of the task's own")
    args = options.parse_args()
    chosen = [w for w in args.only if w in TASKS] or (["cartpole"] if args.smoke else list(TASKS))
    named = [w for w in args.only if w not in TASKS]  # sides
    if args.list:
        for name in chosen:
            print(f"{name}: {TASKS[name].env}, mean return {TASKS[name].mark:g}")
            for side in TASKS[name].sides():
                print(f"    {side.label}: {side.script} {' '.join(side.args)}")
        return
    tables, data = {}, {}
    for name in chosen:
        task = TASKS[name]
        sides = [s for s in task.sides() if not named or s.label in named]
        if args.smoke:
            sides = [s for s in sides if s.label not in task.systems[1:]]
        if not sides:
            sys.exit(
                f"{name} has no side called {' or '.join(named)}; it has {', '.join(s.label for s in task.sides())}"
            )
        data[name] = run(task, sides, args)
        if args.add:
            data[name] = with_recorded(recorded("solve", name), data[name])
        tables[name] = summary(task, sides, data[name], args)
    publish("solve", __doc__ or "", tables, data, args.smoke)


def limits(task: Task, args: Any) -> tuple[float, float]:
    """The mean return to reach, and the seconds after which a run is given up."""
    return (20.0, 60.0) if args.smoke else (task.mark, args.cap or task.cap)  # a random policy reaches 20


def run(task: Task, sides: list[Side], args: Any) -> dict[str, list[Figures]]:
    """The runs of each side, by its label."""
    seeds = args.seeds[:1] if args.smoke else args.seeds
    mark, cap = limits(task, args)
    found: dict[str, list[Figures]] = {side.label: [] for side in sides}
    for seed in seeds:
        for side in sides:
            extra = ("--until", str(mark), "--cap", str(cap), "--seed", str(seed))
            figures = run_side(side, extra, timeout=2 * cap + 120)
            if figures is not None:
                found[side.label].append({"seed": seed, **figures})
                print(f"  seed {seed}, {side.label}: {brief(figures)}", flush=True)
    return {label: runs for label, runs in found.items() if runs}


def with_recorded(old: dict[str, list[Figures]], new: dict[str, list[Figures]]) -> dict[str, list[Figures]]:
    """The new runs of each side, and those on record of seeds that are not among them, by seed."""
    both: dict[str, list[Figures]] = {}
    for label in {**new, **old}:
        runs = new.get(label, [])
        kept = [r for r in old.get(label, []) if r["seed"] not in {n["seed"] for n in runs}]
        both[label] = sorted([*kept, *runs], key=lambda r: r["seed"])
    return both


def summary(task: Task, sides: list[Side], found: dict[str, list[Figures]], args: Any) -> str:
    """The table of one task, and how each side was called."""
    mark, cap = limits(task, args)
    walls = {
        label: median(float(r["wall_s"]) if r.get("solved") else cap for r in runs) for label, runs in found.items()
    }
    peers = [side.label for side in task.peers]
    rows = []
    for label, runs in found.items():
        steps = median(float(r.get("env_steps", "nan")) for r in runs)
        total = median(float(r["total_s"]) if r.get("solved") else cap for r in runs)
        ratios = [ratio(walls[label], walls[p]) if p in walls and label not in peers else "" for p in peers]
        solved = f"{sum(bool(r.get('solved')) for r in runs)}/{len(runs)}"
        rows.append([label, solved, walls[label], total, steps, *ratios])
    columns = ["side", "solved", "wall, median s", "total, median s", "steps, median", *(f"wall / {p}" for p in peers)]
    text = [f"{task.env}, mean return {mark:g}, given up after {cap:g} s.", "", table(columns, rows), ""]
    text += [f"- {side.label}: `{side.script} {' '.join(side.args)}`" for side in sides]
    return "\n".join(text)


if __name__ == "__main__":
    main()
