"""The front door: ``train`` starts a run, ``Run`` is what it leaves behind."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.api import RoleFailed, UsageError
from shoal.metering.trace import Trace
from shoal.policy import Policy
from shoal.records import evaluation_files, loggers
from shoal.records.checkpoint import FOLDER, Checkpoint, Saving, completed, newest
from shoal.records.evaluation_files import BEST
from shoal.records.run_dir import RunDirectory, default_path, load_params, read_json
from shoal.run.evaluation import Evaluation, add_evaluator, final_evaluation
from shoal.runtime.devices import check_devices
from shoal.runtime.launch import Launch, Report, Runtime, Stop
from shoal.settings.config import Resolved, build, coerce_all, resolve
from shoal.settings.flags import expect, unknown
from shoal.settings.ranges import Count, Natural, NonNegative, Positive

RUNTIMES = ("local", "serial")
OPTIONS: dict[str, Any] = {  # of a run, beside its configuration
    "seed": Natural, "steps": Count, "seconds": Positive, "until_return": float, "hang_timeout": NonNegative,
    "checkpoint_every": NonNegative, "checkpoint_replay_gb": NonNegative,
}  # fmt: skip
SETTINGS = ("system", "config", "seed", "runtime", "stop", "hang_timeout", "evaluation", "checkpoint")  # config.json
SPANS = 100_000  # of each replica in a profile


@dataclass
class Run:
    """A run on disk. ``config``: the values it was run with; ``report``: how it ended (None while it runs);
    ``system``: the name it was started by."""

    path: Path
    system: str
    config: dict[str, Any]
    report: Report | None = None

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """The run in a directory that ``train`` made."""
        path = Path(path)
        if not path.is_dir():
            raise UsageError(f"no such run directory: '{path}'")
        facts = read_json(path / "config.json", "run", ("system", "config"))
        report = None
        if (path / "report.json").is_file():
            told = read_json(path / "report.json", "report")
            if told["episode_return"] is None:
                told["episode_return"] = float("nan")
            report = Report(**told)
        return cls(path, facts["system"], facts["config"], report)

    def policy(self, seed: int = 0, which: str = "last") -> Policy:
        """The policy with the run's ``last`` parameters, or with the ``best`` by its own evaluations."""
        from shoal import systems

        if which not in ("last", "best"):
            raise unknown("value", which, ("last", "best"), "which")
        path = self.path if which == "last" else self.path / BEST
        if which == "best" and not (path / "params.json").is_file():
            raise UsageError(f"'{self.path}' holds no best parameters: it was trained without --eval-every")

        system = systems.load(self.system)
        cfg = build(system.Config, coerce_all(system.Config, self.config, str(self.path / "config.json")))
        version, params = load_params(path)
        return Policy(system, cfg, params, version, seed)


def check_options(**options: Any) -> None:
    """UsageError for one that is not in its range (``OPTIONS``)."""
    for name, value in options.items():
        if value is not None:
            expect(OPTIONS[name], value, f"'{name}'")


def train(
    system: str,
    *,
    preset: str = "auto",
    config: str | Path | None = None,
    runtime: str = "local",
    run_dir: str | Path | None = None,
    seed: int = 0,
    seconds: float | None = None,
    until_return: float | None = None,
    hang_timeout: float = 60.0,
    evaluation: Evaluation | None = None,
    checkpoint_every: float = 300.0,
    checkpoint_replay_gb: float = 8.0,
    log: Sequence[str] = (),
    quiet: bool = True,
    **overrides: Any,
) -> Run:
    """Train ``system`` (a name of ``shoal systems``, a module, or a ``.py`` file) until its ``steps``, or until
    ``seconds`` or the mean return of 100 episodes is reached first; ``overrides`` are fields of its config.

    run_dir: a new directory for what the run writes; None: ``runs/SYSTEM-ENV-TIME-SEED``.
    hang_timeout: seconds without progress after which a process is replaced or the run ends; 0: never.
    evaluation: how the run evaluates its newest parameters as it goes on; None: not at all.
    checkpoint_every: seconds between two checkpoints; 0: only at the end.
    checkpoint_replay_gb: replays larger than this (10**9 bytes) are left out of checkpoints.
    log: back ends that metrics go to besides the files: tensorboard, wandb, mlflow.
    """
    from shoal import systems

    module = systems.load(system)
    resolved = resolve(module, preset, config, overrides, source="argument", name=system)
    return start(
        system, module, resolved, runtime=runtime, run_dir=run_dir, seed=seed, seconds=seconds,
        until_return=until_return, hang_timeout=hang_timeout, checkpoint_every=checkpoint_every,
        checkpoint_replay_gb=checkpoint_replay_gb, evaluation=evaluation, log=log, quiet=quiet,
    )  # fmt: skip


def start(
    name: str,
    system: Any,
    resolved: Resolved,
    *,
    runtime: str = "local",
    run_dir: str | Path | None = None,
    seed: int = 0,
    seconds: float | None = None,
    until_return: float | None = None,
    hang_timeout: float = 60.0,
    evaluation: Evaluation | None = None,
    checkpoint_every: float = 300.0,
    checkpoint_replay_gb: float = 8.0,
    log: Sequence[str] = (),
    trace: Trace | None = None,
    quiet: bool = True,
) -> Run:
    """Run a resolved configuration; what ``train`` and ``shoal train`` share."""
    cfg = resolved.cfg
    check_options(
        seed=seed, seconds=seconds, until_return=until_return, hang_timeout=hang_timeout,
        checkpoint_every=checkpoint_every, checkpoint_replay_gb=checkpoint_replay_gb,
    )  # fmt: skip
    path = Path(run_dir) if run_dir is not None else default_path(name, cfg.env, seed)
    settings = {
        "system": str(Path(name).resolve()) if name.endswith(".py") else name,
        "config": _values(resolved),
        "origins": resolved.origins,
        "preset": resolved.preset,
        "actors": cfg.num_actors() if hasattr(cfg, "num_actors") else 0,
        "seed": seed,
        "runtime": runtime,
        "stop": dataclasses.asdict(Stop(steps=cfg.steps, seconds=seconds, episode_return=until_return)),
        "hang_timeout": hang_timeout,
        "evaluation": dataclasses.asdict(evaluation or Evaluation()),
        "checkpoint": {"every": checkpoint_every, "replay_gb": checkpoint_replay_gb},
        "log": list(log),
    }
    launch = _Launch(path, system, resolved, settings, trace)
    return launch.go(RunDirectory(path), None, quiet)


def resume(
    path: str | Path,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    until_return: float | None = None,
    quiet: bool = True,
) -> Run:
    """Go on with the run in ``path`` from its newest whole checkpoint, in the same directory with the same
    configuration. The limits are those of the run unless given anew; they count from its beginning."""
    check_options(steps=steps, seconds=seconds, until_return=until_return)
    path = Path(path)
    directory = RunDirectory.reopen(path)
    try:
        settings = read_json(path / "config.json", "run", SETTINGS)
        limits = {"steps": steps, "seconds": seconds, "episode_return": until_return}
        system, resolved = _again(path, settings, {k: v for k, v in limits.items() if v is not None})
        checkpoint = newest(path / FOLDER)
        _check_unfinished(path, checkpoint, Stop(**settings["stop"]))
        launch = _Launch(path, system, resolved, settings)
        checkpoint.check_fits(launch.program)
    except BaseException:
        directory.close()
        raise
    return launch.go(directory, checkpoint, quiet)


def _again(path: Path, settings: dict[str, Any], limits: dict[str, Any]) -> tuple[Any, Resolved]:
    """The system and configuration of a run that was started before; new ``limits`` go into ``settings`` too."""
    from shoal import systems

    system, where = systems.load(settings["system"]), str(path / "config.json")
    values = coerce_all(system.Config, settings["config"], where)
    for missing in sorted(values.keys() - settings["config"].keys()):
        told = f"{where} lacks '{missing}' (another version wrote it): using {values[missing]!r}"
        print(f"shoal: {told}", file=sys.stderr)
    settings["stop"] |= limits
    if "steps" in limits:
        values["steps"], settings["origins"]["steps"] = limits["steps"], "resume"
        settings["config"]["steps"] = limits["steps"]
    if settings.get("actors"):
        values["actors"] = settings["actors"]  # also where this machine has another number of cores
    return system, Resolved(build(system.Config, values), settings["origins"], settings["preset"], "resumed")


def _check_unfinished(path: Path, checkpoint: Checkpoint, stop: Stop) -> None:
    """UsageError if the run has reached one of its limits."""
    reached = {"steps": checkpoint.steps, "seconds": checkpoint.manifest["seconds"]}
    for name, now in reached.items():
        limit = getattr(stop, name)
        if limit is not None and now >= limit:
            raise UsageError(
                f"the run in '{path}' is finished: it has reached its {limit:,} {name}; "
                f"give it more with --{name}, for example --{name} {2 * limit:g}"
            )


class _Launch:
    """A program ready to run in the directory ``path``, as ``settings`` (the contents of config.json) say."""

    def __init__(
        self, path: Path, system: Any, resolved: Resolved, settings: dict[str, Any], trace: Trace | None = None
    ) -> None:
        self.path, self.system, self.resolved, self.settings = path, system, resolved, settings
        self.trace = trace
        self.launcher = make_runtime(settings["runtime"], settings["hang_timeout"])
        loggers.check(settings.get("log", []))
        self.evaluation = Evaluation(**settings["evaluation"])
        self.program = system.program(resolved.cfg)
        if self.evaluation.every:
            whole = settings["runtime"] == "serial"
            add_evaluator(self.program, system, resolved.cfg, self.evaluation, path.absolute(), whole)
        self.program.validate()
        check_devices(self.program)
        self.spec = resolved.cfg.env_spec()
        settings["environment"] = {"id": self.spec.id, "backend": self.spec.backend, "why": self.spec.why}

    def go(self, directory: RunDirectory, checkpoint: Checkpoint | None, quiet: bool) -> Run:
        """Run, from the beginning or from a checkpoint, and write what comes of it."""
        from shoal.program import draw

        settings, stop, progress = self.settings, Stop(**self.settings["stop"]), None
        backs: list[loggers.Logger] = []
        try:
            backs += [loggers.Logger(name, self.path, settings["config"]) for name in settings.get("log", [])]
            if checkpoint is not None:
                directory.go_on(checkpoint)
                evaluation_files.forget_after(self.path, checkpoint.steps)
            drawings = {"program.mmd": draw.mermaid(self.program), "program.txt": draw.text(self.program)}
            directory.describe(settings, drawings)
            every, size = settings["checkpoint"]["every"], settings["checkpoint"]["replay_gb"] * 1e9
            saving = Saving(self.path.absolute() / FOLDER, every, size, launch=directory.lock.launch)
            if not quiet:
                from shoal.run.progress import Progress

                progress = Progress(
                    self.program.name, self.spec, stop, self.resolved, self.path, program=self.program
                )  # fmt: skip
            launch = Launch(
                seed=settings["seed"], stop=stop, run_dir=self.path.absolute(), display=progress,
                observers=[directory, *backs, *([self.trace] if self.trace is not None else [])],
                saving=saving, resume=checkpoint, spans=SPANS if self.trace is not None else 0,
            )  # fmt: skip
            report = self.launcher.launch(self.program, launch)
            for back in backs:
                back.close()
            directory.finish(report)
            if self.evaluation.every and report.reason not in ("interrupted", "terminated"):
                final_evaluation(
                    self.system, self.resolved.cfg, self.evaluation, self.path, report, settings["seed"]
                )  # fmt: skip
        except RoleFailed as error:
            if completed(self.path / FOLDER):
                error.args = (
                    f"{error}\n(to go on from the newest checkpoint: shoal resume {shlex.quote(str(self.path))})",
                )
            raise
        finally:
            for back in backs:
                back.close()
            directory.close()
            if progress is not None:
                progress.close()
        return Run(self.path, settings["system"], settings["config"], report)


def _values(resolved: Resolved) -> dict[str, Any]:
    """The fields of a configuration as JSON has them."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in resolved.values().items()}


def make_runtime(name: str, hang_timeout: float = 60.0) -> Runtime:
    """The runtime called ``name``."""
    if name == "local":
        from shoal.local import processes

        processes.prepare()
        from shoal.local.runtime import LocalRuntime

        return LocalRuntime(hang_timeout=hang_timeout)
    if name == "serial":
        from shoal.serial.runtime import SerialRuntime

        return SerialRuntime()
    raise unknown("runtime", name, RUNTIMES)
