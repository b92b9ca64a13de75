"""What preemption wins in DD-PPO where one rank is four times slower than the others.

    python benchmarks/stragglers.py                       # three seeds, 45 s each
    python benchmarks/stragglers.py --smoke

Four ranks play CartPole behind a simulator of a fixed speed (``--step`` milliseconds for one step of a rank's
environments, spent asleep, so that cores are not what is measured), and one of them takes four times as long. Three
cases, in turn: the straggler is preempted (sync_frac 0.6, the paper's), everybody waits for it (sync_frac 2, which is
synchronous PPO), and, to compare, nobody is slow. All else is equal, and the learning rate constant. Time is counted
from the first update on, and steps are those of all ranks; the score is the mean return of the last 100 training
episodes. Writes results.json, results.md and stragglers.png to benchmarks/results/stragglers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import mean
from typing import Any

from common import RESULTS, Figures, middle, parser, publish, table

from shoal.api import Context, Role
from shoal.local.runtime import LocalRuntime
from shoal.metering.aggregator import Snapshot
from shoal.program import Program
from shoal.runtime.launch import Launch, Stop
from shoal.systems import dd_ppo

RANKS, SLOW = 4, 4  # how many ranks there are, and how many times slower the last of them is
CASES = {"preempted": (0.6, SLOW), "synchronous": (2.0, SLOW), "nobody slow": (2.0, 1)}  # sync_frac, slowness
SETTINGS: dict[str, Any] = dict(
    env="CartPole-v1", actors=RANKS, envs=8, unroll=32, epochs=3, minibatches=4, learning_rate=1e-3, gamma=0.98,
    normalise_reward=True, min_fraction=0.25, device="cpu", steps=10_000_000,
)  # fmt: skip


class Curve:
    """An observer that keeps (seconds, environment steps, updates, mean return of the last 100 episodes), for so many
    ``seconds`` from the first update on, when all ranks are there."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.begin = seconds, Snapshot(0, 0.0, 0, 0, 0.0, 0.0, float("nan"), 0.0, 0)
        self.points: list[tuple[float, int, int, float]] = []
        self.fractions: list[float] = []

    def update(self, snapshot: Snapshot) -> None:
        if not self.begin.updates:
            self.begin = snapshot
            return
        since = snapshot.seconds - self.begin.seconds
        steps, updates = snapshot.steps - self.begin.steps, snapshot.updates - self.begin.updates
        self.points.append((since, steps, updates, snapshot.episode_return))
        self.fractions.append(snapshot.records.get("rollout_fraction", float("nan")))

    def over(self) -> bool:
        return bool(self.points) and self.points[-1][0] >= self.seconds


def slowed(program: Program, step: float, slowness: int) -> Program:
    """The program with environments that take ``step`` seconds for a step, and ``slowness`` times that in the last."""

    def wrap(make: Callable[..., Any]) -> Callable[..., Role]:
        def made(ctx: Context, **ports: Any) -> Role:
            role = make(ctx, **ports)
            env = role.collector.env
            act, seconds = env.step, step * (slowness if ctx.index == ctx.replicas - 1 else 1)

            def slow(action: Any) -> Any:
                time.sleep(seconds)
                return act(action)

            env.step = slow
            return role  # type: ignore[no-any-return]

        return made

    program.roles = [replace(role, make=wrap(role.make)) for role in program.roles]
    return program


def measure(case: str, seed: int, seconds: float, step: float) -> Figures:
    """One run of a case."""
    sync_frac, slowness = CASES[case]
    program = dd_ppo.program(dd_ppo.Config(**SETTINGS, sync_frac=sync_frac))
    curve = Curve(seconds)
    launch = Launch(seed=seed, stop=Stop(asked=curve.over), observers=[curve])
    LocalRuntime().launch(slowed(program, step, slowness), launch)
    took, steps, updates, reached = next(point for point in curve.points if point[0] >= seconds)
    fraction = mean(value for value in curve.fractions if value == value)
    return {
        "seed": seed, "steps_per_s": steps / took, "updates_per_s": updates / took, "return": reached,
        "rollout_fraction": fraction, "curve": [[round(value, 2) for value in point] for point in curve.points],
    }  # fmt: skip


def draw(found: dict[str, list[Figures]], path: Any) -> None:
    """Return and steps against time: every seed as a line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots(1, 2)
    for number, (case, runs) in enumerate(found.items()):
        for which, run in enumerate(runs):
            seconds, steps, _, returns = zip(*run["curve"], strict=True)
            label = case if which == 0 else None
            axes[0].plot(seconds, returns, color=f"C{number}", label=label, linewidth=1)
            axes[1].plot(seconds, steps, color=f"C{number}", label=label, linewidth=1)
    axes[0].set(xlabel="seconds", ylabel="mean return of the last 100 episodes")
    axes[1].set(xlabel="seconds", ylabel="environment steps of all ranks")
    for one in axes:
        one.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    options = parser(__doc__, seconds=45.0)
    options.add_argument("--step", type=float, default=8.0, help="milliseconds of one step of a rank's environments")
    args = options.parse_args()
    cases = [case for case in CASES if not args.only or any(name in case for name in args.only)]
    if args.list:
        print("\n".join(f"{case}: sync_frac {CASES[case][0]}, last rank {CASES[case][1]} x slower" for case in cases))
        return
    seconds, repeats = (2.0, 1) if args.smoke else (args.seconds, args.repeats)
    found: dict[str, list[Figures]] = {case: [] for case in cases}
    for seed in range(repeats):
        for case in cases:
            found[case].append(measure(case, seed, seconds, args.step / 1e3))
            shown = {k: round(v, 2) for k, v in found[case][-1].items() if k != "curve"}
            print(f"  {case}: {shown}", flush=True)
    columns = ("case", "steps/s", "updates/s", "share of a rollout", f"return after {seconds:g} s", "of each seed")
    rows = [
        (
            case, middle(runs, "steps_per_s"), middle(runs, "updates_per_s"), middle(runs, "rollout_fraction"),
            middle(runs, "return"), ", ".join(f"{run['return']:.0f}" for run in runs),
        )
        for case, runs in found.items()
    ]  # fmt: skip
    about = (
        f"DD-PPO on CartPole-v1 with {RANKS} ranks of {SETTINGS['envs']} environments, each step of a rank "
        f"{args.step:g} ms, of the last {SLOW} times that. Medians of {repeats} seeds, {seconds:g} s after "
        f"the first update."
    )
    title = "one rank four times slower"
    publish("stragglers", about, {title: table(columns, rows)}, {title: found}, args.smoke)
    if not args.smoke:
        draw(found, RESULTS / "stragglers" / "stragglers.png")


if __name__ == "__main__":
    main()
