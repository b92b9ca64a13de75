"""PPO on MuJoCo beside Stable-Baselines3's PPO: equal steps, equal hyperparameters, three seeds each.

    SHOAL_PEERS=DIR python benchmarks/mujoco.py [--env HalfCheetah-v5] [--steps 500000] [--seeds 0 1 2]

``$SHOAL_PEERS/sb3`` is a virtual environment with stable-baselines3 and gymnasium[mujoco]. Both sides: one environment,
2,048 steps per update, 10 epochs, minibatches of 64, Adam 3e-4 falling linearly to 0, clip 0.2, lambda 0.95, separate
tanh 64-64 networks with orthogonal initialisation, observations and rewards normalised by running statistics
(Shoal's ``--preset mujoco``; SB3's ``PPO`` with ``VecNormalize``). Training returns are raw returns of the last 100
episodes of the sampled policy; evaluation is 20 episodes of the deterministic policy. Seeds run in pairs, one process
of each side at a time, so wall times are not comparable to a run alone.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, stdev

RESULTS = Path(__file__).parent / "results" / "mujoco"

SB3 = """
import json, sys
import numpy as np, torch
torch.set_num_threads(1)
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

env_id, steps, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
curve = []

class Curve(BaseCallback):
    def _on_step(self):
        return True

    def _on_rollout_end(self):
        infos = self.model.ep_info_buffer
        if infos:
            curve.append((self.num_timesteps, float(np.mean([e["r"] for e in infos]))))

env = VecNormalize(make_vec_env(env_id, 1, seed=seed), gamma=0.99)
model = PPO("MlpPolicy", env, n_steps=2048, batch_size=64, n_epochs=10, learning_rate=lambda left: 3e-4 * left,
            gamma=0.99, gae_lambda=0.95, clip_range=0.2, ent_coef=0.0, seed=seed, device="cpu")
model.learn(steps, callback=Curve())
env.training, env.norm_reward = False, False
evaluation, _ = evaluate_policy(model, env, 20, deterministic=True, return_episode_rewards=True)
print(json.dumps({"steps": model.num_timesteps, "training_return": curve[-1][1], "evaluation": evaluation,
                  "curve": curve}))
"""

SHOAL = """
import json, sys
from pathlib import Path
import shoal
from shoal.records.metric_files import read_curve

env_id, steps, seed, run_dir = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
run = shoal.train("recurrent-ppo", env=env_id, preset="mujoco", steps=steps, seed=seed, run_dir=run_dir)
evaluation = run.policy().evaluate(20, seed=10_000 + seed)
curve = [(int(r["steps"]), r["episode_return"]) for r in read_curve(Path(run_dir)) if "episode_return" in r]
print(json.dumps({"steps": run.report.steps, "training_return": run.report.episode_return,
                  "evaluation": list(evaluation), "curve": curve}))
"""


def start(side: str, env: str, steps: int, seed: int, scratch: Path) -> subprocess.Popen[str]:
    python = sys.executable if side == "shoal" else str(Path(os.environ["SHOAL_PEERS"]) / "sb3" / "bin" / "python")
    arguments = [env, str(steps), str(seed), str(scratch / f"{side}-{seed}")]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [python, "-c", SHOAL if side == "shoal" else SB3, *arguments], env=variables, stdout=subprocess.PIPE, text=True
    )


def thin(curve: list[list[float]], rows: int = 200) -> list[list[float]]:
    return curve[:: max(1, len(curve) // rows)] + curve[-1:]


def run(env: str, steps: int, seeds: list[int]) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for seed in seeds:
            pair = {side: start(side, env, steps, seed, Path(scratch)) for side in ("shoal", "sb3")}
            for side, process in pair.items():
                out, _ = process.communicate()
                if process.returncode:
                    raise SystemExit(f"{side}, seed {seed}, failed")
                result = json.loads(out.splitlines()[-1])
                with (RESULTS / f"{env}-{side}-{seed}.csv").open("w", newline="") as file:
                    csv.writer(file).writerows([("steps", "episode_return"), *thin(result.pop("curve"))])
                (RESULTS / f"{env}-{side}-{seed}.json").write_text(json.dumps(result) + "\n")
                print(f"{side} seed {seed}: last 100 training episodes {result['training_return']:.0f}, "
                      f"evaluation {mean(result['evaluation']):.0f}, {result['steps']} steps", flush=True)  # fmt: skip


def summary(env: str) -> None:
    """Table and plot of what is recorded."""
    lines = [
        "| side | seeds | last 100 training episodes | mean | evaluation (20 episodes) | mean |",
        "|---|---|---|---|---|---|",
    ]
    for side in ("shoal", "sb3"):
        results = [json.loads(p.read_text()) for p in sorted(RESULTS.glob(f"{env}-{side}-*.json"))]
        training = [r["training_return"] for r in results]
        greedy = [mean(r["evaluation"]) for r in results]
        spread = [f"{mean(x):.0f} ± {stdev(x):.0f}" if len(x) > 1 else "-" for x in (training, greedy)]
        cells = [str(len(results)), " / ".join(f"{x:.0f}" for x in training), spread[0],
                 " / ".join(f"{x:.0f}" for x in greedy), spread[1]]  # fmt: skip
        lines.append(f"| {side} | " + " | ".join(cells) + " |")
    (RESULTS / f"{env}.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    for i, side in enumerate(("shoal", "sb3")):
        for path in sorted(RESULTS.glob(f"{env}-{side}-*.csv")):
            with path.open() as file:
                rows = list(csv.DictReader(file))
            label = side if path.stem.endswith("-0") else None
            axis.plot(
                [float(r["steps"]) for r in rows], [float(r["episode_return"]) for r in rows], f"C{i}", label=label
            )
    axis.set(xlabel="environment steps", ylabel="mean return of the last 100 episodes", title=f"PPO on {env}")
    axis.legend()
    figure.savefig(RESULTS / f"{env}.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    args = parser.parse_args()
    if "SHOAL_PEERS" not in os.environ:
        raise SystemExit("set $SHOAL_PEERS to the directory with the virtual environment 'sb3'")
    run(args.env, args.steps, args.seeds)
    summary(args.env)


if __name__ == "__main__":
    main()
