"""The commands that read runs: eval."""

from __future__ import annotations

from shoal.api import UsageError
from shoal.flags import options, split

EVAL = {"episodes": int, "seed": int, "sampled": bool}


def evaluate(args: list[str]) -> int:
    """shoal eval RUN"""
    from statistics import mean, stdev

    from shoal.run import Run

    if not args or args[0].startswith("--"):
        raise UsageError("shoal eval needs a run directory first, for example: shoal eval runs/NAME")
    opts = options(split(args[1:]), EVAL, "eval")
    policy = Run.open(args[0]).policy()
    returns = policy.evaluate(opts.get("episodes", 20), opts.get("seed", 0), not opts.get("sampled", False))
    spread = f" ± {stdev(returns):.4g}" if len(returns) > 1 else ""
    print("returns: " + " ".join(f"{r:g}" for r in returns))
    print(f"mean {mean(returns):.4g}{spread} over {len(returns)} episodes")
    return 0
