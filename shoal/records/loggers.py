"""Back ends that show metrics elsewhere: TensorBoard, Weights & Biases, MLflow. Each an extra, imported when asked for.

The metric files are always written; a back end that fails is reported once and left out, and the training goes on.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol

from shoal.api import UsageError
from shoal.metering.aggregator import Snapshot
from shoal.records.metric_files import finite, performance_row, training_row
from shoal.records.whole_files import write_whole

log = logging.getLogger("shoal.runtime")


class BackEnd(Protocol):
    refused: str  # a pattern of the characters that its names of metrics must not have

    def write(self, row: Mapping[str, float], steps: int) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    """Event files in ``RUN/tensorboard``. Of a run that goes on, what was told of later steps before is not shown."""

    refused = r"[^-/\w.]"  # it would write an underscore for each, and one name for two

    def __init__(self, path: Path, config: Mapping[str, Any], begun: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(path / "tensorboard"), purge_step=begun + 1 if begun else None)
        self._writer.add_text("config", "\n".join(f"    {k} = {v}" for k, v in config.items()))

    def write(self, row: Mapping[str, float], steps: int) -> None:
        for name, value in row.items():
            self._writer.add_scalar(name, value, steps)

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """A run of the project ``shoal``, the same when it goes on; the environment variables of Weights & Biases say
    where."""

    refused = r"^_"  # names that begin so are its own

    def __init__(self, path: Path, config: Mapping[str, Any], begun: int) -> None:
        wandb: Any = importlib.import_module("wandb")
        file = path / "wandb-run.txt"
        again = {"id": _read(file), "resume": "allow", "allow_val_change": True} if file.is_file() else {}
        self._run = wandb.init(project="shoal", name=path.name, config=dict(config), dir=str(path), **again)
        write_whole(file, self._run.id)

    def write(self, row: Mapping[str, float], steps: int) -> None:
        self._run.log(dict(row), step=steps)

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run of the experiment ``shoal``, the same when it goes on; ``MLFLOW_TRACKING_URI`` says where. MLflow never
    changes a parameter: the new value of one is a tag of its name. Of a batch with a name that it refuses it takes
    nothing."""

    refused = r"[^-/\w. ]|^/|\.\.|(?<=/)/|/$"

    def __init__(self, path: Path, config: Mapping[str, Any], begun: int) -> None:
        self._mlflow: Any = importlib.import_module("mlflow")
        self._mlflow.set_experiment("shoal")
        file = path / "mlflow-run.txt"
        which = {"run_id": _read(file)} if file.is_file() else {"run_name": path.name}
        run = self._mlflow.start_run(**which)
        write_whole(file, run.info.run_id)
        values = {name: str(value)[:250] for name, value in config.items()}
        begun_with, shown = run.data.params, {**run.data.params, **run.data.tags}
        self._mlflow.log_params({name: value for name, value in values.items() if name not in begun_with})
        self._mlflow.set_tags({name: value for name, value in values.items() if shown.get(name, value) != value})

    def write(self, row: Mapping[str, float], steps: int) -> None:
        self._mlflow.log_metrics(dict(row), step=steps, synchronous=False)

    def close(self) -> None:
        self._mlflow.end_run()


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8").strip()


LOGGERS: dict[str, tuple[str, type[TensorBoard] | type[Wandb] | type[MLflow]]] = {  # name -> (package, class)
    "tensorboard": ("tensorboard", TensorBoard), "wandb": ("wandb", Wandb), "mlflow": ("mlflow", MLflow),
}  # fmt: skip


def check(names: Sequence[str]) -> None:
    """UsageError unless every back end is known and installed."""
    for name in names:
        if name not in LOGGERS:
            near = get_close_matches(name, LOGGERS, n=1, cutoff=0.4)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise UsageError(f"log expects {', '.join(LOGGERS)}, found '{name}'{hint}")
        try:
            importlib.import_module(LOGGERS[name][0])
        except ImportError:
            raise UsageError(f"log {name} needs a package: pip install 'shoal[{name}]'") from None


class Logger:
    """An observer of the run that hands its rows to one back end. ``begun``: the step at which the run goes on."""

    def __init__(self, name: str, path: Path, config: Mapping[str, Any], begun: int) -> None:
        self.name = name
        self._names: dict[str, str] = {}  # metric -> what the back end calls it
        self._back: BackEnd | None = None
        try:
            self._back = LOGGERS[name][1](path, config, begun)
        except Exception as error:  # noqa: BLE001 - whatever a back end raises: the training does not depend on it
            self._give_up(error)

    def update(self, snapshot: Snapshot) -> None:
        if self._back is None:
            return
        row = training_row(snapshot) | performance_row(snapshot)
        found = {name: float(value) for name, value in row.items() if name != "row" and finite(value) is not None}
        numbers = {self._named(name): value for name, value in found.items()}
        try:
            self._back.write(numbers, snapshot.steps)
        except Exception as error:  # noqa: BLE001
            self._give_up(error)

    def _named(self, name: str) -> str:
        """What the back end calls a metric: the same name each time, and another for each metric."""
        if name not in self._names:
            assert self._back is not None
            taken = re.sub(self._back.refused, "_", name, flags=re.ASCII) or "_"
            while taken in self._names.values():
                taken += "_"
            self._names[name] = taken
        return self._names[name]

    def close(self) -> None:
        back, self._back = self._back, None
        try:
            if back is not None:
                back.close()
        except Exception as error:  # noqa: BLE001
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._back = None
        log.warning("%s failed, nothing more is logged to it: %s: %s", self.name, type(error).__name__, error)
