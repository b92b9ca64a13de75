"""shoal resume: go on with a run, with other limits and settings; and how a run that has ended is told of."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.paths import shown
from shoal.types import Values
from shoal.words import counted

if TYPE_CHECKING:
    from shoal.run import Run
    from shoal.settings.flags import Groups


def command(args: list[str]) -> int:
    """shoal resume RUN"""
    from shoal.api import UsageError
    from shoal.run import monitors
    from shoal.run.changes import refuse_options
    from shoal.run.options import FLAGS, LIMITS, RESUMABLE_FLAGS, given_by
    from shoal.run.population.training import is_population
    from shoal.run.resuming import Changes, go_on
    from shoal.settings.flags import divide, options, split

    if not args or args[0].startswith("--"):
        raise UsageError("shoal resume needs a run directory first, for example: shoal resume runs/NAME")
    kinds = {name.replace("_", "-"): hint for name, hint in LIMITS.items()}
    kinds |= {"quiet": bool, "trust": bool, "json": bool, **monitors.FLAGS}
    groups, path = split(args[1:]), Path(args[0])
    whole = is_population(path)
    kinds |= {} if whole else {"runtime": str, "address": str, **{flag: FLAGS[flag] for flag in RESUMABLE_FLAGS}}
    mine, rest = (groups, []) if whole else divide(groups, kinds)
    opts = options(mine, kinds, "resume")
    chosen = monitors.read(opts)
    as_json, trust = bool(opts.get("json")), bool(opts.get("trust"))
    quiet = as_json or bool(opts.get("quiet"))
    wanted = {name: opts.get(name.replace("_", "-")) for name in LIMITS}
    if whole:
        from shoal.cli.population import resume as go_on_with

        return go_on_with(path, wanted, quiet, trust, chosen)
    refuse_options([flag.removeprefix("--") for flag, _ in rest], flags=True)
    settings = parse_settings(path, rest, kinds, trust) if rest else {}
    where = {name: opts[name] for name in ("runtime", "address") if name in opts}
    anew = given_by({flag: opts[flag] for flag in RESUMABLE_FLAGS if flag in opts})
    given = Changes(wanted, settings, anew, **where, quiet=quiet, trust=trust, flags=True)
    run = go_on(path, given, monitors=chosen)
    return report(run, quiet, as_json)


def parse_settings(path: Path, groups: Groups, own: Iterable[str], trust: bool) -> Values:
    """Fields of the config of the run in ``path``, given as flags beside the command's ``own``."""
    from shoal import systems
    from shoal.records.damage import read_json
    from shoal.run.flags import check_flags
    from shoal.run.run import check_config
    from shoal.run.trust import check
    from shoal.settings.flags import parse_flags, short_name
    from shoal.untrusted import require_plain

    if path.is_dir():
        require_plain(path, trust)
    facts = read_json(path / "config.json", "run", ("system", "config"))
    check_config(path / "config.json", facts)
    check(path, facts["system"], facts["config"], trust)
    Config, name = systems.load(facts["system"]).Config, f"shoal resume {short_name(facts['system'])}"
    check_flags(Config, groups, own, name)
    return parse_flags(Config, groups, name)


def report(run: Run, quiet: bool, as_json: bool = False) -> int:
    """Print how a run ended; returns the exit code."""
    import json

    from shoal.run.ranks import follows

    report = run.report
    assert report is not None, "the run has ended"
    code = run.exit_code
    if as_json and not follows():
        print(json.dumps({"run": str(run.path), **report.to_json()}))
    elif not quiet and not follows():
        mean = f", return {report.episode_return:.4g}" if report.episodes else ", no episode has ended"
        print(f"{report.reason}: {counted(report.steps, 'step')} in {report.seconds:,.1f} s{mean}")
        path = shlex.quote(shown(run.path))
        print(f"saved in {shown(run.path)} (shoal eval {path})")
        if code:
            from shoal.records.checkpoint import FOLDER, completed

            resumable = completed(run.path / FOLDER)
            print(f"to go on: shoal resume {path}" if resumable else "no checkpoint was completed to go on from")
    return code
