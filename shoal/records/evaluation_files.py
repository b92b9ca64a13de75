"""The evaluation files of a run: ``evaluations.csv``, the best parameters in ``best/``, and videos in ``videos/``."""

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
from shoal.records.atomic_write import write_atomic
from shoal.records.damage import read_json, reading
from shoal.records.metric_files import append_row
from shoal.records.tensor_files import index, save_tensors
from shoal.untrusted import bounded_lines, open_text

SCORES = ("mean", "std", "min", "max")
COLUMNS = ("steps", "episodes", *SCORES)
UNFINISHED = "unfinished"
FILE = "evaluations.csv"
BEST = "best"
VIDEOS = "videos"
DIGITS = 12  # digits of the steps in the name of a video


class EvaluationFiles:
    """Writes the evaluation files of the run directory ``path``; there must be only one writer at a time. ``channel``
    is the name of the policy's params channel.

    ``best/`` holds ``params-STEPS.safetensors`` and ``params.json``, which names that file, its steps, its version and
    its score (mean return). ``params.json`` is replaced last, so that a reader finds either the new set of parameters
    or the previous one.
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
        """Append one evaluation. Its parameters become the best unless earlier ones scored higher; of equal scores the
        latest is kept.

        info: means of the numbers in the environments' infos, one column each. unfinished: episodes that did not end
        within the limit of steps or time; the column exists only if there were any.
        """
        if not self.path.is_dir():
            return  # the run's supervisor reports that its directory is gone
        mean, std = float(np.mean(returns)), float(np.std(returns))
        scores = dict(mean=mean, std=std, min=min(returns), max=max(returns))
        own = (*COLUMNS, UNFINISHED)
        numbers = {name if name not in own else f"info/{name}": value for name, value in info.items()}
        shown = {name: f"{value:.8g}" for name, value in (scores | numbers).items()}
        cut = {UNFINISHED: str(unfinished)} if unfinished else {}
        append_row(self.path / FILE, {"steps": str(steps), "episodes": str(len(returns))} | shown | cut)
        best = self.best()
        if not math.isnan(mean) and (best is None or not mean < best):  # a score replaces NaN too
            self._keep(steps, version, mean, len(returns), params)

    def best(self) -> float | None:
        """Return the highest mean return so far, or None."""
        path = self.path / BEST / "params.json"
        if not path.is_file():
            return None
        facts = read_json(path, "best parameters")
        with reading(path):
            return float(facts["score"])

    def last(self) -> int | None:
        """Return the environment steps of the last evaluation, or None."""
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
            write_atomic(folder / "params.json", text, sync=True)
            for old in folder.glob("params-*.safetensors"):
                if old.name != name:
                    old.unlink()


def newest(run_dir: Path) -> dict[str, float]:
    """Return the last evaluation of a run by the columns of its file, without the environments' infos, or {} if there
    is none."""
    path = run_dir / FILE
    if not path.is_file():
        return {}
    with reading(path), open_text(path) as file:
        row: dict[str, str] = {}
        for row in csv.DictReader(bounded_lines(file)):  # noqa: B007 - only the last row is needed
            pass
        own = {name: float(row[name]) for name in (*COLUMNS, UNFINISHED) if row.get(name)}
        return {name: int(value) if name not in SCORES else value for name, value in own.items()}


def video(run_dir: Path, steps: int) -> Path:
    """Return the path for a video of the evaluation at ``steps``, and create its folder."""
    folder = run_dir / VIDEOS
    with held(folder, make=True):  # raises OSError for a link
        return folder / f"{steps:0{DIGITS}d}.mp4"


def forget_after(run_dir: Path, steps: int) -> None:
    """Remove evaluations later than the checkpoint that a run is resumed from, because the run repeats them."""
    with contextlib.suppress(FileNotFoundError), held(run_dir / VIDEOS) as folder:
        for film in folder.glob("*.mp4"):  # other files are the user's
            number = film.stem.removeprefix(".").removesuffix(".tmp")  # also matches unfinished videos
            if len(number) == DIGITS and number.isdecimal() and int(number) > steps:
                film.unlink()
    path = run_dir / FILE
    if path.is_file() and path.stat().st_size:  # a full disk may have left it empty
        with reading(path), open_text(path) as file:
            header, *rows = list(csv.reader(bounded_lines(file)))
            kept = [row for row in rows if len(row) == len(header) and int(row[0]) <= steps]
        text = io.StringIO()
        csv.writer(text).writerows([header, *kept])
        write_atomic(path, text.getvalue(), sync=True)
