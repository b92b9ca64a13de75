"""A search for hyperparameters with Optuna. Every trial is a run, and a trial that lags behind the others is ended
early."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shoal.api import ShoalError, UsageError
from shoal.extras import pip_install
from shoal.paths import require_new, shown
from shoal.records.atomic_write import write_atomic
from shoal.records.damage import reading
from shoal.records.metric_files import newest_steps
from shoal.run.monitors import NO_MONITORS, MonitorOptions, Monitors
from shoal.run.options import RunOptions
from shoal.run.population.hyperparameters import Interval
from shoal.run.population.slots import Done, Slots, fitting
from shoal.run.run import Run
from shoal.run.training import as_json, start
from shoal.runtime.interrupts import EXIT_CODES, Interrupts
from shoal.settings.config import Resolved, build
from shoal.settings.schedule import Linear
from shoal.settings.toml_text import to_toml
from shoal.types import Values
from shoal.untrusted import brief, number, one_line, parse_json, read_text
from shoal.words import counted

PARTS = 10  # moments of a trial at which it may be ended
FIELDS = ("learning_rate", "entropy_cost", "gamma", "gae_lambda", "noise_std")  # searched by default
STUDY, BEST, SETTINGS = "study.log", "best.toml", "study.json"  # files of a study's directory
LOCK = f"{STUDY}.lock"  # a link that Optuna makes while it writes
POLL_SECONDS = 0.5  # seconds between two checks for an interrupt


@dataclass(frozen=True)
class Searched:
    """The result of a search: the signal that ended it or "", the number of finished trials, and the best score (nan:
    none)."""

    reason: str
    trials: int
    best: float

    @property
    def ending(self) -> str:
        """Return how it ended, in words."""
        best = "" if math.isnan(self.best) else f", best score {self.best:.4g}"
        return f"{self.reason or 'trials'}, {self.trials} finished{best}"


@dataclass(frozen=True)
class Study:
    """A search in the directory ``path``. system: its name; resolved: the configuration that trials change; space:
    arguments of an ``Interval`` for each field; options: of every run; seed: of the search, and of the first run."""

    path: Path
    system: str
    module: Any
    resolved: Resolved
    space: dict[str, Values]
    options: RunOptions

    def open(self) -> Any:
        """Open the Optuna study of this directory, or create it. Raises UsageError without Optuna."""
        optuna = _optuna()
        storages = importlib.import_module("optuna.storages")
        file = importlib.import_module("optuna.storages.journal").JournalFileBackend(str(self.path / STUDY))
        seed = _sampler_seed(self.options.seed)
        with reading(self.path / STUDY):  # lines of JSON
            try:
                return optuna.create_study(
                    study_name="shoal", storage=storages.JournalStorage(file), load_if_exists=True,
                    direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed),
                    pruner=optuna.pruners.MedianPruner(n_warmup_steps=2),
                )  # fmt: skip
            except AssertionError as error:  # Optuna asserts the format of its own lines
                raise ValueError(f"{error}") from None

    def search(
        self, trials: int, slots: int, tell: Callable[[str], None], monitors: MonitorOptions = NO_MONITORS
    ) -> Searched:
        """Run until the study has ``trials`` finished trials, ``slots`` at a time; the first has the configured values.
        tell: receives a sentence about each. monitors: what monitors the search."""
        self._require_plain()
        _optuna()  # fails before anything is created
        self.path.mkdir(parents=True, mode=0o700, exist_ok=True)
        study = self.open()
        self._check()
        with monitors.running(self.path) as active:
            slots = fitting(min(slots, trials), tell)
            return active.ended(self._search(study, trials, slots, tell, _Rows(self.path, active)))

    def _search(self, study: Any, trials: int, slots: int, tell: Callable[[str], None], rows: _Rows) -> Searched:
        states = _optuna().trial.TrialState
        finished = states.COMPLETE, states.PRUNED
        for lost in study.get_trials(deepcopy=False, states=(states.RUNNING,)):  # trials of a search that was killed
            study.tell(lost.number, state=states.FAIL)
            study.enqueue_trial(lost.params)
        if not study.trials:
            study.enqueue_trial({name: _told(name, self.space, self.resolved.values()[name]) for name in self.space})
        left = max(0, trials - sum(trial.state in finished for trial in study.trials))
        rows.best = _best(study)
        with Interrupts() as interrupts, contextlib.closing(_Pool(self, slots, rows.tell)) as pool:
            rows.tell()
            for done in pool.each(left, lambda: bool(interrupts.reason)):
                if done.failure:
                    raise ShoalError(f"a trial failed:\n{done.failure}")
                tell(done.result)
                self._keep_best(study)
                rows.best = _best(study)
                rows.tell()
            reason = interrupts.reason
        return Searched(reason, sum(trial.state in finished for trial in study.trials), rows.best)

    def _require_plain(self) -> None:
        """Raise UsageError for a link, or a file with several names, in the directory that is written to."""
        if not self.path.is_dir():
            require_new(self.path)
            return
        for file in sorted(self.path.iterdir()):
            if file.is_symlink() and file.name != LOCK:
                raise UsageError(f"'{shown(file)}' is a symbolic link, expected a file or a folder of the study")
            if file.is_file() and file.lstat().st_nlink > 1 and file.name != LOCK:
                raise UsageError(f"'{shown(file)}' has another name elsewhere (a hard link), expected one of its own")

    def _check(self) -> None:
        """Record the searched fields and the configuration. Raises UsageError if the study has searched others."""
        file, here = self.path / SETTINGS, {"system": self.system, "space": self.space, **as_json(self.resolved)}
        here = json.loads(json.dumps(here, default=str))
        if not file.is_file():
            write_atomic(file, json.dumps(here, indent=1) + "\n")
            return
        with reading(file):
            there = dict(parse_json(read_text(file)))
        differ = [name for name in {**there, **here} if there.get(name) != here.get(name)]
        if differ:
            raise UsageError(
                f"the study in '{shown(self.path)}' has trials with another {one_line(differ[0])} "
                f"({brief(there.get(differ[0]))}, not {brief(here.get(differ[0]))}): "
                "their scores do not compare; give another --study"
            )

    def _keep_best(self, study: Any) -> None:
        """Write the best configuration so far in the format of ``--config``."""
        with contextlib.suppress(ValueError):  # no trial is complete
            trial = study.best_trial
            with reading(self.path / STUDY):  # the file may hold anything
                values = {name: number(trial.user_attrs["values"][name]) for name in self.space}
                values = {name: int(x) if Interval(**self.space[name]).integer else x for name, x in values.items()}
            best = self.changed(values)
            write_atomic(self.path / BEST, to_toml(best, self.system))

    def changed(self, values: Mapping[str, Any]) -> Resolved:
        """Return the configuration with these values in it."""
        before = self.resolved.values()
        scaled = {name: _like(before[name], value) for name, value in values.items()}
        cfg = build(self.module.Config, {**before, **scaled})
        return replace(self.resolved, cfg=cfg, origins={**self.resolved.origins, **dict.fromkeys(values, "trial")})

    def trial(self, *observers: Callable[[Values], None]) -> str:
        """Train once with values that the study suggests, and return a sentence about it. observers: of its rows."""
        optuna, study = _optuna(), self.open()
        trial = study.ask()
        study.sampler = optuna.samplers.TPESampler(seed=_sampler_seed(self.options.seed + trial.number))
        values = {name: _suggest(trial, name, Interval(**one)) for name, one in self.space.items()}
        trial.set_user_attr("values", values)
        shown = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        steps, seen = self.resolved.cfg.steps, [0]

        def lags(row: Values) -> bool:
            part = int(PARTS * row["steps"] / steps)
            if part <= seen[0] or "episode_return" not in row or part >= PARTS:
                return False
            seen[0] = part
            trial.report(row["episode_return"], part)
            return bool(trial.should_prune())

        options = replace(self.options, run_dir=self.path / f"trial-{trial.number:04d}", quiet=True)
        options = replace(options, seed=self.options.seed + trial.number)
        try:
            run: Run = start(self.system, self.module, self.changed(values), options, observers=[lags, *observers])
        except BaseException:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            raise
        report = run.report
        assert report is not None, "it has ended"
        if report.reason in EXIT_CODES:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            study.enqueue_trial(trial.params)
            return f"trial {trial.number}: {report.reason}, and run again when the study goes on"
        if report.reason == "observer":
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            return (
                f"trial {trial.number}: ended after {counted(report.steps, 'step')}, {report.episode_return:.4g} "
                f"({shown})"
            )
        if math.isnan(report.episode_return):
            raise UsageError(
                f"no episode has ended in {counted(report.steps, 'step')}: a trial needs more of them for a score"
            )
        study.tell(trial, report.episode_return)
        return f"trial {trial.number}: {report.episode_return:.4g} ({shown})"


class _Rows:
    """Reports the progress of all trials of a search and the best score to its monitors."""

    def __init__(self, path: Path, monitors: Monitors) -> None:
        self._path, self._monitors, self._began = path, monitors, time.monotonic()
        self._over: dict[Path, int] = {}  # the steps of trials that have ended
        self.best = math.nan

    def tell(self, _: Values | None = None) -> None:
        if not self._monitors.observers:
            return
        seconds = time.monotonic() - self._began
        self._monitors.row({"seconds": seconds, "steps": self._steps(), "episode_return": self.best})

    def _steps(self) -> int:
        total = sum(self._over.values())
        for path in {*self._path.glob("trial-*")} - self._over.keys():
            ended, steps = (path / "report.json").is_file(), newest_steps(path)
            total += steps
            if ended:
                self._over[path] = steps
        return total


class _Pool:
    """Runs trials in this process or in several. look: called repeatedly while they run."""

    def __init__(self, study: Study, slots: int, look: Callable[[Values | None], None]) -> None:
        self._study, self._slots = study, Slots(partial(_run, study), slots) if slots > 1 else None
        self._look = look

    def each(self, count: int, stopped: Callable[[], bool]) -> Iterator[Done]:
        """Run ``count`` trials and yield their results. When it is ``stopped``, trials that have begun are asked to
        end."""
        if self._slots is None:
            for number in range(count):
                if stopped():
                    return
                yield Done(number, self._study.trial(self._look))
            return
        begun, asked = 0, False
        while begun < count or self._slots.busy():
            if stopped() and not asked:
                asked = True
                self._slots.stop()
            while not asked and begun < count and self._slots.free:
                self._slots.submit(begun, begun)
                begun += 1
            if asked and not self._slots.busy():
                return
            yield from self._slots.wait(POLL_SECONDS)
            self._look(None)

    def close(self) -> None:
        if self._slots is not None:
            self._slots.close()


def _run(study: Study, _: int) -> str:
    return study.trial()


def _best(study: Any) -> float:
    """Return the best score of the finished trials, or nan."""
    try:
        return float(study.best_value)
    except ValueError:
        return math.nan


def _sampler_seed(seed: int) -> int:
    """The seed of Optuna's sampler, which takes 32 bits: ``seed`` itself where it has no more."""
    return seed if seed < 2**32 else int(np.random.SeedSequence(seed).generate_state(1)[0])


def _optuna() -> Any:
    try:
        optuna: Any = importlib.import_module("optuna")
    except ImportError:
        raise UsageError(f"a search for hyperparameters needs Optuna: {pip_install('tune')}") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _suggest(trial: Any, name: str, one: Interval) -> Any:
    """Return Optuna's suggestion of a field's value. For a value searched as 1 - x, Optuna gets x."""
    if one.integer:
        return trial.suggest_int(name, int(one.low), int(one.high), log=one.log)
    if one.one_minus:
        return 1.0 - trial.suggest_float(name, 1.0 - one.high, 1.0 - one.low, log=one.log)
    return trial.suggest_float(name, one.low, one.high, log=one.log)


def _told(name: str, space: Mapping[str, Values], value: Any) -> Any:
    """Return the value, within its interval, that Optuna is told for a configured value."""
    one = Interval(**space[name])
    inside = min(max(_size(value), one.low), one.high)
    return int(inside) if one.integer else 1.0 - inside if one.one_minus else inside


def _like(before: Any, value: Any) -> Any:
    """Return ``value`` for a field that was ``before``: for a schedule, it is the start, and the end changes in
    proportion."""
    return Linear(value, before.end * value / before.start) if isinstance(before, Linear) else value


def searchable(cfg: Any) -> list[str]:
    """Return the fields of a configuration that are searched by default."""
    names = [field.name for field in dataclasses.fields(cfg)]
    return [name for name in FIELDS if name in names and _size(getattr(cfg, name)) > 0]


def _size(value: Any) -> float:
    start = getattr(value, "start", value)
    return float(start) if isinstance(start, (int, float)) and not isinstance(start, bool) else 0.0
