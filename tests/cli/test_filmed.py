"""A run that films its evaluations: the pictures, one file for each, and what comes of them when it goes on."""

from __future__ import annotations

import contextlib
import csv
import stat
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import shoal
from shoal.api import Episode, ShoalError, UsageError
from shoal.policy.video import filming, record
from shoal.records.evaluation_files import EvaluationFiles, forget_after, video
from shoal.records.param_files import load_params
from shoal.roles.evaluator import EvaluatorRole
from shoal.run import changes

from .conftest import Shoal
from .test_policy import ODD, untrained

ENV = f"{ODD}:matrix"  # five steps an episode, each 40 brighter than the one before, 64 pixels wide and high
SMALL: dict[str, Any] = dict(
    env=ENV, runtime="serial", preset="none", steps=600, actors=1, hidden=(8,), unroll=8, envs=4, device="cpu"
)
HOW = shoal.Evaluation(every=200, episodes=2, video=True)


@pytest.fixture
def ffmpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of this name that writes the raw frames which it is given to the file of its last argument."""
    program = tmp_path / "bin" / "ffmpeg"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nfor file; do :; done\nexec cat > "$file"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return program


def brightness(file: Path) -> list[int]:
    """Of each frame, which is of one colour."""
    frames = np.frombuffer(file.read_bytes(), np.uint8).reshape(-1, 320 * 320 * 3)
    assert (frames == frames[:, :1]).all()
    return [int(n) for n in frames[:, 0]]


def evaluated(run: Path) -> list[str]:
    """Names of the films that belong to the evaluations of a run."""
    with open(run / "evaluations.csv", newline="", encoding="utf-8") as file:
        return [f"{int(row['steps']):012d}.mp4" for row in csv.DictReader(file)]


def films(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "videos").iterdir())


@pytest.mark.usefixtures("ffmpeg")
def test_every_evaluation_of_a_serial_run_is_filmed_and_the_training_is_the_same(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    shoal.train("impala", run_dir=a, evaluation=HOW, **SMALL)
    shoal.train("impala", run_dir=b, evaluation=shoal.Evaluation(every=200, episodes=2), **SMALL)
    assert films(a) == evaluated(a) and len(films(a)) == 3
    assert all(brightness(a / "videos" / name) == [0, 40, 80, 120, 160, 200] for name in films(a))
    assert any(row.get("time/evaluator/film", 0.0) > 0 for row in shoal.read_curve(a))
    assert evaluated(a) == evaluated(b) and not (b / "videos").exists()
    (_, one), (_, other) = load_params(a), load_params(b)
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.usefixtures("ffmpeg")
def test_a_local_run_films_what_it_ends_with_and_stops_when_it_goes_on(tmp_path: Path, shoal: Shoal) -> None:
    words = "--runtime local --preset none --actors 1 --hidden 8 --unroll 8 --envs 4 --device cpu --quiet"
    more = "--steps 2000 --run-dir r --eval-every 500 --eval-episodes 1 --eval-video"
    code, _, err = shoal("train", "impala", "--env", ENV, *words.split(), *more.split())
    assert code == 0, err
    made = films(Path("r"))
    assert evaluated(Path("r"))[-1] in made and set(made) <= {*evaluated(Path("r"))}, "one may be cut short"
    assert brightness(Path("r/videos") / made[-1]) == [0, 40, 80, 120, 160, 200]
    code, _, err = shoal("resume", "r", "--steps", "3000", "--quiet", "--no-eval-video")
    assert code == 0, err
    assert films(Path("r")) == made and len(evaluated(Path("r"))) > len(made)


@pytest.mark.usefixtures("ffmpeg")
def test_a_film_that_is_cut_short_leaves_nothing(tmp_path: Path) -> None:
    policy = untrained("impala", ENV, hidden=(8,))
    pictures = filming(policy.fresh_agent, policy.cfg, tmp_path / "v.mp4", 0, True)
    for _ in range(3):
        next(pictures)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [".v.tmp.mp4"]
    pictures.close()  # type: ignore[attr-defined]
    assert not [path for path in tmp_path.iterdir() if path.is_file()]


def test_ffmpegs_own_words_are_told(tmp_path: Path, ffmpeg: Path) -> None:
    """Whatever part of the pictures it had taken when it ended."""
    policy = untrained("impala", ENV, hidden=(8,))
    for taken in (100, 300_000, 612_000, 615_000):
        ffmpeg.write_text(f"#!/bin/sh\nhead -c {taken} > /dev/null\necho no room left >&2\nexit 1\n")
        with pytest.raises(ShoalError, match=r"ffmpeg could not write '.*': no room left"):
            record(policy, tmp_path / "v.mp4")
        assert not [path for path in tmp_path.iterdir() if path.is_file()]


def test_an_interrupt_cuts_a_film_short(tmp_path: Path) -> None:
    """In ``serial``, where the evaluation and its film are one step of the run."""
    closed: list[bool] = []

    def endless(*_: Any) -> Any:
        try:
            while True:
                yield "picture"
                interrupted.append(True)
        finally:
            closed.append(True)

    interrupted: list[bool] = []
    agent, env = Mock(), Mock(num_envs=1)
    env.step.return_value = Mock(
        terminated=np.array([True]), truncated=np.array([False]), valid=np.array([True]), episodes=[Episode(1.0, 1)]
    )
    env.spec.autoreset = "same_step"
    ctx = Mock(seed=0, steps=lambda: 10, interrupted=lambda: len(interrupted) > 3)
    ctx.metrics.phase = lambda name: contextlib.nullcontext()
    params = Mock(latest=lambda: (1, {}))
    files = EvaluationFiles(tmp_path, "params")
    role = EvaluatorRole(ctx, env, agent, files, params, every=5, episodes=1, whole=True, film=endless)
    role.step()
    assert files.last() == 10 and len(interrupted) == 4 and not role.unfinished
    role.close()
    assert closed == [True]


def test_what_cannot_be_filmed_is_told_before_the_run(
    tmp_path: Path, ffmpeg: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="cannot be filmed"):
        shoal.train("impala", run_dir=tmp_path / "r", evaluation=HOW, **{**SMALL, "env": f"{ODD}:tuples"})
    ffmpeg.unlink()
    monkeypatch.setenv("PATH", str(ffmpeg.parent))
    monkeypatch.setitem(__import__("sys").modules, "imageio_ffmpeg", None)
    with pytest.raises(UsageError, match="a video needs ffmpeg"):
        shoal.train("impala", run_dir=tmp_path / "r", evaluation=HOW, **SMALL)
    assert not (tmp_path / "r").exists()


def test_films_behind_the_checkpoint_go(tmp_path: Path) -> None:
    for steps in (5, 20, 100):
        video(tmp_path, steps).touch()
    (tmp_path / "videos" / ".000000000100.tmp.mp4").touch()  # of an evaluator that was killed
    for name in ("best.mp4", "100.mp4"):  # the user's own
        (tmp_path / "videos" / name).touch()
    forget_after(tmp_path, 20)
    assert films(tmp_path) == ["000000000005.mp4", "000000000020.mp4", "100.mp4", "best.mp4"]


def test_a_run_of_before_there_were_films_has_not_changed() -> None:
    facts = {"evaluation": {"every": 5, "episodes": 1, "sampled": False}, "runtime": "serial"}
    assert changes.evaluation(facts, shoal.Evaluation(every=5, episodes=1), flags=False) == {}


@pytest.mark.usefixtures("ffmpeg")
def test_a_resumed_run_keeps_filming(tmp_path: Path) -> None:
    a = tmp_path / "a"
    shoal.train("impala", run_dir=a, evaluation=HOW, **{**SMALL, "steps": 300})
    shoal.resume(a, steps=600)
    assert films(a) == evaluated(a) and len(films(a)) >= 3
