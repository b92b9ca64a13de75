"""Population-based training of a function of one's own: the surface of figure 2 in Jaderberg et al. 2017.

What is to be maximised is 1.2 - x0^2 - x1^2; a member only sees 1.2 - x0^2 or 1.2 - x1^2, so no fixed choice is right.
"""

import sys

import numpy as np

import shoal


def objective(state, values, steps):
    """Train ``state`` a little further with these hyperparameters: (new state, score)."""
    x = np.array([0.9, 0.9]) if state is None else state
    for _ in range(steps):
        x[values["axis"]] -= 2 * values["rate"] * x[values["axis"]]
    return x, 1.2 - float(np.sum(x**2))


space: dict[str, shoal.Choice | shoal.Interval] = {
    "axis": shoal.Choice((0, 1)),
    "rate": shoal.Interval(1e-3, 1e-1, log=True),
}
found = shoal.pbt(objective, space, steps=200, interval=5, population=8, explore="resample", workers=int(sys.argv[1]))
print(f"score {found.score:.3f} of 1.2 at {found.state}, after {len(found.lineage)} copies")
print("the best member's schedule:", [(step, values["axis"]) for step, values in found.schedule])
