"""Learning on real tasks: each recipe is a system, an environment and a length; everything else is Shoal's default
or the preset that ``--preset auto`` chooses, so that these are the results a user gets.

    python benchmarks/learning.py                      list the recipes and what they must reach
    python benchmarks/learning.py cartpole-impala      three seeds, one after another
    python benchmarks/learning.py --summary            table and plots of everything recorded so far

Per seed it keeps, in ``benchmarks/results/learning/RECIPE``: the configuration, the learning curve (mean return of
the last 100 training episodes against steps and seconds), and two fresh evaluations of the final policy of 100 episodes
each (30 on Atari): with the greedy action, and with actions sampled as its agent does outside of training. ``score`` is
what the recipe is judged by: the greedy evaluation for value-based systems, for evolution strategies, and on Atari; the
sampled one for the rest. Never the training return: where that ended the run it is biased by its own mark.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import platform
import shutil
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

import shoal
from shoal.analysis.curves import Curve
from shoal.records.metric_files import read_curve

RESULTS = Path(__file__).parent / "results" / "learning"
DOCS = Path(__file__).parent.parent / "docs" / "results.md"


@dataclass(frozen=True)
class Recipe:
    """``required``: the score to reach; ``stop``: end once the mean of 100 training episodes reaches it; ``metric``: a
    number of the environment's own that is scored and drawn, instead of the return."""

    system: str
    env: str
    steps: int
    required: float
    greedy: bool = False
    stop: float | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    fields: dict[str, Any] = field(default_factory=dict)
    metric: str = ""

    @property
    def scored(self) -> str:
        """The result that is the score."""
        return f"{'greedy' if self.greedy else 'sampled'}_{self.metric or 'return'}"

    @property
    def kind(self) -> str:
        """Recipes that are drawn together."""
        return self.env.partition(":")[0]


TASKS = ("pixel_control", "reward_prediction", "value_replay")
RECIPES = {
    "cartpole-dqn": Recipe("dqn", "CartPole-v1", 150_000, 475, greedy=True),
    "cartpole-apex-dqn": Recipe("apex-dqn", "CartPole-v1", 150_000, 475, greedy=True),
    "cartpole-rainbow": Recipe("rainbow", "CartPole-v1", 150_000, 475, greedy=True),
    "cartpole-impala": Recipe("impala", "CartPole-v1", 1_500_000, 475),
    "cartpole-recurrent-ppo": Recipe("recurrent-ppo", "CartPole-v1", 300_000, 475),
    "cartpole-a3c": Recipe("a3c", "CartPole-v1", 500_000, 475),
    "cartpole-async-q": Recipe("async-q", "CartPole-v1", 1_000_000, 475, greedy=True),
    "cartpole-async-sarsa": Recipe("async-sarsa", "CartPole-v1", 1_000_000, 475, greedy=True),
    "cartpole-async-nstep-q": Recipe("async-nstep-q", "CartPole-v1", 1_000_000, 475, greedy=True),
    "cartpole-gorila": Recipe("gorila", "CartPole-v1", 150_000, 475, greedy=True),
    "cartpole-downpour": Recipe("downpour", "CartPole-v1", 200_000, 475, greedy=True),
    "minatar-breakout-gorila": Recipe(  # pip install minatar
        "gorila", "minatar.gym:BaseEnv", 1_000_000, 0, greedy=True,
        fields={
            "env_kwargs": {"game": "breakout"}, "hidden": (256,), "learning_rate": 2.5e-4, "samples_per_insert": 4.0,
            "target_period": 250, "epsilon_steps": 100_000,
        },
    ),
    **{
        f"{task}-{name}": Recipe("unreal", "shoal.envs.minigrid_pixels:pixels", 500_000, required, stop=0.9, fields={
            "preset": "minigrid", **world, **dict.fromkeys(off, False)
        })
        for task, world, parts in (  # rewards are rare: a key, a door and a goal; a goal far away
            ("doorkey", {}, TASKS), ("empty", {"env_kwargs": {"id": "MiniGrid-Empty-8x8-v0"}}, ()),
        )
        for name, required, off in (
            ("unreal", 0.8, ()), *((f"unreal-no-{part.replace('_', '-')}", 0, (part,)) for part in parts),
            ("a3c", 0, TASKS),
        )
    },
    **{
        f"acrobot-{system}": Recipe(system, "Acrobot-v1", steps, -100, greedy=greedy)  # preset classic
        for system, steps, greedy in (
            ("dqn", 150_000, True), ("apex-dqn", 150_000, True), ("rainbow", 150_000, True), ("gorila", 150_000, True),
            ("impala", 1_000_000, False), ("recurrent-ppo", 500_000, False), ("dd-ppo", 500_000, False),
            ("a3c", 500_000, False), ("async-q", 1_000_000, True), ("async-sarsa", 1_000_000, True),
            ("async-nstep-q", 1_000_000, True), ("es", 2_000_000, True),
            ("downpour", 200_000, True), ("r2d2", 500_000, True),
        )
    },
    **{
        f"pointgoal-{sensor}": Recipe("dd-ppo", f"pointgoal:{sensor}", 4_000_000, required, metric="spl")
        for sensor, required in (("depth", 0.8), ("blind", 0))
    },
    "cartpole-dd-ppo": Recipe("dd-ppo", "CartPole-v1", 300_000, 475),
    "pendulum-apex-dpg": Recipe("apex-dpg", "Pendulum-v1", 20_000, -200, greedy=True),
    "pendulum-d4pg": Recipe("d4pg", "Pendulum-v1", 20_000, -200, greedy=True),
    "pendulum-d4pg-mixture": Recipe("d4pg", "Pendulum-v1", 20_000, -200, greedy=True, fields={"critic": "mixture"}),
    "pendulum-qt-opt": Recipe("qt-opt", "Pendulum-v1", 20_000, -200, greedy=True),
    "cheetah-run-d4pg": Recipe("d4pg", "CheetahRun-v1", 500_000, 0, greedy=True),
    "halfcheetah-d4pg": Recipe("d4pg", "HalfCheetah-v5", 300_000, 0, greedy=True),
    "lunarlander-dqn": Recipe("dqn", "LunarLander-v3", 500_000, 200, greedy=True),
    "lunarlander-apex-dqn": Recipe("apex-dqn", "LunarLander-v3", 500_000, 200, greedy=True),
    "lunarlander-rainbow": Recipe("rainbow", "LunarLander-v3", 500_000, 200, greedy=True),
    "lunarlander-impala": Recipe("impala", "LunarLander-v3", 2_000_000, 200, greedy=True),
    "lunarlander-continuous-impala": Recipe("impala", "LunarLanderContinuous-v3", 2_000_000, 200, greedy=True),
    "lunarlander-recurrent-ppo": Recipe("recurrent-ppo", "LunarLander-v3", 2_000_000, 200),
    "lunarlander-continuous-recurrent-ppo": Recipe(
        "recurrent-ppo", "LunarLanderContinuous-v3", 2_000_000, 200, greedy=True
    ),
    "cartpole-es": Recipe("es", "CartPole-v1", 1_000_000, 475, greedy=True),
    "lunarlander-continuous-es": Recipe("es", "LunarLanderContinuous-v3", 3_000_000, 200, greedy=True),
    "halfcheetah-es": Recipe("es", "HalfCheetah-v5", 3_000_000, 3_000, greedy=True),
    "memory-lstm": Recipe(
        "recurrent-ppo", "shoal/CartPoleNoVelocity-v1", 1_000_000, 400, stop=450,
        fields={"core": "lstm", "core_size": 64},
    ),
    "memory-impala-lstm": Recipe(
        "impala", "shoal/CartPoleNoVelocity-v1", 1_500_000, 400, greedy=True, fields={"core": "lstm", "core_size": 64},
    ),
    "memory-r2d2": Recipe("r2d2", "shoal/CartPoleNoVelocity-v1", 500_000, 400, greedy=True),
    "memory-apex-dqn": Recipe("apex-dqn", "shoal/CartPoleNoVelocity-v1", 500_000, 0, greedy=True),
    "memory-r2d2-zero-state": Recipe(
        "r2d2", "shoal/CartPoleNoVelocity-v1", 500_000, 0, greedy=True,
        fields={"start_state": "zero", "burn_in": 0},
    ),
    "memory-feed-forward": Recipe("recurrent-ppo", "shoal/CartPoleNoVelocity-v1", 500_000, 0),
    "pong-impala": Recipe("impala", "ALE/Pong-v5", 5_000_000, 18, greedy=True, stop=17.5),
    "pong-recurrent-ppo": Recipe("recurrent-ppo", "ALE/Pong-v5", 3_000_000, 18, greedy=True, stop=19.0),
    "pong-recurrent-ppo-fp32": Recipe(
        "recurrent-ppo", "ALE/Pong-v5", 3_000_000, 18, greedy=True, stop=19.0, seeds=(0, 1, 2, 3, 4),
        fields={"precision": "fp32"},
    ),
    "pong-dqn": Recipe("dqn", "ALE/Pong-v5", 1_000_000, 18, greedy=True, stop=16.0),
    "pong-apex-dqn": Recipe("apex-dqn", "ALE/Pong-v5", 1_500_000, 18, greedy=True, stop=15.0),
    **{  # the preset of Atari on a game that it was not chosen on; random play: 0, DQN after 50 M steps: 72
        f"boxing-{system}": Recipe(system, "ALE/Boxing-v5", steps, 50, greedy=True, stop=70.0)
        for system, steps in (
            ("recurrent-ppo", 3_000_000), ("impala", 5_000_000), ("dqn", 1_500_000), ("apex-dqn", 1_500_000),
        )
    },
}  # fmt: skip


def run(name: str, seed: int) -> dict[str, Any]:
    """Train one seed of a recipe, evaluate it, and keep what it left."""
    recipe = RECIPES[name]
    with tempfile.TemporaryDirectory() as scratch:
        trained = shoal.train(
            recipe.system, env=recipe.env, steps=recipe.steps, seed=seed, run_dir=Path(scratch) / "run", quiet=False,
            until_return=recipe.stop, **recipe.fields,
        )  # fmt: skip
        return keep(name, seed, trained)


def keep(name: str, seed: int, trained: shoal.Run) -> dict[str, Any]:
    """Evaluate a run that has ended, and keep what it left."""
    recipe, folder, report = RECIPES[name], RESULTS / name, trained.report
    assert report is not None
    if report.reason in ("interrupted", "terminated"):
        raise SystemExit(f"{name} seed {seed} was {report.reason}: nothing is recorded")
    folder.mkdir(parents=True, exist_ok=True)
    policy, episodes = trained.policy(), 30 if recipe.env.startswith("ALE/") else 100
    evaluation = policy.evaluate(episodes, seed=10_000 + seed)
    sampled = policy.evaluate(episodes, seed=20_000 + seed, greedy=False)
    shutil.copy(trained.path / "config.json", folder / f"seed-{seed}.config.json")
    thin(trained.path, folder / f"seed-{seed}.csv", recipe.metric)
    result: dict[str, Any] = {
        "recipe": name, "seed": seed, "required": recipe.required, "training_return": report.episode_return,
        "greedy_return": mean(evaluation), "sampled_return": mean(sampled), "episodes": episodes, "steps": report.steps,
        "updates": report.updates, "seconds": report.seconds, "ended_by": report.reason,
        "machine": platform.processor() or platform.machine(),
    }  # fmt: skip
    result |= {f"greedy_{k}": v for k, v in evaluation.info.items()}
    result |= {f"sampled_{k}": v for k, v in sampled.info.items()}
    result["score"] = result[recipe.scored]
    (folder / f"seed-{seed}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"{name} seed {seed}: score {_shown(result['score'])} (required {recipe.required:g}), "
          f"{report.steps} steps in {report.seconds:.0f} s", flush=True)  # fmt: skip
    return result


def _shown(score: float) -> str:
    return f"{score:.1f}" if abs(score) >= 10 else f"{score:.2f}"


def thin(run: Path, target: Path, metric: str = "", rows: int = 400) -> None:
    """Keep the learning curve's columns, that of ``metric`` among them, and at most about ``rows`` rows."""
    curve = read_curve(run)
    keep = [r for i, r in enumerate(curve) if i % max(1, len(curve) // rows) == 0 or i == len(curve) - 1]
    columns = ["steps", "seconds", "episodes", "episode_return", "updates", *([metric] if metric else [])]
    with target.open("w", newline="") as f:
        writer = csv.writer(f)
        writer.writerow(columns)
        writer.writerows([f"{r[c]:.8g}" if c in r else "" for c in columns] for r in keep)


def kept_curve(path: Path, metric: str = "") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, seconds and returns (or ``metric``) of a learning curve that ``thin`` has kept, from where it has any."""
    with path.open() as f:
        rows = [r for r in csv.DictReader(f) if r["episode_return"]]
    steps, seconds, scores = (
        np.array([float(r[k]) for r in rows]) for k in ("steps", "seconds", metric or "episode_return")
    )
    return steps, seconds, scores


def recorded(path: Path, recipe: Recipe) -> Curve:
    """A learning curve of a recipe."""
    return Curve(path, recipe.system, recipe.env, recipe.fields, *kept_curve(path, recipe.metric))


HEADER = "| recipe | seeds | score | required | greedy | steps | wall time |"


def results(name: str) -> list[dict[str, Any]]:
    """What is recorded of a recipe, seed by seed."""
    return [json.loads(path.read_text()) for path in sorted((RESULTS / name).glob("seed-?.json"))]


def table() -> str:
    """A markdown table of what is recorded; a score below what is required is bold."""
    lines = [HEADER, "|---|---|---|---|---|---|---|"]
    for name, recipe in RECIPES.items():
        found, least = results(name), recipe.required or -math.inf  # 0: nothing is required
        if not found:
            continue
        scores = [r.get(recipe.scored, r["score"]) for r in found]
        cells = [
            ", ".join(str(r["seed"]) for r in found),
            " / ".join(f"**{_shown(x)}**" if x < least else _shown(x) for x in scores),
            f"{recipe.required:g}" if recipe.required else "-",
            " / ".join(_shown(r[f"greedy_{recipe.metric or 'return'}"]) for r in found),
            " / ".join(f"{r['steps'] / 1000:.0f}K" for r in found),
            " / ".join(f"{r['seconds']:.0f} s" for r in found),
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def summary() -> None:
    """Write the table, to summary.md and in place of that of docs/results.md, and one plot per environment."""
    told, page = table(), DOCS.read_text(encoding="utf-8")
    (RESULTS / "summary.md").write_text(told, encoding="utf-8")
    before, _, rest = page.partition(HEADER)
    DOCS.write_text(before + told + "\n" + rest.partition("\n\n")[2], encoding="utf-8")
    print(told + "\nnot yet run: " + ", ".join(name for name in RECIPES if not results(name)))
    for kind in dict.fromkeys(r.kind for r in RECIPES.values()):
        plot(kind)


def plot(kind: str) -> None:
    """Learning curves of every recipe on one kind of environment."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    drawn, names = False, [n for n, r in RECIPES.items() if r.kind == kind]
    for i, name in enumerate(names):
        for j, path in enumerate(sorted((RESULTS / name).glob("seed-?.csv"))):
            curve = recorded(path, RECIPES[name])
            for axis, x in zip(axes, ("steps", "seconds"), strict=True):
                label = None if j else name
                axis.plot(curve.x(x), curve.returns, color=f"C{i}", label=label, alpha=0.8)
            drawn = True
    if drawn:
        what = RECIPES[names[0]].metric or "return"
        axes[0].set(xlabel="environment steps", ylabel=f"mean {what} of the last 100 episodes", title=kind)
        axes[1].set(xlabel="seconds (wall time)", title="each line one seed")
        axes[0].legend()
        figure.savefig(RESULTS / f"{kind.replace('/', '-')}.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", choices=[*RECIPES, []], help="which to run")
    parser.add_argument("--seeds", type=int, nargs="+", help="instead of the recipe's own")
    parser.add_argument("--summary", action="store_true", help="write the table and the plots")
    args = parser.parse_args()
    for name in args.recipes:
        for seed in args.seeds or RECIPES[name].seeds:
            run(name, seed)
    if args.summary:
        summary()
    elif not args.recipes:
        for name, recipe in RECIPES.items():
            print(f"{name:28} {asdict(recipe)}")


if __name__ == "__main__":
    main()
