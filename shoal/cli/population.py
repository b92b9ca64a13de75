"""``shoal train pbt --of SYSTEM``: a population of any system."""

from __future__ import annotations

import contextlib
import shlex
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from shoal.api import UsageError
from shoal.paths import fixed, shown
from shoal.run import monitors
from shoal.runtime.interrupts import EXIT_CODES
from shoal.settings.flags import choice, split
from shoal.settings.ranges import Count, EpisodesOrNone, Natural, NonNegative, Parts, Replicas, UpToHalf
from shoal.systems import is_known
from shoal.terminal import OFF_TERMINAL
from shoal.types import Values

FLAGS: Values = {
    "of": str, "population": Parts, "mutate": str, "interval": Count, "exploit": str, "explore": str,
    "slots": Replicas, "share": UpToHalf, "gap": NonNegative, "warm-up": Natural, "seed": Natural, "run-dir": str,
    "runtime": str, "quiet": bool, "eval-episodes": EpisodesOrNone, "eval-max-steps": Natural,
    **monitors.FLAGS,
}  # fmt: skip
RULES = ("interval", "exploit", "explore", "share", "gap", "warm-up")  # flags of ``run.population.controller.Rules``


def train(args: list[str]) -> int:
    """shoal train pbt"""
    from shoal import systems
    from shoal.machine import cores
    from shoal.records.run_dir import new_directory
    from shoal.run.flags import resolve_flags
    from shoal.run.population.controller import Exploit, Explore, Rules
    from shoal.run.population.training import PopulationRun, Setup
    from shoal.settings.flags import ranged
    from shoal.settings.schedule import plain

    groups = [] if args and is_known(args[0]) else split(args)
    names = [words for flag, words in groups if flag == "--of"]
    if not names or len(names[0]) != 1:
        example = "shoal train pbt --of impala --population 8 --mutate learning_rate,entropy_cost"
        if args and is_known(args[0]):
            example = shlex.join(["shoal", "train", "pbt", "--of", *args])
        raise UsageError(f"shoal train pbt needs the system of its members, for example: {example}")
    name = names[0][0]
    opts, resolved = resolve_flags(name, systems.load(name), groups, FLAGS)
    chosen, runtime = monitors.read(opts), opts.get("runtime", "serial")
    choice("--runtime", runtime, ("serial", "local"))
    for flag, kind in (("exploit", Exploit), ("explore", Explore)):
        if flag in opts:
            choice(f"--{flag}", opts[flag], get_args(kind))
    if "mutate" not in opts:
        raise UsageError("shoal train pbt needs what members differ by, for example: --mutate learning_rate")
    values = plain(resolved.values())
    if runtime == "serial" and not resolved.cfg.actors:
        values["actors"] = 1  # a member has one process
    if opts.get("eval-max-steps") and not opts.get("eval-episodes"):
        raise UsageError("--eval-max-steps expects --eval-episodes N beside it: without, no episode is evaluated")
    steps = resolved.cfg.steps
    given = {flag.replace("-", "_"): opts[flag] for flag in RULES if flag in opts}
    if "share" in given and given.get("exploit", Rules.exploit) != "truncation":
        raise UsageError(f"--share is of --exploit truncation, and this is {given['exploit']}")
    rules = Rules(**{"interval": max(1, steps // 20), **given})
    space = space_of(opts["mutate"], values, name, ranged(type(resolved.cfg)))
    size = opts.get("population", 8)
    slots = opts.get("slots", 0) or min(size, cores() if runtime == "serial" else 1)
    seed = opts.get("seed", 0)
    setup = Setup(
        str(Path(name).resolve()) if name.endswith(".py") else name, values, resolved.origins, resolved.preset,
        space, size, asdict(rules), steps, slots, seed, runtime, opts.get("eval-episodes", 0),
        opts.get("eval-max-steps", 0),
    )  # fmt: skip
    quiet = bool(opts.get("quiet"))
    named = contextlib.nullcontext(fixed(opts["run-dir"])) if "run-dir" in opts else None
    with named or new_directory(f"pbt-{Path(name).stem}", resolved.cfg.env, seed) as path:
        return tell(PopulationRun.begin(path, setup, None if quiet else show).go(chosen), quiet)


def space_of(
    text: str, values: Values, system: str, hints: Mapping[str, Any], flag: str = "--mutate"
) -> dict[str, Values]:
    """``learning_rate,entropy_cost=0.001:0.1``: each field with its interval. Of a schedule only its start is kept in
    ``values``. hints: the types of fields."""
    from shoal.run.population.hyperparameters import interval_of
    from shoal.settings.flags import unknown
    from shoal.settings.schedule import is_schedule, read

    out = {}
    for part in text.split(","):
        field, _, ends = part.strip().partition("=")
        field = field.replace("-", "_")
        if field not in values:
            raise unknown("field", field, list(values), f"{flag} of {system}")
        low, _, high = ends.partition(":")
        try:
            least, most = (float(low), float(high)) if ends else (None, None)
        except ValueError:
            raise UsageError(f"{flag} takes FIELD or FIELD=LOW:HIGH, found '{part}'") from None
        if is_schedule(values[field]):  # members find their own
            values[field] = read(values[field]).start
        out[field] = interval_of(field, values[field], least, most, hints[field], flag)
    return out


def resume(path: Path, limits: Values, quiet: bool, trust: bool, chosen: monitors.MonitorOptions) -> int:
    """shoal resume, of a population; of the ``limits``, it has steps only."""
    from shoal.run.population.training import PopulationRun

    if others := [name for name, value in limits.items() if value is not None and name != "steps"]:
        raise UsageError(f"a population ends after its steps; it takes no --{others[0].replace('_', '-')}")
    steps = limits["steps"]
    return tell(PopulationRun.reopen(path, steps, None if quiet else show, trust).go(chosen), quiet)


def show(sentence: str) -> None:
    """Print a sentence as a run goes on; off a terminal, which would break it, in lines of bounded length."""
    lines = [sentence] if sys.stdout.isatty() else textwrap.wrap(sentence, OFF_TERMINAL, subsequent_indent="    ")
    print("\n".join(lines), flush=True)


def tell(ended: Any, quiet: bool) -> int:
    """Return the exit code that says how a population ended."""
    if not quiet:
        score = "none" if ended.best.score is None else f"{ended.best.score:.4g}"
        best = f"best member {ended.best.index}, score {score}"
        print(f"{shown(ended.path)}: {best}, {ended.copies} copies ({ended.reason})")
    return EXIT_CODES.get(ended.reason, 0)
