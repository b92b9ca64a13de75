"""The front door: ``train`` starts a run, ``Run`` is what it leaves behind."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.api import Report, Runtime, Stop, UsageError
from shoal.config import Resolved, build, coerce_all, resolve
from shoal.evaluation import Evaluation, add_evaluator, final_evaluation
from shoal.flags import unknown
from shoal.policy import Policy
from shoal.runtime.evaluations import BEST
from shoal.runtime.run_dir import RunDirectory, default_path, load_params, read_json
from shoal.runtime.trace import Trace

RUNTIMES = ("local", "serial")
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
        facts = read_json(path / "config.json", "run")
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
    quiet: bool = True,
    **overrides: Any,
) -> Run:
    """Train ``system`` (a name of ``shoal systems``, a module, or a ``.py`` file) until its ``steps``, or until
    ``seconds`` or the mean return of 100 episodes is reached first; ``overrides`` are fields of its config.

    run_dir: a new directory for what the run writes; None: ``runs/SYSTEM-ENV-TIME-SEED``.
    hang_timeout: seconds without progress after which a process is replaced or the run ends; 0: never.
    evaluation: how the run evaluates its newest parameters as it goes on; None: not at all.
    """
    from shoal import systems

    module = systems.load(system)
    resolved = resolve(module, preset, config, overrides, source="argument", name=system)
    return start(
        system, module, resolved, runtime=runtime, run_dir=run_dir, seed=seed, seconds=seconds,
        until_return=until_return, hang_timeout=hang_timeout, evaluation=evaluation, quiet=quiet,
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
    trace: Trace | None = None,
    quiet: bool = True,
) -> Run:
    """Run a resolved configuration; what ``train`` and ``shoal train`` share."""
    from shoal import draw
    from shoal.systems.common import env_spec

    launcher = make_runtime(runtime, hang_timeout, SPANS if trace is not None else 0)
    cfg = resolved.cfg
    path = (Path(run_dir) if run_dir is not None else default_path(name, cfg.env, seed)).absolute()
    program = system.program(cfg)
    evaluation = evaluation or Evaluation()
    if evaluation.every:
        add_evaluator(program, system, cfg, evaluation, path, whole=runtime == "serial")
    program.validate()
    spec = env_spec(cfg)
    stop = Stop(steps=cfg.steps, seconds=seconds, episode_return=until_return)
    directory = RunDirectory(path)
    values = {k: list(v) if isinstance(v, tuple) else v for k, v in resolved.values().items()}
    progress = None
    try:
        directory.describe(
            {
                "system": str(Path(name).resolve()) if name.endswith(".py") else name,
                "config": values,
                "origins": resolved.origins,
                "preset": resolved.preset,
                "seed": seed,
                "runtime": runtime,
                "stop": dataclasses.asdict(stop),
                "evaluation": dataclasses.asdict(evaluation),
                "environment": {"id": spec.id, "backend": spec.backend, "why": spec.why},
            },
            {"program.mmd": draw.mermaid(program), "program.txt": draw.text(program)},
        )
        if not quiet:
            from shoal.progress import Progress

            progress = Progress(program.name, spec, stop, resolved, directory.path, program=program)
        launch: Any = launcher.launch
        report = launch(
            program, seed=seed, stop=stop, run_dir=directory.path, display=progress,
            observers=[directory] if trace is None else [directory, trace],
        )  # fmt: skip
        directory.finish(report)
        if evaluation.every and report.reason != "interrupted":
            final_evaluation(system, cfg, evaluation, path, report, seed)
    finally:
        directory.close()
        if progress is not None:
            progress.close()
    return Run(directory.path, name, values, report)


def make_runtime(name: str, hang_timeout: float = 60.0, spans: int = 0) -> Runtime:
    """The runtime called ``name``. spans: how many each replica records for a profile."""
    if hang_timeout < 0:
        raise UsageError(f"hang_timeout expects seconds, or 0 for no limit, found {hang_timeout:g}")
    if name == "local":
        from shoal.runtime import processes

        processes.prepare()
        from shoal.runtime.local import LocalRuntime

        return LocalRuntime(hang_timeout=hang_timeout, spans=spans)
    if name == "serial":
        from shoal.runtime.serial import SerialRuntime

        return SerialRuntime(spans)
    raise unknown("runtime", name, RUNTIMES)
