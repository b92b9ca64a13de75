"""``resume`` goes on with a run, from its newest checkpoint and with what was saved of its configuration."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal import own_code
from shoal.api import UsageError
from shoal.envs import looking
from shoal.own_settings import own_settings
from shoal.paths import fixed
from shoal.records.checkpoint import FOLDER
from shoal.records.damage import reading
from shoal.records.run_dir import read_json
from shoal.run import changes, ranks
from shoal.run.beside import ALONE, Beside
from shoal.run.evaluation import Evaluation
from shoal.run.finished import check_unfinished
from shoal.run.observers import Observer, observing
from shoal.run.options import JSON_KEYS, TYPES, RunOptions, back_ends, check_limits
from shoal.run.run import Run, check_config, with_environment
from shoal.run.runtimes import check_runtime, environment_call, runtime_to_resume
from shoal.run.training import Training
from shoal.run.trust import check as check_trust, check_connections, connections, note_connections
from shoal.settings.config import Resolved, build, coerce_all
from shoal.settings.flags import expect, ranged
from shoal.types import Values


@own_settings()
def resume(
    path: str | Path,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    until_return: float | None = None,
    runtime: str | None = None,
    address: str | None = None,
    hang_timeout: float | None = None,
    evaluation: Evaluation | None = None,
    checkpoint_every: float | None = None,
    checkpoint_replay_gb: float | None = None,
    log: str | Sequence[str] | None = None,
    log_args: Mapping[str, Any] | None = None,
    quiet: bool | None = RunOptions.quiet,
    trust: bool = False,
    env: Any = None,
    observers: Observer | Sequence[Observer] = (),
    alert: str | None = None,
    alert_after: float | None = None,
    watch: bool = False,
    **settings: Any,
) -> Run:
    """Go on with the run in ``path`` from its newest whole checkpoint, in the same directory with the same
    configuration. The limits are those of the run unless given anew; they count from its beginning. ``runtime``: None:
    that of the run; ``local`` and ``ray`` go on with each other's runs. ``address``: of the Ray cluster this time.
    ``trust``: as in ``Run.policy``.

    hang_timeout, evaluation, checkpoint_every, checkpoint_replay_gb, log and log_args: as in ``train``, from here on;
    None: as they were. All other options of the run stay.
    env: the class or function that makes its environment, again, where that was given in Python. observers, alert,
    alert_after, watch: as in ``train``. settings: fields of its config that change from here on; UsageError for one
    that changes the shape of something that was saved. Each change is noted with its step in config.json."""
    limits = {"steps": steps, "seconds": seconds, "until_return": until_return}
    given = {
        "hang_timeout": hang_timeout, "checkpoint_every": checkpoint_every,
        "checkpoint_replay_gb": checkpoint_replay_gb,
        "evaluation": None if evaluation is None else expect(TYPES["evaluation"], evaluation, "'evaluation'"),
        "log": None if log is None else back_ends(log),
        "log_args": None if log_args is None else expect(dict, log_args, "'log_args'"),
    }  # fmt: skip
    anew = {name: value for name, value in given.items() if value is not None}
    return go_on(
        path, limits, settings, anew, runtime=runtime, address=address, quiet=quiet, trust=trust, env=env,
        observers=observing(observers), beside=Beside(alert, alert_after, watch),
    )  # fmt: skip


def go_on(
    path: str | Path, limits: Mapping[str, Any], settings: Mapping[str, Any], anew: Mapping[str, Any], *,
    runtime: str | None = None, address: str | None = None, quiet: bool | None, trust: bool, env: Any = None,
    observers: Sequence[Observer] = (), flags: bool = False, beside: Beside = ALONE,
) -> Run:  # fmt: skip
    """Return what ``resume`` and ``shoal resume`` share. anew: options of the run, of those in ``RESUMABLE``; flags:
    the settings were given as flags."""
    with beside.of(fixed(path)) as company:
        seen = [*observers, *company.observers]
        return company.ended(
            _go_on(path, limits, settings, anew, runtime, address, quiet, trust, env, seen, flags)
        )  # fmt: skip


def _go_on(
    path: str | Path, limits: Mapping[str, Any], settings: Mapping[str, Any], anew: Mapping[str, Any],
    runtime: str | None, address: str | None, quiet: bool | None, trust: bool, env: Any,
    observers: Sequence[Observer], flags: bool,
) -> Run:  # fmt: skip
    own_code.forget_edited()
    check_limits(**limits)
    changes.refuse_options(settings, flags)
    anew = {**anew, **{name: limits[name] for name in ("seconds", "until_return") if limits[name] is not None}}
    if limits["steps"] is not None:
        settings = {**settings, "steps": limits["steps"]}
    path = fixed(path)
    directory = ranks.reopened(path, trust)
    try:
        facts = read_json(path / "config.json", "run", ("system", "config", "origins", "preset", *JSON_KEYS))
        check_config(path / "config.json", facts)
        anew |= _where(facts, runtime, address)
        with reading(path / "config.json"):
            anew |= changes.evaluation(facts, anew.get("evaluation"), flags)
            options = RunOptions.from_json(facts, **anew, run_dir=path, quiet=quiet)
        check_trust(path, facts["system"], facts["config"], trust)
        theirs = None if "address" in anew else options.address, () if "log" in anew else options.log
        check_connections(path, connections(*theirs), trust)
        facts["config"] = with_environment(path, facts["config"], env)
        system, values = loaded(path, facts)
        changed = changes.wanted(system, facts["system"], values, settings, flags)
        checkpoint = ranks.newest(path / FOLDER)
        stop = options.stop((values | changed)["steps"])
        check_unfinished(path, checkpoint, stop, facts["stop"]["episode_return"])
        if changed.keys() - {"steps"}:
            with looking(environment_call(options.runtime)):
                changes.check(system, values, changed, options.runtime, path, flags)
        changes.note(facts, values, changed, checkpoint.steps)
        cfg = build(system.Config, {**values, **changed})
        resolved = Resolved(cfg, facts["origins"], facts["preset"], "resumed")
        training = Training(path, system, resolved, options, facts, observers=observers)
        checkpoint.check_fits(training.program)
        note_connections(path, connections(anew.get("address"), anew.get("log", ())))
    except BaseException:
        directory.close()
        raise
    return training.go(directory, checkpoint)


def _where(facts: Values, runtime: str | None, address: str | None) -> Values:
    """Options of a run that goes on in another place. UsageError where it would not be the same run."""
    if runtime is not None:
        check_runtime(runtime)
        if "serial" in (runtime, facts["runtime"]) and runtime != facts["runtime"]:
            raise UsageError(
                f"a run that was started with --runtime {facts['runtime']} cannot go on with {runtime}: "
                "serial runs are exact, and save what no other runtime can go on from"
            )
    if runtime is None and address is None:
        return {}
    return {"runtime": runtime or runtime_to_resume(facts["runtime"]), "address": address}


def loaded(path: Path, facts: Values) -> tuple[Any, Values]:
    """The system of a run that was started before, and every value of its configuration."""
    from shoal import systems

    system, where = systems.load(facts["system"]), str(path / "config.json")
    values = coerce_all(system.Config, facts["config"], where)
    for missing in sorted(values.keys() - facts["config"].keys()):
        message = f"{where} lacks '{missing}' (another version wrote it): using {values[missing]!r}"
        print(f"shoal: {message}", file=sys.stderr)
    if facts.get("actors"):  # also where this machine has another number of cores
        values["actors"] = expect(ranged(system.Config)["actors"], facts["actors"], f"'actors' ({where})")
    if values.get("inference") == "auto":  # what was saved is of the roles it had, whatever this machine's device is
        choices = ranged(system.Config)["inference"]
        values["inference"] = expect(choices, facts.get("acting", "actor"), f"'acting' ({where})")
    return system, values
