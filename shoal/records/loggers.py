"""Log back ends, which send metrics to TensorBoard, Weights & Biases or MLflow. Each needs an extra package, which is
imported on first use.

The metric files are always written. A back end that fails is reported once and then left out, and training continues.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal import own_code
from shoal.api import UsageError
from shoal.extras import pip_install
from shoal.metering.aggregator import Snapshot
from shoal.paths import shown, working_directory
from shoal.records.atomic_write import write_atomic
from shoal.records.evaluation_files import BEST, VIDEOS
from shoal.records.metric_files import finite, performance_row, training_row
from shoal.registry import Registry
from shoal.types import Values
from shoal.untrusted import read_text

EVALUATION = "evaluation_"  # prefix of the names of an evaluator's metrics

log = logging.getLogger("shoal.runtime")


class BackEnd:
    """Base class of back ends, which receive metrics besides the files. Name your own subclass by
    ``log="MODULE:CLASS"``."""

    refused = r"(?!)"  # a pattern of characters that its metric names must not contain
    package = ""  # for Shoal's own back ends: the package that must be installed
    # whether it sends data to a service. A resumed run sends data only to services that its user names again
    remote = False

    def __init__(self, path: Path, config: Mapping[str, Any], begun: int, args: Values) -> None:
        """Open the back end. path: the run directory; config: the run's settings; begun: the step at which the run
        begins, above 0 if it is resumed; args: the user's arguments for the back end (``log_args``)."""

    @abstractmethod
    def write(self, row: Mapping[str, float], steps: int) -> None:
        """Receive the newest metrics, by name (``train/NAME``, ``eval/NAME``, ``perf/NAME``), after ``steps``
        environment steps."""

    def keep(self, policy: Path | None, films: Sequence[Path]) -> None:
        """Receive, at the end of the run, the directory of the best policy, if there is one, and the files of new
        films."""

    def close(self) -> None:
        """Close the back end: no more metrics follow."""


class TensorBoard(BackEnd):
    """Writes event files to ``RUN/tensorboard``. In a resumed run, later steps of the earlier launch are hidden."""

    package = "tensorboard"
    refused = r"[^-/\w.]"  # TensorBoard would replace each by an underscore and so merge names

    def __init__(self, path: Path, config: Mapping[str, Any], begun: int, args: Values) -> None:
        from torch.utils.tensorboard import SummaryWriter

        own = {"log_dir": str(path / "tensorboard"), "purge_step": begun + 1 if begun else None}
        self._writer: Any = SummaryWriter(**own | args)
        self._writer.add_text("config", "\n".join(f"    {k} = {v}" for k, v in config.items()))

    def write(self, row: Mapping[str, float], steps: int) -> None:
        for name, value in row.items():
            self._writer.add_scalar(name, value, steps)

    def close(self) -> None:
        self._writer.close()


class Wandb(BackEnd):
    """Logs to a run of the project ``shoal`` of Weights & Biases, the same run when it is resumed, unless
    ``WANDB_PROJECT`` or ``args`` (of ``wandb.init``) name another. Its own environment variables (``WANDB_NAME``,
    ``WANDB_DIR``) take precedence over Shoal's values. The best policy becomes an artifact, videos become media."""

    package = "wandb"
    remote = True
    refused = r"^_"  # W&B reserves these names

    def __init__(self, path: Path, config: Mapping[str, Any], begun: int, args: Values) -> None:
        self._wandb: Any = importlib.import_module("wandb")
        file = path / "wandb-run.txt"
        again = {"id": _read(file), "resume": "allow", "allow_val_change": True} if file.is_file() else {}
        own = {"project": "shoal", "name": path.name, "dir": str(path)}
        own = {name: value for name, value in own.items() if not os.environ.get(f"WANDB_{name.upper()}")}
        self._run = self._wandb.init(**{**own, "config": dict(config), **again, **args})
        write_atomic(file, self._run.id)

    def write(self, row: Mapping[str, float], steps: int) -> None:
        self._run.log(dict(row), step=steps)

    def keep(self, policy: Path | None, films: Sequence[Path]) -> None:
        if policy is not None:
            artifact = self._wandb.Artifact(f"policy-{self._run.id}", type="model")
            artifact.add_dir(str(policy))
            self._run.log_artifact(artifact)
        for film in films:
            self._run.log({"eval/video": self._wandb.Video(str(film), format="mp4")})

    def close(self) -> None:
        self._run.finish()


class MLflow(BackEnd):
    """Logs to a run of the experiment ``shoal`` of MLflow, the same run when it is resumed, unless
    ``MLFLOW_EXPERIMENT_NAME``, ``MLFLOW_EXPERIMENT_ID`` or ``args`` (``experiment_name``, and those of
    ``mlflow.start_run``) name another. ``MLFLOW_TRACKING_URI`` names the server. MLflow never changes a parameter, so a
    new value is stored as a tag of the same name. MLflow rejects a whole batch if it refuses one name."""

    package = "mlflow"
    remote = True
    refused = r"[^-/\w. ]|^/|\.\.|(?<=/)/|/$"

    def __init__(self, path: Path, config: Mapping[str, Any], begun: int, args: Values) -> None:
        self._mlflow: Any = importlib.import_module("mlflow")
        said = any(os.environ.get(f"MLFLOW_EXPERIMENT_{word}") for word in ("NAME", "ID"))
        if "experiment_name" in args or not said:
            self._mlflow.set_experiment(args.get("experiment_name", "shoal"))
        file = path / "mlflow-run.txt"
        which = {"run_id": _read(file)} if file.is_file() else {"run_name": path.name}
        run = self._mlflow.start_run(
            **which | {name: value for name, value in args.items() if name != "experiment_name"}
        )
        write_atomic(file, run.info.run_id)
        values = {name: str(value)[:250] for name, value in config.items()}
        begun_with, shown = run.data.params, {**run.data.params, **run.data.tags}
        self._mlflow.log_params({name: value for name, value in values.items() if name not in begun_with})
        self._mlflow.set_tags({name: value for name, value in values.items() if shown.get(name, value) != value})

    def write(self, row: Mapping[str, float], steps: int) -> None:
        self._mlflow.log_metrics(dict(row), step=steps, synchronous=False)

    def keep(self, policy: Path | None, films: Sequence[Path]) -> None:
        if policy is not None:
            self._mlflow.log_artifacts(str(policy), "policy")
        for film in films:
            self._mlflow.log_artifact(str(film), "videos")

    def close(self) -> None:
        self._mlflow.end_run()


def _place(name: str) -> str:
    """Return the name of a training metric in a back end."""
    return f"eval/{name.removeprefix(EVALUATION)}" if name.startswith(EVALUATION) else f"train/{name}"


def _require_no_settings(path: Path) -> None:
    """Raise UsageError if the working directory is, or lies in, the run directory ``path`` and holds settings of W&B.
    They name the server that receives the user's key, and the run may be somebody else's."""
    here = Path(working_directory()).resolve()
    for file in (here / "wandb" / "settings", here / ".wandb" / "settings"):
        if here.is_relative_to(path.resolve()) and os.path.lexists(file):
            raise UsageError(
                f"'{shown(file)}' in the directory of the run would tell W&B where to send your key and the metrics: "
                "remove it, or call shoal from another directory"
            )


def _read(file: Path) -> str:
    return read_text(file).strip()


LOGGERS: Registry[type[BackEnd]] = Registry(
    "log back end", {"tensorboard": TensorBoard, "wandb": Wandb, "mlflow": MLflow},
    methods=("write", "keep", "close"), wrap=lambda cls: cls,
)  # fmt: skip
REMOTE = [name for name in LOGGERS if LOGGERS.find(name).remote]


def arguments(given: Mapping[str, Any], names: Sequence[str]) -> dict[str, Values]:
    """Return the user's arguments of each back end, given as ``{"wandb": {"group": "x"}}`` or ``{"wandb.group": "x"}``.
    A back end of the user's is named by its absolute name. Raises UsageError for arguments of a back end that is not
    among ``names``."""
    out: dict[str, Values] = {}
    for key, value in given.items():
        back = next((name for name in names if key == name or key.startswith(f"{name}.")), key.partition(".")[0])
        name = key[len(back) + 1 :]
        entries = {name: value} if name and back != key else value
        if not isinstance(entries, Mapping):
            raise UsageError(f"log_args expects arguments of back ends, as in wandb.group=NAME, found '{key}'")
        if back not in names:
            beside = f"'{back}' among the back ends in log" if back in [*LOGGERS] else f"one of {', '.join(LOGGERS)}"
            raise UsageError(f"log_args has '{key}', which expects {beside}")
        out.setdefault(own_code.absolute(back), {}).update(entries)
    return out


def check(names: Sequence[str], path: Path) -> None:
    """Raise UsageError unless every back end is known and installed, or if a file in the run directory ``path`` would
    direct W&B."""
    for name in names:
        found = LOGGERS.find(name)
        if found is Wandb:
            _require_no_settings(path)
        if name in LOGGERS.built_in:
            try:
                importlib.import_module(found.package)
            except ImportError:
                raise UsageError(f"log {name} needs a package: {pip_install(name)}") from None


class Logger:
    """An observer of the run that passes its metrics to one back end: training as ``train/NAME``, evaluations as
    ``eval/NAME``, clock and machine as ``perf/NAME``. begun: the step at which a resumed run continues; args: the
    user's arguments for the back end."""

    def __init__(
        self, name: str, path: Path, config: Mapping[str, Any], begun: int, args: Values | None = None
    ) -> None:
        self.name = name
        self._films = {*(path / VIDEOS).glob("*.mp4")}  # videos already passed on
        self._path, self._steps = path, begun
        self._names: dict[str, str] = {}  # metric -> its name in the back end
        self._back: BackEnd | None = None
        try:
            self._back = LOGGERS.find(name)(path, config, begun, args or {})
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it may raise anything, and training must continue
            self._give_up(error)

    def update(self, snapshot: Snapshot) -> None:
        row = {_place(name): value for name, value in training_row(snapshot).items() if name != "row"}
        perf = {f"perf/{name}": v for name, v in performance_row(snapshot).items() if name not in ("row", "steps")}
        self._write(row | perf, snapshot.steps)

    def evaluated(self, numbers: Mapping[str, float], steps: int) -> None:
        """Log an evaluation of the final parameters."""
        self._write({f"eval/{name}": value for name, value in numbers.items()}, steps)

    def keep(self) -> None:
        """Pass on the run's best policy and its new videos, if any."""
        best, films = self._path / BEST, sorted({*(self._path / VIDEOS).glob("*.mp4")} - self._films)
        try:
            if self._back is not None and (best.is_dir() or films):
                self._back.keep(best if best.is_dir() else None, films)
        except (Exception, SystemExit) as error:  # noqa: BLE001
            self._give_up(error)

    def _write(self, row: Mapping[str, Any], steps: int) -> None:
        """Write the finite values of ``row``, at a step no earlier than that of the last row."""
        if self._back is None:
            return
        self._steps = max(self._steps, steps)
        found = {name: float(value) for name, value in row.items() if finite(value) is not None}
        numbers = {self._named(name): value for name, value in found.items()}
        try:
            self._back.write(numbers, self._steps)
        except (Exception, SystemExit) as error:  # noqa: BLE001
            self._give_up(error)

    def _named(self, name: str) -> str:
        """Return the back end's name of a metric: always the same one, and a different one for each metric."""
        if name not in self._names:
            assert self._back is not None
            taken = re.sub(getattr(self._back, "refused", BackEnd.refused), "_", name, flags=re.ASCII) or "_"
            while taken in self._names.values():
                taken += "_"
            self._names[name] = taken
        return self._names[name]

    def close(self) -> None:
        back, self._back = self._back, None
        try:
            if back is not None:
                back.close()
        except (Exception, SystemExit) as error:  # noqa: BLE001
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        self._back = None
        log.warning("%s failed, nothing more is logged to it: %s: %s", self.name, type(error).__name__, error)
