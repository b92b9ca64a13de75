"""The evaluation files of a run: ``evaluations.csv``, the best parameters in ``best/``, and films in ``videos/``."""

from __future__ import annotations

import contextlib
import csv
import io
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from shoal.api import NO_NUMBERS, Tensors
from shoal.held import held
from shoal.records.damage import read_json, reading
from shoal.records.metric_files import append_row
from shoal.records.param_files import index
from shoal.records.tensor_files import save_tensors
from shoal.records.whole_files import write_whole
from shoal.untrusted import bounded_lines, open_text

SCORES = ("mean", "std", "min", "max")
COLUMNS = ("steps", "episodes", *SCORES)
UNFINISHED = "unfinished"
FILE = "evaluations.csv"
BEST = "best"
VIDEOS = "videos"
DIGITS = 12  # of the steps in the name of a film


class EvaluationFiles:
    """Writes to the run directory ``path``; one writer at a time. ``channel`` is the one of the policy's parameters.

    ``best/`` holds ``params-STEPS.safetensors`` and ``params.json``, which names that file, its steps, its version
    and its score (mean return), and is replaced last: a reader finds one whole set of parameters, or the one before.
    """

    def __init__(self, path: Path, channel: str) -> None:
        self.path, self.channel = path, channel

    def add(
        self,
        steps: int,
        version: int,
        returns: list[float],
        params: Tensors,
        info: Mapping[str, float] = NO_NUMBERS,
        unfinished: int = 0,
    ) -> None:
        """Append one evaluation; its parameters become the best unless earlier ones scored higher (of equals the
        later ones are kept). ``info``: means of the numbers in the infos of the environments, a column each.
        unfinished: episodes that did not end in the steps or the time that they had, a column if there are any."""
        if not self.path.is_dir():
            return  # who watches over the run says that its directory is gone
        mean, std = float(np.mean(returns)), float(np.std(returns))
        scores = dict(mean=mean, std=std, min=min(returns), max=max(returns))
        own = (*COLUMNS, UNFINISHED)
        numbers = {name if name not in own else f"info/{name}": value for name, value in info.items()}
        shown = {name: f"{value:.8g}" for name, value in (scores | numbers).items()}
        cut = {UNFINISHED: str(unfinished)} if unfinished else {}
        append_row(self.path / FILE, {"steps": str(steps), "episodes": str(len(returns))} | shown | cut)
        best = self.best()
        if not math.isnan(mean) and (best is None or not mean < best):  # also after one that was NaN
            self._keep(steps, version, mean, len(returns), params)

    def best(self) -> float | None:
        """The highest mean return so far."""
        path = self.path / BEST / "params.json"
        if not path.is_file():
            return None
        facts = read_json(path, "best parameters")
        with reading(path):
            return float(facts["score"])

    def last(self) -> int | None:
        """The environment steps of the last evaluation."""
        if not (self.path / FILE).is_file():
            return None
        with reading(self.path / FILE), open_text(self.path / FILE) as file:
            return max((int(row["steps"]) for row in csv.DictReader(bounded_lines(file))), default=None)

    def _keep(self, steps: int, version: int, score: float, episodes: int, params: Tensors) -> None:
        name = f"params-{steps}.safetensors"
        facts = {"steps": steps, "updates": version, "score": score, "episodes": episodes}
        text = index(facts, {self.channel: name}, {self.channel: params})
        with held(self.path / BEST, make=True) as folder:
            save_tensors(params, folder / name)
            write_whole(folder / "params.json", text, sync=True)
            for old in folder.glob("params-*.safetensors"):
                if old.name != name:
                    old.unlink()


def newest(run_dir: Path) -> dict[str, float]:
    """Return the last evaluation of a run by the columns of its file, without the infos of environments; {} where there
    is none."""
    path = run_dir / FILE
    if not path.is_file():
        return {}
    with reading(path), open_text(path) as file:
        row: dict[str, str] = {}
        for row in csv.DictReader(bounded_lines(file)):  # noqa: B007 - the last one is wanted
            pass
        own = {name: float(row[name]) for name in (*COLUMNS, UNFINISHED) if row.get(name)}
        return {name: int(value) if name not in SCORES else value for name, value in own.items()}


def video(run_dir: Path, steps: int) -> Path:
    """Return where the film of the evaluation at ``steps`` belongs, in a directory that is there."""
    folder = run_dir / VIDEOS
    with held(folder, make=True):  # OSError for a link
        return folder / f"{steps:0{DIGITS}d}.mp4"


def forget_after(run_dir: Path, steps: int) -> None:
    """Remove the evaluations after the checkpoint that a run is resumed from, because it evaluates there again."""
    with contextlib.suppress(FileNotFoundError), held(run_dir / VIDEOS) as folder:
        for film in folder.glob("*.mp4"):  # what else is there is the user's
            number = film.stem.removeprefix(".").removesuffix(".tmp")  # of one that was not finished, too
            if len(number) == DIGITS and number.isdecimal() and int(number) > steps:
                film.unlink()
    path = run_dir / FILE
    if path.is_file() and path.stat().st_size:  # a disk that was full leaves an empty one
        with reading(path), open_text(path) as file:
            header, *rows = list(csv.reader(bounded_lines(file)))
            kept = [row for row in rows if len(row) == len(header) and int(row[0]) <= steps]
        text = io.StringIO()
        csv.writer(text).writerows([header, *kept])
        write_whole(path, text.getvalue(), sync=True)
