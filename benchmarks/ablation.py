"""Ablations: what each part of a system is worth. Every variant of a recipe, on every task, with every seed.

    python benchmarks/ablation.py                            list them, with their budgets
    python benchmarks/ablation.py rainbow                    make the runs that are missing, then table and pictures
    python benchmarks/ablation.py rainbow --only breakout --seeds 0 --steps 50000
    python benchmarks/ablation.py rainbow --summary          table and pictures of what is there
    python benchmarks/ablation.py --smoke                    a moment of each on a small task: does it work?

A run whose result is there is not made again: one that was interrupted goes on with the next. Per run it keeps, in
``benchmarks/results/ablation/NAME/TASK/VARIANT``, the configuration, the learning curve, and 30 fresh episodes of the
final policy with the greedy action, whose mean is its score. A table shows the score of each task, a second one the
mean of the last 100 training episodes (all, where there were fewer); each over all tasks the interquartile mean with
its 95 % bootstrap interval (Agarwal et al. 2021) of normalised scores: 0 is random play, 1 the best variant's mean on
that task.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from common import machine
from learning import kept_curve, thin

import shoal
from shoal.analysis.curves import Curve, Group
from shoal.analysis.plot import draw
from shoal.analysis.stats import bootstrap, iqm
from shoal.demonstrations.recording import play
from shoal.envs import Codec
from shoal.policy.policy import evaluation_options

RESULTS = Path(__file__).parent / "results" / "ablation"
EPISODES = 30  # of an evaluation

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Ablation:
    """``fields`` are those of all its runs, on top of them a task's, on top of them a variant's. The first variant is
    the whole system. steps: of each run. small: what makes a run of it short (``--smoke``), on Gymnasium's own tasks.
    budget: in words, on two cores."""

    about: str
    system: str
    steps: int
    tasks: Mapping[str, Fields]
    variants: dict[str, Fields]
    fields: Fields
    small: Fields
    budget: str
    seeds: tuple[int, ...] = (0, 1, 2)
    names: Mapping[str, str] = field(default_factory=dict)  # of variants in tables

    def settings(self, task: str, variant: str) -> dict[str, Any]:
        """Every field that a run sets."""
        return {**self.fields, **self.tasks[task], **self.variants[variant]}

    def runs(self, only: Sequence[str], seeds: Sequence[int]) -> list[tuple[str, str, int]]:
        """(task, variant, seed) of those whose task or variant is among ``only`` (all, if it is empty); seeds first, so
        that an early end leaves fewer seeds of everything."""
        tasks = [t for t in self.tasks if t in only] or list(self.tasks)
        variants = [v for v in self.variants if v in only] or list(self.variants)
        return [(task, variant, seed) for seed in seeds for task in tasks for variant in variants]


GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
EPSILON = dict(epsilon_end=0.01, epsilon_steps=20_000)
EARLY = dict(steps=600, actors=1, min_replay=50, quiet=True)
ABLATIONS = {
    "rainbow": Ablation(
        "Rainbow without each of its parts, and DQN without all of them: Hessel et al. 2018, figure 3, on MinAtar "
        "(Young and Tian 2019; pip install 'shoal[minatar]'), with the preset of that name.",
        "rainbow", 120_000,
        {game: dict(env="minatar.gym:BaseEnv", env_kwargs={"game": game}) for game in GAMES},
        {
            "rainbow": {}, "no-double": dict(double=False), "no-priorities": dict(prioritised=False),
            "no-dueling": dict(dueling=False), "no-n-step": dict(n_step=1), "no-distribution": dict(returns="mean"),
            "no-noise": dict(noisy=False, **EPSILON),
            "dqn": dict(
                double=False, prioritised=False, dueling=False, n_step=1, returns="mean", noisy=False, **EPSILON,
            ),
        },
        dict(  # an earlier preset, with an MLP in place of MinAtar's convolution: what is recorded
            preset="minatar", torso="mlp", hidden=(256,), streams=128, learning_rate=1e-3, optimiser_eps=1e-5,
            max_grad_norm=10.0, v_min=-20.0, v_max=20.0,
        ),
        dict(EARLY, env="CartPole-v1", env_kwargs={}, hidden=(16,), streams=16),
        "5 games, 8 variants, 3 seeds of 120,000 steps",
    ),
    "d4pg": Ablation(
        "D4PG without each of its parts: Barth-Maron et al. 2018, section 4, on two tasks of the DeepMind Control "
        "Suite (pip install 'shoal[envpool]'). The actors share the same number of steps.",
        "d4pg", 50_000,
        {"cartpole-swingup": dict(env="CartpoleSwingup-v1"), "finger-spin": dict(env="FingerSpin-v1")},
        {
            "d4pg": {}, "no-distribution": dict(critic="mean"), "no-n-step": dict(n_step=1),
            "no-priorities": dict(prioritised=False), "one-actor": dict(actors=1), "mixture": dict(critic="mixture"),
        },
        dict(preset="dm_control", actors=4, envs=1, prioritised=True),
        dict(EARLY, env="Pendulum-v1", hidden=(16,), batch=16, samples_per_insert=16.0),
        "2 tasks, 6 variants, 3 seeds of 50,000 steps",
    ),
    "r2d2": Ablation(
        "Four ways to begin a sequence: Kapturowski et al. 2019, section 3, on CartPole without velocities.",
        "r2d2", 500_000,
        {"cartpole-no-velocity": dict(env="shoal/CartPoleNoVelocity-v1")},
        {
            "stored-burn-in": {}, "stored": dict(burn_in=0), "zero-burn-in": dict(start_state="zero"),
            "zero": dict(start_state="zero", burn_in=0, sequence=30, overlap=15),
        },
        dict(preset="classic"),
        dict(EARLY, total_envs=4, unroll=10, core_size=8, hidden=(8,), batch=4, min_replay=5),
        "1 task, 4 variants, 3 seeds of 500,000 steps",
    ),
    "r2d3": Ablation(
        "The share of demonstrations in a batch: Paine et al. 2019, section 5, on a sparse, partially observable task "
        "with varied starts, MiniGrid's KeyCorridor (pip install 'shoal[minigrid]'), with 100 episodes of a scripted "
        "expert (experts.py). rho = 0 is R2D2.",
        "r2d3", 300_000,
        {"key-corridor": dict(env="MiniGrid-KeyCorridorS3R2-v0", demonstrations="experts:s3r2")},
        {
            "rho-1-16": dict(demo_ratio=1 / 16), "rho-1-4": dict(demo_ratio=1 / 4), "rho-1-64": dict(demo_ratio=1 / 64),
            "rho-1-256": dict(demo_ratio=1 / 256), "rho-0": dict(demo_ratio=0.0),
        },
        dict(
            preset="classic", hidden=(128,), core_size=128, sequence=40, overlap=20, burn_in=10, samples_per_insert=8.0,
            learning_rate=5e-4,
        ),
        dict(
            EARLY, env="CartPole-v1", demonstrations="ablation:balancing", total_envs=4, unroll=10, core_size=8,
            hidden=(8,), batch=4, min_replay=5,
        ),
        "1 task, 5 shares, 3 seeds of 300,000 steps",
    ),
}  # fmt: skip


def balancing() -> list[Any]:
    """Demonstrations of CartPole, for a run that only shows that it works."""
    from shoal.envs import EnvOptions

    return list(play("CartPole-v1", EnvOptions(), lambda obs, *_: int(obs[2] + 0.3 * obs[3] > 0), 3, 0))


# -------------------------------------------------------------------------------------------- running
def measure(one: Ablation, settings: Fields, seed: int, folder: Path) -> dict[str, Any]:
    """Train and evaluate one run; its result and its curve go into ``folder``."""
    settings = dict(settings)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "run"
        run = shoal.train(one.system, seed=seed, run_dir=path, **{"steps": one.steps, "quiet": False, **settings})
        report = run.report
        assert report is not None
        if report.reason in ("interrupted", "terminated"):
            raise SystemExit(f"{report.reason} after {report.steps:,} steps: nothing is kept of this run")
        returns = run.policy().evaluate(EPISODES, seed=10_000 + seed)
        folder.mkdir(parents=True, exist_ok=True)
        thin(path, folder / f"seed-{seed}.csv")
    facts = machine()
    result = {
        "score": mean(returns), "returns": list(returns), "training_return": report.episode_return,
        "steps": report.steps, "updates": report.updates, "seconds": round(report.seconds, 1),
        "ended_by": report.reason, "seed": seed, "config": run.config,
        "machine": {k: facts[k] for k in ("date", "cpu", "cores", "isa", "torch")},
    }  # fmt: skip
    (folder / f"seed-{seed}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def random_play(settings: Fields) -> list[float]:
    """Returns of episodes of uniformly drawn actions."""
    from shoal import systems
    from shoal.settings.config import resolve

    env = settings["env"]
    options = resolve(
        systems.load("dqn"), "none", None, {k: settings[k] for k in ("env", "env_kwargs") if k in settings}
    )
    how = evaluation_options(options.cfg)
    actions = Codec(env, how).action_space
    actions.seed(0)
    return [float(np.sum(e.rewards)) for e in play(env, how, lambda *_: actions.sample(), EPISODES, 10_000)]


def make_missing(name: str, one: Ablation, only: Sequence[str], seeds: Sequence[int], steps: int | None) -> None:
    """The runs that have no result yet."""
    for task, settings in one.tasks.items():
        target = RESULTS / name / task / "random.json"
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(json.dumps(random_play(settings)) + "\n", encoding="utf-8")
    for task, variant, seed in one.runs(only, seeds):
        folder = RESULTS / name / task / variant
        if (folder / f"seed-{seed}.json").exists():
            continue
        extra = {"steps": steps} if steps is not None else {}
        result = measure(one, {**one.settings(task, variant), **extra}, seed, folder)
        print(f"{name} {task} {variant} seed {seed}: {result['score']:.4g} after {result['seconds']:.0f} s", flush=True)


# -------------------------------------------------------------------------------------------- telling
Scores = dict[str, dict[str, list[float]]]  # task -> variant -> score of each seed


def recorded(name: str, one: Ablation, what: str = "score") -> Scores:
    """What is there; ``what``: of each run, ``score`` or ``training_return``."""
    found: Scores = {}
    for task in one.tasks:
        for variant in one.variants:
            paths = sorted((RESULTS / name / task / variant).glob("seed-*.json"))
            if paths:
                found.setdefault(task, {})[variant] = [json.loads(p.read_text())[what] for p in paths]
    return found


def normalised(scores: Mapping[str, Sequence[float]], random: float) -> dict[str, np.ndarray]:
    """Of one task, variant -> scores where 0 is random play and 1 the best variant's mean; empty where no variant is
    better than random play."""
    best = max(mean(of) for of in scores.values())
    if best <= random:
        return {}
    return {variant: (np.array(of) - random) / (best - random) for variant, of in scores.items()}


def table(one: Ablation, scores: Scores, random: Mapping[str, float]) -> str:
    """A markdown table of all that is there."""
    tasks = list(scores)
    lines = ["| variant | " + " | ".join(tasks) + " | all tasks |", "|---|" + "---|" * (len(tasks) + 1)]
    shares = {task: normalised(scores[task], random[task]) for task in tasks}
    for variant in one.variants:
        cells = []
        for task in tasks:
            of = scores[task].get(variant)
            cells.append(f"{mean(of):.4g} ({min(of):.4g} to {max(of):.4g})" if of else "-")
        strata = [shares[task][variant] for task in tasks if variant in shares[task]]
        if strata:
            low, high = bootstrap(strata)
            cells.append(f"{float(iqm(np.concatenate(strata))):.2f} [{float(low):.2f}, {float(high):.2f}]")
        else:
            cells.append("-")
        lines.append(f"| {variant} | " + " | ".join(cells) + " |")
    lines.append("| random play | " + " | ".join(f"{random[task]:.4g}" for task in tasks) + " | 0 |")
    return "\n".join(lines) + "\n"


def curves(name: str, one: Ablation, task: str) -> list[Group]:
    """The learning curves of a task, variant by variant."""
    out = []
    for variant in one.variants:
        found = []
        for path in sorted((RESULTS / name / task / variant).glob("seed-*.csv")):
            columns = kept_curve(path)
            if len(columns[0]):
                found.append(Curve(path, one.system, task, {}, *columns))
        if found:
            out.append(Group(variant, one.system, task, {}, found))
    return out


def report(name: str, one: Ablation) -> str:
    """Return both tables: of the final policy, and of the last training episodes."""
    scores = recorded(name, one)
    random = {task: mean(json.loads((RESULTS / name / task / "random.json").read_text())) for task in scores}
    return (
        f"Greedy, {EPISODES} fresh episodes of the final policy:\n\n{table(one, scores, random)}\n"
        "The last 100 training episodes, which explore:\n\n"
        f"{table(one, recorded(name, one, 'training_return'), random)}"
    )


def summary(name: str, one: Ablation) -> None:
    """Table, and a picture of each task's curves by steps and by wall time."""
    scores = recorded(name, one)
    if not scores:
        print(f"{name}: nothing is recorded")
        return
    told = report(name, one)
    (RESULTS / name / "results.md").write_text(f"# {name}\n\n{one.about}\n\n{told}", encoding="utf-8")
    print(told)
    for task in scores:
        if found := curves(name, one, task):
            draw(found, RESULTS / name / f"{task}.png")


def smoke(name: str, one: Ablation) -> None:
    """A moment of the first and the last variant; writes nothing."""
    task = next(iter(one.tasks))
    scores: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for variant in (next(iter(one.variants)), next(reversed(one.variants))):
            settings = {**one.settings(task, variant), **one.small, "runtime": "serial"}
            scores[variant] = [measure(one, settings, 0, Path(scratch) / variant)["score"]]
    print(f"{name}\n\n" + table(one, {"smoke": scores}, {"smoke": 0.0}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*ABLATIONS, []], help="which to run")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="tasks and variants")
    parser.add_argument("--seeds", type=int, nargs="+", help="instead of its own")
    parser.add_argument("--steps", type=int, help="of each run, instead of its own")
    parser.add_argument("--summary", action="store_true", help="no runs: table and pictures of what is there")
    parser.add_argument("--smoke", action="store_true", help="a moment of each, in one process; writes no results")
    args = parser.parse_args()
    for name in args.names or (ABLATIONS if args.smoke or args.summary else ()):
        one = ABLATIONS[name]
        if args.smoke:
            smoke(name, one)
            continue
        if not args.summary:
            make_missing(name, one, args.only, args.seeds or one.seeds, args.steps)
        summary(name, one)
    if not (args.names or args.smoke or args.summary):
        for name, one in ABLATIONS.items():
            print(f"{name}: {one.about}\n  {one.budget}: {', '.join(one.variants)}")


if __name__ == "__main__":
    main()
