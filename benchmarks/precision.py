"""Whether bfloat16 learns as fp32 does: learning curves of PPO on Pong that learning.py has recorded of both, when its
preset had 1.5 million steps.

    python benchmarks/precision.py

The *band* is what lies between the lowest and the highest of fp32's seeds at the same number of steps; a run that has
ended stays where it was. Table and drawing go to ``benchmarks/results/learning``.
"""

from __future__ import annotations

import numpy as np
from common import table
from learning import RECIPES, RESULTS, recorded

from shoal.analysis.curves import Curve

SIDES = ("bf16", "fp32")
MARKS = (-15.0, -10.0, 0.0, 10.0, 18.0)
EVERY = 10_000  # steps between two points of comparison
LEAST = 1.0  # return: a mean of 100 episodes is no better known


def steps_to(curve: Curve, mark: float) -> str:
    reached = curve.reached(mark)
    return "-" if reached is None else f"{reached[0] / 1000:,.0f}K"


def compare(curves: dict[str, list[Curve]]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Points of comparison [P], and the returns of each side there [seeds, P]."""
    every = [c.steps for side in curves.values() for c in side]
    at = np.arange(max(steps[0] for steps in every), max(steps[-1] for steps in every), EVERY)
    return at, {side: np.array([np.interp(at, c.steps, c.returns) for c in found]) for side, found in curves.items()}


def outside(returns: np.ndarray, band: np.ndarray) -> np.ndarray:
    """How far each point [P] lies outside of the seeds' band [seeds, P]."""
    found: np.ndarray = np.maximum(returns - band.max(0), band.min(0) - returns).clip(min=0.0)
    return found


def recorded_curves() -> dict[str, list[Curve]]:
    """Return the curves of each side, seed by seed."""
    recipe, home = RECIPES["pong-recurrent-ppo"], RESULTS / "precision"
    return {side: [recorded(path, recipe) for path in sorted((home / side).glob("*.csv"))] for side in SIDES}


def report() -> str:
    """Return both tables: when each run reached a mark, and how far it lies outside of the band."""
    curves = recorded_curves()
    at, returns = compare(curves)
    marks = [[side, i, *(steps_to(c, m) for m in MARKS)] for side, found in curves.items() for i, c in enumerate(found)]
    told = table(["side", "seed", *(f"steps to {m:g}" for m in MARKS)], marks)
    cases = {"bf16, mean of its seeds": (returns["bf16"].mean(0), returns["fp32"])}
    cases |= {f"bf16, seed {i}": (r, returns["fp32"]) for i, r in enumerate(returns["bf16"])}
    for i, r in enumerate(returns["fp32"]):
        cases[f"fp32, seed {i}, in the band of its others"] = r, np.delete(returns["fp32"], i, 0)
    bands = []
    for name, (r, band) in cases.items():
        far = outside(r, band)
        worst = f"{far.max():.1f} at {at[far.argmax()] / 1000:,.0f}K"
        bands.append([name, f"{(far == 0).mean():.0%}", f"{(far <= LEAST).mean():.0%}", worst])
    return told + "\n\n" + table(["curve", "within fp32's band", "within 1 of it", "farthest outside"], bands)


def main() -> None:
    told = report()
    (RESULTS / "precision.md").write_text(told + "\n")
    print(told)
    draw(*compare(recorded_curves()))


def draw(at: np.ndarray, returns: dict[str, np.ndarray]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.fill_between(at, returns["fp32"].min(0), returns["fp32"].max(0), color="C1", alpha=0.3, label="fp32's band")
    for side, colour in ("fp32", "C1"), ("bf16", "C0"):
        for i, r in enumerate(returns[side]):
            axes.plot(at, r, color=colour, label=None if i else side, linewidth=1)
    axes.set(xlabel="environment steps", ylabel="mean return of the last 100 episodes", title="ALE/Pong-v5, PPO")
    axes.legend()
    figure.savefig(RESULTS / "precision.png", dpi=110)


if __name__ == "__main__":
    main()
