"""The commands that read runs: eval."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shoal.api import UsageError
from shoal.flags import Groups, options, split

EVAL = {"episodes": int, "seed": int, "envs": int, "sampled": bool, "best": bool, "video": str}


def evaluate(args: list[str]) -> int:
    """shoal eval RUN"""
    from shoal.run import Run
    from shoal.stats import iqm

    (run,), groups = _runs(args, "eval", most=1)
    opts = options(groups, EVAL, "eval")
    seed, greedy = opts.get("seed", 0), not opts.get("sampled")
    policy = Run.open(run).policy(which="best" if opts.get("best") else "last")
    if "video" in opts:
        from shoal.video import record

        shown = record(policy, Path(opts["video"]), seed, greedy)
        print(f"{opts['video']}: an episode with the return {shown:g}")
    returns = policy.evaluate(opts.get("episodes", 20), seed, greedy, opts.get("envs", 8))
    print("returns: " + " ".join(f"{r:g}" for r in returns))
    print(
        f"mean {np.mean(returns):.4g}, std {np.std(returns):.4g}, min {min(returns):.4g}, max {max(returns):.4g}, "
        f"interquartile mean {iqm(returns):.4g} over {len(returns)} episodes"
    )
    return 0


def _runs(args: list[str], command: str, most: int | None = None) -> tuple[list[str], Groups]:
    """The run directories that a command starts with, and the flags after them."""
    n = next((i for i, word in enumerate(args) if word.startswith("--")), len(args))
    if n == 0:
        raise UsageError(f"shoal {command} needs a run directory first, for example: shoal {command} runs/NAME")
    if most is not None and n > most:
        raise UsageError(f"shoal {command} takes one run directory, found {n}")
    return args[:n], split(args[n:])
