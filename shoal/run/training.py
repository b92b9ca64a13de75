"""``train`` starts a run. ``resuming`` continues one."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from shoal import own_code
from shoal.api import RoleFailed, UsageError, WiringError
from shoal.envs import given as from_python, looking
from shoal.metering.trace import Trace
from shoal.own_settings import own_settings
from shoal.paths import fixed, shown, staying
from shoal.program import Program
from shoal.program.picture import drawings
from shoal.records import evaluation_files, loggers
from shoal.records.checkpoint import FOLDER, Checkpoint, SaveOptions, completed
from shoal.records.publication import Publication
from shoal.records.run_dir import RunDirectory
from shoal.records.summary import Summary
from shoal.run import ranks
from shoal.run.call_order import explains_order
from shoal.run.evaluation import add_evaluator, final_evaluation, require_video
from shoal.run.having import naming_systems_with_it
from shoal.run.initial import begin_with, read as read_initial
from shoal.run.keywords import takes_options
from shoal.run.kinds import playing
from shoal.run.monitors import NO_MONITORS, MonitorOptions
from shoal.run.observed import observed
from shoal.run.observers import Observer, Observers, observing
from shoal.run.options import RunOptions
from shoal.run.progress import Progress
from shoal.run.run import Run
from shoal.run.runtimes import environment_call, is_deterministic, launched, looking_under, make_runtime
from shoal.run.symptoms import Symptoms
from shoal.run.trust import check_resolved, connections, note, note_connections
from shoal.run.updates import first_update, why_no_update
from shoal.runtime.devices import check_devices
from shoal.runtime.interrupts import EXIT_CODES, Interrupts
from shoal.runtime.launch import Launch, Report
from shoal.settings.config import Resolved, resolve
from shoal.settings.flags import expect
from shoal.settings.only_with import idle
from shoal.settings.other_names import ALIASES
from shoal.settings.schedule import plain
from shoal.systems import SYSTEMS, SystemName, name_of
from shoal.topology.config import SystemConfig, anchored, rooted
from shoal.types import Values
from shoal.words import counted

Directory = RunDirectory | ranks.FollowerDirectory
MOST_SENTENCES = 2  # sentences on why a run does not learn
SPANS = 100_000  # spans of each replica in a profile
log = logging.getLogger("shoal.run")


@takes_options(RunOptions)
@explains_order
@own_settings()
def train(
    system: SystemName | str | Path | SystemConfig,
    env: Any = None,
    *,
    preset: str = "auto",
    config: str | os.PathLike[str] | None = None,
    observers: Observer | Sequence[Observer] = (),
    alert: str | None = None,
    alert_after: float | None = None,
    watch: bool = False,
    trust: bool = False,
    **settings: Any,
) -> Run:
    """Train ``system`` (a name of ``shoal systems``, a module, or a ``.py`` file) until its ``steps``, or until
    ``seconds`` or the mean return of 100 episodes is reached first, and return the run. ``settings`` are options of the
    run (``shoal.run.RunOptions``) and fields of its config.

    In place of name and fields, ``system`` may be a config, as in ``impala.Config(env="CartPole-v1",
    learning_rate=1e-3)``. Its explicit fields are used, and ``settings`` take precedence over them. ``env`` may also be
    a class or a function that makes an environment (see docs/tutorials/own-environment.md).

    preset: ``auto`` (by the kind of environment), ``none``, or one of the system's.
    config: a TOML or YAML file of fields, or the directory of a run that had them; ``settings`` take precedence.
    observers: one or several functions that receive the metrics of every report, as a dict of their own with the
        columns of metrics.csv and performance.csv (every 0.5 s in ``local``, every 1,000 steps in ``serial``). A
        function that returns True ends the run.
    alert, alert_after, watch: a command that is called when the run ends or has problems, and a web page of it
        (docs/watch.md).
    trust: allow code named by a run's directory, given as ``config``, with which this user has never trained.

    Raises UsageError or WiringError if the training cannot be run; RoleFailed, Diverged or Deadlock if it fails; and
    ShoalError, after the run has been saved, if an observer raises.
    """
    from shoal import systems

    given, overrides = RunOptions.divide(settings)
    if env is not None:
        overrides["env"] = env
    if isinstance(system, SystemConfig):
        overrides = {**system.given_fields(), **overrides}
        system = name_of(system)
    name, functions, monitors = _name(system), observing(observers), MonitorOptions(alert, alert_after, watch)
    own_code.forget_edited()
    config = Path(config) if isinstance(config, os.PathLike) else config
    options = RunOptions(**given)
    module = systems.load(name)
    if "env" in overrides:
        overrides["env"] = from_python(overrides["env"])
    preset = expect(str, preset, "'preset'")
    asked = None if preset == "auto" else preset
    plays = playing(options.runtime)
    with looking_under(options.runtime), naming_systems_with_it():
        resolved = resolve(module, asked, config, overrides, source="argument", name=name, plays=plays)
    check_resolved(resolved, config, expect(bool, trust, "'trust'"))
    note(name, as_json(resolved), options.named())
    return start(name, module, resolved, options, observers=functions, trust=trust, monitors=monitors)


def _name(system: Any) -> str:
    """Return the argument ``system``, which may be a path, as text. Raises UsageError for anything else."""
    if isinstance(system, (str, Path)):
        return ALIASES.get(str(system), str(system))
    module = system.__name__ if isinstance(system, ModuleType) else ""
    if isinstance(system, type) and issubclass(system, SystemConfig):
        module = system.__module__
    meant = next((known for known, place in SYSTEMS.items() if f"{module}.".startswith(f"{place}.")), module)
    near = f"; did you mean '{meant}'?" if meant else ""
    expected = "a name of `shoal systems`, of a module or of a .py file"
    raise UsageError(f"'system' expects {expected}, found {system!r}{near}")


def start(
    name: str, system: Any, resolved: Resolved, options: RunOptions, trace: Trace | None = None,
    observers: Sequence[Observer] = (), trust: bool = False, monitors: MonitorOptions = NO_MONITORS,
) -> Run:  # fmt: skip
    """Run a resolved configuration, for ``train``, ``shoal train`` and ``shoal profile``. trace: receives spans, which
    are recorded only for it."""
    resolved = ranks.as_many(resolved)
    cfg = resolved.cfg
    if options.run_dir is None:
        with ranks.new_directory(name, cfg.env, options.seed) as path:
            return start(name, system, resolved, replace(options, run_dir=path), trace, observers, trust, monitors)
    path, resolved = fixed(options.run_dir), replace(resolved, cfg=rooted(resolved.cfg))
    facts = {
        "system": str(Path(name).resolve()) if name.endswith(".py") else name,
        "config": as_json(resolved),
        "origins": resolved.origins,
        "preset": resolved.preset,
        "actors": cfg.num_actors(),
        "acting": "server" if cfg.acts_by_server() else "actor",
    }
    with monitors.running(path) as active:
        training = Training(path, system, resolved, options, facts, trace, [*observers, *active.observers])
        if options.init_from is not None:
            begin_with(training.program, read_initial(options.init_from, trust), options.init_from)
        note_connections(path, connections(options.address, options.log, options.log_args))
        return active.ended(training.go(ranks.directory(path)))


def as_json(resolved: Resolved) -> Values:
    """Return the configuration as config.json stores it."""
    return anchored(plain(resolved.values()))


class Training:
    """A run that is ready to start or to continue in the directory ``path``: its checked program, and its config.json
    with ``facts``, the ``options`` and the properties of the environment."""

    def __init__(
        self,
        path: Path,
        system: Any,
        resolved: Resolved,
        options: RunOptions,
        facts: Values,
        trace: Trace | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.path, self.system, self.resolved, self.trace = path, system, resolved, trace
        self.options = ranks.quietly(options)
        self.observers = Observers(observers)
        self.runtime = make_runtime(options.runtime, options.hang_timeout, options.address)
        loggers.check(options.log, path)
        self.apart = environment_call(options.runtime)  # calls functions where environments are stepped
        with looking(self.apart):
            self.program = system.program(resolved.cfg)
            self.spec = resolved.cfg.env_spec()
        if options.evaluation.every:
            whole = is_deterministic(options.runtime)
            require_video(resolved.cfg, options.evaluation, self.apart)
            add_evaluator(self.program, system, resolved.cfg, options.evaluation, path, whole)
        self.runtime.check(self.program)
        check_devices(self.program)
        self.stop = replace(options.stop(resolved.cfg.steps), asked=self.observers.end if observers else None)
        self.policy = _policy(self.program)
        self.symptoms: Symptoms | None = None
        environment = {"id": self.spec.id, "backend": self.spec.backend, "why": self.spec.why}
        self.facts = {**facts, **options.to_json(resolved.cfg.steps), "environment": environment, "policy": self.policy}

    @staying()  # for an environment that is stepped here
    def go(self, directory: Directory, checkpoint: Checkpoint | None = None) -> Run:
        """Run from the beginning or from a checkpoint, and write the results."""
        backs: list[loggers.Logger] = []
        summary = None if ranks.follows() else Summary(self.path, self.resolved.why)
        report = failed = None
        try:
            with Interrupts() as interrupts:
                report = self._go(directory, checkpoint, backs, summary)
            if interrupts.reason not in ("", report.reason):
                # the signal came after the run had ended, so everything is saved
                raise KeyboardInterrupt(interrupts.reason)
            self.observers.check()
            if report.reason not in EXIT_CODES and not ranks.follows():
                self._diagnose(report)
            self._evaluate(report, backs)
            if not ranks.follows() and (found := evaluation_files.newest(self.path)):
                directory.report(replace(report, evaluation=found))
            for back in backs:
                back.keep()
        except BaseException as error:
            failed = error
            raise
        finally:
            for back in backs:
                back.close()
            if summary is not None:
                summary.finish(report, failed)
            directory.close()
        system, config, changes = self.facts["system"], self.facts["config"], self.facts.get("changes", [])
        begun = self.options.initial()
        return Run(self.path, system, config, report, self.policy, changes, begun, trusted=True)

    def _go(
        self, directory: Directory, checkpoint: Checkpoint | None, backs: list[loggers.Logger], summary: Summary | None
    ) -> Report:
        """Run until the end. ``backs`` is filled with the log back ends in use."""
        progress = None
        try:
            begun = 0 if checkpoint is None else checkpoint.steps
            # otherwise it did not begin with the parameters known here
            if checkpoint is None and self.options.init_from is None:
                self.symptoms = Symptoms(self.resolved.cfg, self.resolved.cfg.steps)
            config = {name: self.facts[name] for name in ("system", "preset", "runtime", "seed")} | self.facts["config"]
            args = self.options.log_args
            backs += [loggers.Logger(name, self.path, config, begun, args.get(name)) for name in self.options.log]
            self._describe(directory, checkpoint)
            resolved = self.resolved
            if self.options.quiet is None and not self.options.shows:
                preset = f"preset {resolved.preset} ({resolved.why})"
                print(f"shoal: {self.program.name} on {self.spec.id}, {preset}", file=sys.stderr)
            fitted = [resolved.fitted] if resolved.fitted and checkpoint is None else []
            for remark in [*fitted, *resolved.cfg.remarks(), *idle(self.system, resolved)]:
                if summary is not None:
                    summary.note(remark)
                if self.options.shows:
                    print(f"shoal: {remark}", file=sys.stderr)
            if self.options.shows:
                progress = Progress(
                    self.program.name, self.spec, self.stop, resolved, self.path, program=self.program,
                    symptoms=self.symptoms, first=first_update(resolved.cfg),
                )  # fmt: skip
            folder = self.path / FOLDER if checkpoint is None else checkpoint.path.parent
            every, size = self.options.checkpoint_every, self.options.checkpoint_replay_gb * 1e9
            told = (directory, summary, *backs, self.symptoms, self.trace, self.observers)
            launch = Launch(
                seed=self.options.seed, stop=self.stop, run_dir=self.path, display=progress,
                observers=[observer for observer in told if observer is not None],
                saving=SaveOptions(folder, every, size, 2, directory.lock.launch, directory.present),
                resume=checkpoint, publication=Publication(self.path),
                spans=SPANS if self.trace is not None else 0, went_back=partial(self._go_on, directory),
            )  # fmt: skip
            with self.observers.running():
                report = launched(self.options.runtime, self.runtime, self.program, launch)
            directory.finish(report)
            return report
        except BaseException as error:
            directory.failed(error)
            if isinstance(error, RoleFailed) and directory.advanced and completed(self.path / FOLDER):
                error.args = (
                    f"{error}\n(to go on from the newest checkpoint: shoal resume {shlex.quote(shown(self.path))})",
                )
            raise
        finally:
            if progress is not None:
                progress.close()

    def _describe(self, directory: Directory, checkpoint: Checkpoint | None) -> None:
        """Write the description of the run behind that of the checkpoint."""
        if checkpoint is not None:
            self._go_on(directory, checkpoint)
        directory.describe(self.facts, drawings(self.program))

    def _go_on(self, directory: Directory, checkpoint: Checkpoint) -> None:
        directory.go_on(checkpoint)
        if not ranks.follows():
            evaluation_files.forget_after(self.path, checkpoint.steps)

    def _diagnose(self, report: Report) -> None:
        """Log why the run has learned nothing, if its metrics show that."""
        if not report.updates:
            log.warning("nothing was learned: %s", why_no_update(self.resolved.cfg, report.steps))
        elif self.symptoms is not None and report.reason != "episode_return":
            found = self.symptoms.sentences()
            if self.symptoms.stuck:
                seen = self.apart(partial(observed, self.resolved.cfg, self.options.seed))
                found += [seen] if seen else []
            for sentence in found[:MOST_SENTENCES]:
                log.warning("the return has not improved: %s", sentence)

    def _evaluate(self, report: Report, backs: Sequence[loggers.Logger]) -> None:
        """Evaluate the final parameters, and pass the result to ``backs``."""
        how = self.options.evaluation
        if how.every and self.policy is not None and report.reason not in EXIT_CODES:
            if self.options.shows:
                print(
                    f"evaluating what it ended with: {counted(how.episodes, 'episode')} (all else is saved)",
                    file=sys.stderr,
                )
            returns = final_evaluation(
                self.system, self.resolved.cfg, how, self.path, report, self.policy, self.options.seed, self.apart
            )
            if returns is None:
                return
            for back in backs:
                back.evaluated({"return": sum(returns) / len(returns), **returns.info}, report.steps)
            if returns.why and self.options.shows:
                print(f"shoal: {returns.why} (--eval-max-steps)", file=sys.stderr)


def _policy(program: Program) -> str | None:
    """Return the channel of the program's policy, or None if it is ambiguous."""
    try:
        return program.policy_channel().name
    except WiringError:
        return None
