"""Tables of a run whose lines have no end: files with holes, of a million columns, of a cell of megabytes."""

from __future__ import annotations

import os
import re
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

import shoal
from shoal.cli.main import main
from shoal.untrusted import MAX_LINE
from shoal.watch.folder import Folder
from shoal.watch.series import Table

TABLES = ("metrics.csv", "performance.csv", "episodes.csv", "evaluations.csv", "metrics.jsonl")


def hole(file: Path) -> None:
    """3 GiB at the end that no disk holds."""
    os.truncate(file, 3 << 30)


def hole_within(file: Path) -> None:
    with open(file, "r+b") as opened:
        opened.seek(3 << 30)
        opened.write(b"\n9,9\n")


def columns(file: Path) -> None:
    file.write_text(",".join(f"c{i}" for i in range(1_000_000)) + "\n" + "1," * 999_999 + "1\n")


def cell(file: Path) -> None:
    header = file.read_text().splitlines()[0]
    file.write_text(f"{header}\n{'9' * 5 * MAX_LINE}\n")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("original") / "run"
    shoal.train(
        "impala", run_dir=path, steps=60, env="CartPole-v1", runtime="serial", preset="none", actors=1, envs=2,
        hidden=(4,), unroll=5, evaluation=shoal.Evaluation(every=30, episodes=1), seed=1,
    )  # fmt: skip
    return path


@pytest.mark.parametrize("change", [hole, hole_within, columns, cell])
@pytest.mark.parametrize("words", ["resume {} --steps 90 --quiet", "plot {} --out plot.png", "compare {}"])
def test_a_line_without_end_is_not_read(
    change: Callable[[Path], None], words: str, original: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for name in TABLES:
        run = tmp_path / name.replace(".", "-")
        shutil.copytree(original, run)
        change(run / name)
        tracemalloc.start()
        code = main([word.format(run) for word in words.split()])
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        err = capsys.readouterr().err
        assert code in (0, 1, 2) and "Traceback" not in err and err.count("\n") <= 3 and len(err) < 2_000, err
        assert most < 200 * 2**20, (name, most)
        shutil.rmtree(run)


@pytest.mark.parametrize("file, name", [("metrics.csv", "steps"), ("performance.csv", "seconds"), ("report.json", "")])
@pytest.mark.parametrize("number", ["1e300", "inf", "-1"])
def test_no_curve_has_steps_or_seconds_that_cannot_be(
    file: str, name: str, number: str, original: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Hundreds of digits would be printed, or a warning of NumPy's."""
    run = Path(shutil.copytree(original, tmp_path / "run"))
    if name:
        header, *rows = [line.split(",") for line in (run / file).read_text().splitlines()]
        rows[-1][header.index(name)] = number
        (run / file).write_text("".join(",".join(row) + "\n" for row in [header, *rows]))
    else:
        edited = re.sub(
            r'"seconds": [^,\n]*', f'"seconds": {number.replace("inf", "Infinity")}', (run / file).read_text()
        )
        (run / file).write_text(edited)
    capfd.readouterr()
    assert main(["compare", str(run)]) == 1
    told = capfd.readouterr().err
    assert f"{file} is damaged" in told and told.count("\n") == 1


def test_a_report_looks_at_a_few_lines_without_end_alone(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file with holes, in which every sample is one."""
    run = Path(shutil.copytree(original, tmp_path / "run"))
    hole(run / "metrics.jsonl")
    table = Table(Folder(run), "metrics.jsonl")
    read: list[bytes] = []
    monkeypatch.setattr("shoal.watch.series.row_of", lambda line: read.append(line))
    table.refresh()
    assert len(read) < 20
