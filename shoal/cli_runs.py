"""The commands that read runs: eval, export."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shoal.api import UsageError
from shoal.flags import Groups, choice, options, split

FLAGS: dict[str, dict[str, type]] = {
    "eval": {"episodes": int, "seed": int, "envs": int, "sampled": bool, "best": bool, "video": str},
    "export": {"to": str, "out": str, "best": bool},
}


def evaluate(args: list[str]) -> int:
    """shoal eval RUN"""
    from shoal.run import Run
    from shoal.stats import iqm

    (run,), groups = _runs(args, "eval", most=1)
    opts = options(groups, FLAGS["eval"], "eval")
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


def export(args: list[str]) -> int:
    """shoal export RUN"""
    from shoal.export import FILES, export as write
    from shoal.run import Run

    (path,), groups = _runs(args, "export", most=1)
    opts = options(groups, FLAGS["export"], "export")
    if "to" not in opts:
        raise UsageError(f"shoal export needs a format: --to {' or '.join(FILES)}")
    choice("--to", opts["to"], tuple(FILES))
    run, which = Run.open(path), "best" if opts.get("best") else "last"
    policy = run.policy(which=which)
    out = Path(opts.get("out", run.path / "export" / f"{opts['to']}-{which}"))
    about = {"system": run.system, "run": run.path.name, "parameters": which, "updates": policy.version}
    write(policy, opts["to"], out, about)
    print(f"{out}: {', '.join(sorted(p.name for p in out.iterdir()))}")
    return 0


def _runs(args: list[str], command: str, most: int | None = None) -> tuple[list[str], Groups]:
    """The run directories that a command starts with, and the flags after them."""
    n = next((i for i, word in enumerate(args) if word.startswith("--")), len(args))
    if n == 0:
        raise UsageError(f"shoal {command} needs a run directory first, for example: shoal {command} runs/NAME")
    if most is not None and n > most:
        raise UsageError(f"shoal {command} takes one run directory, found {n}")
    return args[:n], split(args[n:])
