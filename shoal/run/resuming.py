"""``resume``: continue a run from its newest checkpoint with its saved configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal import own_code
from shoal.api import UsageError
from shoal.envs import looking
from shoal.own_code import absolute
from shoal.own_settings import own_settings
from shoal.paths import fixed, require_path, shown
from shoal.records.checkpoint import FOLDER
from shoal.records.damage import read_json, reading
from shoal.run import changes, ranks
from shoal.run.finished import check_unfinished
from shoal.run.keywords import takes_options
from shoal.run.monitors import NO_MONITORS, MonitorOptions
from shoal.run.observers import Observer, observing
from shoal.run.options import REQUIRED_KEYS, RESUMABLE, RunOptions, check_limits
from shoal.run.run import Run, check_config, with_environment
from shoal.run.runtimes import check_runtime, environment_call, is_deterministic, runtime_to_resume
from shoal.run.training import Training
from shoal.run.trust import check as check_trust, check_connections, connections, named_in, note, note_connections
from shoal.settings.arguments import needs_as_in
from shoal.settings.config import Resolved, build, coerce_all
from shoal.settings.flags import expect, ranged
from shoal.systems import taken_for
from shoal.types import Values

NOWHERE: Values = {"address": None, "log": (), "log_args": {}}  # options that say what a run connects to


@dataclass(frozen=True)
class Changes:
    """Changes when a run is resumed.

    limits: new values of ``LIMITS``; None: unchanged. settings: fields of its config. options: those in ``RESUMABLE``,
    and the changed parts of `evaluation`. runtime, address: where it continues. env: the object that makes its
    environment, given again. flags: whether all this was given as flags.
    """

    limits: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    runtime: str | None = None
    address: str | None = None
    quiet: bool | None = None
    trust: bool = False
    env: Any = None
    flags: bool = False


@takes_options(RunOptions, unset=True)
@needs_as_in("shoal.resume('runs/NAME', steps=2_000_000)")
@own_settings()
def resume(
    path: str | os.PathLike[str],
    *,
    steps: int | None = None,
    seconds: float | None = None,
    until_return: float | None = None,
    runtime: str | None = None,
    address: str | None = None,
    quiet: bool | None = RunOptions.quiet,
    trust: bool = False,
    env: Any = None,
    observers: Observer | Sequence[Observer] = (),
    alert: str | None = None,
    alert_after: float | None = None,
    watch: bool = False,
    **settings: Any,
) -> Run:
    """Continue the run in ``path``, a directory or a ``Run``, from its newest complete checkpoint, in the same
    directory with the same configuration. The limits are those of the run unless given; they count from its beginning.

    runtime: None: that of the run; ``local`` and ``ray`` can continue each other's runs. address: of the Ray cluster
    this time. trust: as in ``Run.policy``. env: the class or function that makes its environment, again, if it was
    given in Python. observers, alert, alert_after, watch: as in ``train``. settings: fields of its config that change
    from here on, and options of the run (those of ``shoal.run.RunOptions`` that are ``resumable``); None: unchanged.
    Each change is recorded with its step in config.json.

    Raises UsageError for a setting that changes the shape of something that was saved.
    """
    require_path(path, "shoal.resume")
    given = {n: v for n, v in settings.items() if v is not None or n not in RESUMABLE}
    options, fields = RunOptions.divide(given, whole=False)
    changes.refuse_options((name for name in options if name not in RESUMABLE), flags=False)
    typed, parts = ranged(RunOptions), options.pop("evaluation", {})
    options = {name: expect(typed[name], value, f"'{name}'") for name, value in options.items()}
    if parts:
        options["evaluation"] = parts if isinstance(parts, dict) else expect(typed["evaluation"], parts, "'evaluation'")
    limits = {"steps": steps, "seconds": seconds, "until_return": until_return}
    asked = Changes(limits, fields, options, runtime, address, quiet, trust, env)
    return go_on(path, asked, observing(observers), MonitorOptions(alert, alert_after, watch))


def go_on(
    path: str | os.PathLike[str],
    given: Changes,
    observers: Sequence[Observer] = (),
    monitors: MonitorOptions = NO_MONITORS,
) -> Run:
    """Continue a run as ``resume`` and ``shoal resume`` do."""
    with monitors.running(fixed(path)) as active:
        return active.ended(_go_on(path, given, [*observers, *active.observers]))


def _go_on(path: str | os.PathLike[str], given: Changes, observers: Sequence[Observer]) -> Run:
    own_code.forget_edited()
    check_limits(**given.limits)
    changes.refuse_options(given.settings, given.flags)
    limits = {name: limit for name, limit in given.limits.items() if limit is not None}
    settings = {**given.settings, **{name: limit for name, limit in limits.items() if name == "steps"}}
    anew = {**given.options, **{name: limit for name, limit in limits.items() if name != "steps"}}
    path = fixed(path)
    if not path.exists() and (told := taken_for("run", path.name)):
        raise UsageError(f"no such run directory: '{shown(path)}'{told}")
    directory = ranks.reopened(path, given.trust)
    try:
        facts = read_json(path / "config.json", "run", ("system", "config", "origins", "preset", *REQUIRED_KEYS))
        check_config(path / "config.json", facts)
        kept = {name: facts.get(name) for name in ("runtime", "log") if name not in anew}
        if given.runtime is not None:
            del kept["runtime"]
        check_trust(path, facts["system"], facts["config"], given.trust, named_in(kept))
        anew |= _where(facts, given.runtime, given.address)
        with reading(path / "config.json"):
            anew |= changes.evaluation(facts, anew.get("evaluation"), given.flags)
            options = RunOptions.from_json(facts, **anew, run_dir=path, quiet=given.quiet)
        theirs = {name: vars(options)[name] for name in NOWHERE if name not in anew}
        check_connections(path, connections(**NOWHERE | theirs), given.trust)
        facts["config"] = with_environment(path, facts["config"], given.env)
        system, values = loaded(path, facts)
        changed = changes.wanted(system, facts["system"], values, settings, given.flags)
        checkpoint = ranks.newest((path / FOLDER).resolve() if given.trust else path / FOLDER)
        stop = options.stop((values | changed)["steps"])
        check_unfinished(path, checkpoint, stop, facts["stop"]["episode_return"])
        if changed.keys() - {"steps"}:
            with looking(environment_call(options.runtime)):
                changes.check(system, values, changed, options.runtime, path, given.flags)
        changes.note(facts, values, changed, checkpoint.steps)
        cfg = build(system.Config, {**values, **changed})
        resolved = Resolved(cfg, facts["origins"], facts["preset"], "resumed")
        training = Training(path, system, resolved, options, facts, observers=observers)
        checkpoint.check_fits(training.program)
        note("", {}, map(absolute, named_in({"runtime": given.runtime, "log": anew.get("log")})))
        note_connections(path, connections(**NOWHERE | {name: vars(options)[name] for name in NOWHERE if name in anew}))
    except BaseException:
        directory.close()
        raise
    return training.go(directory, checkpoint)


def _where(facts: Values, runtime: str | None, address: str | None) -> Values:
    """Return the options of a run that continues in another place. Raises UsageError if the runtime cannot continue
    it."""
    if runtime is not None:
        check_runtime(runtime)
        if runtime != facts["runtime"] and (is_deterministic(runtime) or is_deterministic(facts["runtime"])):
            raise UsageError(
                f"a run that was started with --runtime {facts['runtime']} cannot go on with {runtime}: "
                "exact runs save what no other runtime can go on from"
            )
    if runtime is None and address is None:
        return {}
    return {"runtime": runtime or runtime_to_resume(facts["runtime"]), "address": address}


def loaded(path: Path, facts: Values) -> tuple[Any, Values]:
    """Return the system of an earlier run, and all values of its configuration."""
    from shoal import systems

    system, where = systems.load(facts["system"]), str(path / "config.json")
    values = coerce_all(system.Config, facts["config"], where)
    for missing in sorted(values.keys() - facts["config"].keys()):
        message = f"{where} lacks '{missing}' (another version wrote it): using {values[missing]!r}"
        print(f"shoal: {message}", file=sys.stderr)
    if facts.get("actors"):  # kept even if this machine has another number of cores
        values["actors"] = expect(ranged(system.Config)["actors"], facts["actors"], f"'actors' ({where})")
    if values.get("inference") == "auto":  # saved state depends on the roles it had, whatever device this machine has
        acting = expect(ranged(system.Config)["inference"], facts.get("acting", "actor"), f"'acting' ({where})")
        if acting != ("server" if system.Config(**values).acts_by_server() else "actor"):
            values["inference"] = acting
    return system, values
