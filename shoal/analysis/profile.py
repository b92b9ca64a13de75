"""``shoal profile``: run for some seconds, record what every role does when, and say what sets the pace."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from shoal.api import UsageError
from shoal.metering.bottleneck import bottleneck
from shoal.metering.trace import Trace
from shoal.records.damage import read_json, require_run
from shoal.records.run_dir import new_directory
from shoal.run import Run, RunOptions
from shoal.run.flags import resolve_flags
from shoal.run.options import FLAGS
from shoal.run.resuming import loaded
from shoal.run.run import check_config, with_environment
from shoal.run.runtimes import check_runtime, runtime_to_resume
from shoal.run.trust import check as check_trust
from shoal.settings.config import Resolved, build
from shoal.settings.flags import options, split
from shoal.terminal import styled
from shoal.untrusted import require_plain

SECONDS = 15.0  # the start included
PROFILE_FLAGS = {name: FLAGS[name] for name in ("seconds", "runtime", "run-dir", "seed", "quiet")} | {"json": bool}


def profile(name: str, system: Any, resolved: Resolved, how: RunOptions) -> tuple[Run, Trace]:
    """Run a resolved configuration, and write ``trace.json`` into its directory."""
    if how.runtime == "torchrun":
        raise UsageError("shoal profile watches processes that it has started itself: start it without torchrun")
    from shoal.run import start

    trace = Trace()
    run = start(name, system, resolved, how, trace=trace)
    trace.write(run.path / "trace.json")
    return run, trace


def command(args: list[str]) -> int:
    """shoal profile RUN|SYSTEM"""
    from shoal import systems

    if not args or args[0].startswith("--"):
        raise UsageError(
            "shoal profile needs a run or a system first, for example: shoal profile dqn --env CartPole-v1"
        )
    if Path(args[0]).is_dir():
        path, keys = Path(args[0]), ("system", "config", "origins", "preset", "seed", "runtime")
        opts = options(split(args[1:]), {**PROFILE_FLAGS, "trust": bool}, "profile")
        trust = bool(opts.pop("trust", False))
        require_run(path)
        require_plain(path, trust)
        facts = read_json(path / "config.json", "run", keys)
        check_config(path / "config.json", facts)
        named = [] if "runtime" in opts else [facts["runtime"]]
        check_trust(path, facts["system"], facts["config"], trust, named)
        facts["config"] = with_environment(path, facts["config"], None)
        name, (system, values) = facts["system"], loaded(path, facts)
        resolved = Resolved(build(system.Config, values), facts["origins"], facts["preset"], f"run {path}")
        opts = {"runtime": runtime_to_resume(facts["runtime"]), "seed": facts["seed"], **opts}
    else:
        name, system = args[0], systems.load(args[0])
        opts, resolved = resolve_flags(name, system, split(args[1:]), PROFILE_FLAGS)
    as_json = bool(opts.pop("json", False))
    check_runtime(opts.get("runtime", RunOptions.runtime))
    how = RunOptions.from_flags({"quiet": True, **opts} if as_json else opts, seconds=SECONDS)
    with contextlib.ExitStack() as stack:
        if how.run_dir is None:
            path = stack.enter_context(new_directory(f"profile-{Path(name).stem}", resolved.cfg.env, how.seed))
            how = dataclasses.replace(how, run_dir=path)
        run, trace = profile(name, system, resolved, how)
    if as_json:
        slow = bottleneck(trace.shares())
        told = {"trace": str(run.path / "trace.json"), "bottleneck": None if slow is None else str(slow)}
        print(json.dumps(told | {"phases": [line._asdict() for line in trace.table()]}, indent=1))
        return run.exit_code
    show(trace)
    print(f"trace: {run.path / 'trace.json'} (open it at https://ui.perfetto.dev)")
    return run.exit_code


def show(trace: Trace) -> None:
    """Print the table and the bottleneck."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("role", "phase", "share", "spans", "mean"):
        table.add_column(column, justify="left" if column in ("role", "phase") else "right")
    role = ""
    for line in trace.table():
        mean = f"{1e6 * line.mean:,.1f} us" if line.spans else ""
        table.add_row(line.role if line.role != role else "", line.phase, f"{line.share:.1%}", f"{line.spans:,}", mean)
        role = line.role
    console = Console(file=styled(sys.stdout), width=None if sys.stdout.isatty() else 120)
    console.print(table)
    print(f"bottleneck: {bottleneck(trace.shares()) or 'not known yet: give it more --seconds'}")
