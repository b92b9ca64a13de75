"""The commands that read runs: eval, plot, compare, export."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from shoal.api import UsageError
from shoal.cli.words import leading
from shoal.paths import fixed, shown
from shoal.policy.policy import MIN_EPISODES, differ, how
from shoal.settings.flags import Groups, choice, options, split
from shoal.settings.ranges import Envs, Episodes, Natural
from shoal.terminal import cell, print_table
from shoal.words import counted

FLAGS: dict[str, dict[str, object]] = {
    "eval": {"episodes": Episodes, "seed": Natural, "envs": Envs, "sampled": bool, "best": bool, "video": str,
             "trust": bool, "json": bool, "eval-max-steps": Natural},
    "plot": {"out": str, "x": str, "trust": bool},
    "compare": {"threshold": float, "trust": bool, "json": bool},
    "export": {"to": str, "out": str, "best": bool, "trust": bool, "json": bool},
}  # fmt: skip


def evaluate(args: list[str]) -> int:
    """shoal eval RUN"""
    from shoal.analysis.stats import iqm
    from shoal.run.changes import told
    from shoal.run.run import open_policy

    (run,), groups = _runs(args, "eval", most=1)
    opts = options(groups, FLAGS["eval"], "eval")
    film = fixed(opts.get("video", "video.mp4"))
    seed, greedy, limit = opts.get("seed", 0), not opts.get("sampled"), opts.get("eval-max-steps", 0)
    opened = open_policy(run, "best" if opts.get("best") else "last", bool(opts.get("trust")))
    policy = opened.policy
    as_json = bool(opts.get("json"))
    for change in () if as_json else told(opened.changes):
        print(f"trained with {change}")
    if "video" in opts:
        from shoal.policy.video import record

        shown_as = record(policy, film, seed, greedy, limit)
        if not as_json:
            why = f" ({shown_as.why})" if shown_as.why else ""
            print(f"{opts['video']}: an episode with the return {shown_as[0]:g}{why}")
    returns = policy.evaluate(opts.get("episodes", 20), seed, greedy, opts.get("envs", 8), limit)
    other: list[float] = []  # of the policy's other actions, where they come to something else
    if policy.samples and len(returns) >= MIN_EPISODES:
        found = policy.evaluate(len(returns), seed, not greedy, opts.get("envs", 8), limit)
        other = list(map(float, found)) if differ(returns, found) else []
    if as_json:
        print(json.dumps({
            "run": run, "returns": list(map(float, returns)), "mean": float(np.mean(returns)),
            "std": float(np.std(returns)), "iqm": float(iqm(returns)), "info": dict(returns.info),
            "unfinished": returns.unfinished, "changes": [*told(opened.changes)], "video": opts.get("video"),
            "actions": "greedy" if greedy else "sampled", "other_mean": float(np.mean(other)) if other else None,
        }))  # fmt: skip
        return 0
    print("returns: " + " ".join(f"{r:g}" for r in returns))
    print(
        f"mean {np.mean(returns):.4g}, std {np.std(returns):.4g}, min {min(returns):.4g}, max {max(returns):.4g}, "
        f"interquartile mean {iqm(returns):.4g} over {counted(len(returns), 'episode')}"
    )
    if returns.why:
        print(f"{returns.why} (--eval-max-steps)")
    if returns.info:
        print(", ".join(f"{name} {value:.4g}" for name, value in returns.info.items()) + " (means per episode)")
    if other:
        print(f"mean {np.mean(other):.4g} with {how(not greedy)}")
    return 0


def export(args: list[str]) -> int:
    """shoal export RUN"""
    from shoal.policy.export import FILES, export as write
    from shoal.run.run import is_saved, open_policy

    (path,), groups = _runs(args, "export", most=1)
    opts = options(groups, FLAGS["export"], "export")
    if "to" not in opts:
        raise UsageError(f"shoal export needs a format: --to {' or '.join(FILES)}")
    choice("--to", opts["to"], tuple(FILES))
    which = "best" if opts.get("best") else "last"
    beside = Path(path, "export", f"{opts['to']}-{which}")  # of a population, beside its members
    opened = open_policy(path, which, bool(opts.get("trust")))
    policy = opened.policy
    out = fixed(opts.get("out", Path("export", opened.name, opts["to"]) if is_saved(path) else beside))
    about = {"system": opened.system, "run": opened.name, "parameters": which, "updates": policy.version}
    write(policy, opts["to"], out, about)
    files = sorted(p.name for p in out.iterdir())
    print(json.dumps({"out": str(out), "files": files}) if opts.get("json") else f"{shown(out)}: {', '.join(files)}")
    return 0


def plot(args: list[str]) -> int:
    """shoal plot RUN..."""
    from shoal.analysis.directories import groups
    from shoal.analysis.plot import AXES, draw
    from shoal.run.population.training import is_population

    paths, rest = _runs(args, "plot")
    opts = options(rest, FLAGS["plot"], "plot")
    x = opts.get("x", "both")
    choice("--x", x, (*AXES, "both"))
    out = Path(opts.get("out", "curves.png"))
    if any(is_population(Path(path)) for path in paths):
        if "x" in opts:
            raise UsageError("--x is not for a population, which is drawn over the steps of its members")
        return _plot_population(paths, Path(opts.get("out", "population.png")), bool(opts.get("trust")))
    found = groups(paths, bool(opts.get("trust")), _warn)
    draw(found, out, x)
    print(f"{out}: " + "; ".join(f"{g.label} ({len(g.curves)})" for g in found))
    return 0


def _plot_population(paths: list[str], out: Path, trust: bool) -> int:
    from shoal.analysis.lineage import draw

    if len(paths) > 1:
        raise UsageError(f"shoal plot draws one population at a time, found {len(paths)} directories")
    draw(Path(paths[0]), out, trust)
    print(f"{out}: scores, hyperparameters and copies of {paths[0]}")
    return 0


def compare(args: list[str]) -> int:
    """shoal compare RUN..."""
    from shoal.analysis.compare import as_data, config_table, table
    from shoal.analysis.directories import groups

    paths, rest = _runs(args, "compare")
    opts = options(rest, FLAGS["compare"], "compare")
    found = groups(paths, bool(opts.get("trust")), _warn)
    if opts.get("json"):
        print(json.dumps(as_data(found, opts.get("threshold")), indent=1))
        return 0
    for env in dict.fromkeys(g.env for g in found):
        _print_table(env, *table([g for g in found if g.env == env], opts.get("threshold")))
    heads, rows = config_table(found)
    if rows:
        _print_table("what differs in their configurations", heads, rows)
    return 0


def _warn(sentence: str) -> None:
    print(f"shoal: {sentence}", file=sys.stderr)


def _print_table(title: str, heads: list[str], rows: list[list[str]]) -> None:
    from rich.table import Table

    shown = Table(title=cell(title), title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for i, head in enumerate(heads):
        shown.add_column(cell(head), justify="left" if i == 0 else "right", overflow="fold")
    for row in rows:
        shown.add_row(*map(cell, row))
    print_table(shown)


def _runs(args: list[str], command: str, most: int | None = None) -> tuple[list[str], Groups]:
    """The run directories that a command starts with, and the flags after them."""
    words, rest = leading(args)
    if not words:
        raise UsageError(f"shoal {command} needs a run directory first, for example: shoal {command} runs/NAME")
    if most is not None and len(words) > most:
        raise UsageError(f"shoal {command} takes one run directory, found {len(words)}")
    return words, split(rest)
