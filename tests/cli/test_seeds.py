"""Several seeds in one command, and what commands say for programs that read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.analysis.compare import config_table
from shoal.analysis.directories import groups
from shoal.cli.main import main
from shoal.terminal import OFF_TERMINAL

WORDS = [
    "--env", "CartPole-v1", "--runtime", "serial", "--actors", "1", "--envs", "2", "--unroll", "8", "--hidden", "8",
    "--preset", "none", "--steps", "1200",
]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "several"
    assert main(["train", "impala", *WORDS, "--seeds", "3", "5", "--run-dir", str(folder), "--quiet"]) == 0
    return folder


def told(capsys: Any, *words: object) -> Any:
    capsys.readouterr()
    assert main([*map(str, words)]) == 0
    return json.loads(capsys.readouterr().out)


def test_each_seed_is_a_run_and_they_are_compared(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["train", "impala", *WORDS, "--seeds", "0,1", "--run-dir", str(tmp_path / "r")]) == 0
    lines = capsys.readouterr().out.splitlines()
    seeds = [shoal.Run.open(tmp_path / "r" / f"seed-{n}") for n in (0, 1)]
    assert [json.loads((run.path / "config.json").read_text())["seed"] for run in seeds] == [0, 1]
    table = lines.index(next(line for line in lines if line.startswith("group ")))
    assert lines[table + 1].split()[:2] == ["impala", "2"]
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= OFF_TERMINAL


@pytest.mark.parametrize(
    "words, says",
    [("--seeds 1 1", "different integers, found 1 1"), ("--seeds 1 --seed 2", "--seed and --seeds exclude each other"),
     ("--seeds one", "--seeds expects")],
)  # fmt: skip
def test_seeds_that_are_none_are_refused(
    words: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "impala", *WORDS, "--run-dir", str(tmp_path / "r"), *words.split()]) == 2
    assert says in capsys.readouterr().err and not (tmp_path / "r").exists()


def test_no_seed_begins_where_one_would_overwrite_a_run(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "impala", *WORDS, "--seeds", "4", "5", "--run-dir", str(trained)]) == 2
    assert "seed-5" in capsys.readouterr().err and not (trained / "seed-4").exists()


def test_reports_are_json_where_a_program_asks(trained: Path, tmp_path: Path, capsys: Any) -> None:
    one, two = trained / "seed-3", trained / "seed-5"
    report = json.loads((one / "report.json").read_text())
    ended = told(capsys, "train", "impala", *WORDS, "--seed", 3, "--run-dir", tmp_path / "r", "--json")
    assert ended["steps"] == report["steps"] and ended["episode_return"] == report["episode_return"]
    assert told(capsys, "resume", tmp_path / "r", "--steps", 1_500, "--json")["steps"] >= 1_500
    played = told(capsys, "eval", one, "--episodes", 3, "--json")
    assert played["returns"] == list(shoal.evaluate(one, episodes=3)) and played["mean"] == sum(played["returns"]) / 3
    (compared,) = told(capsys, "compare", one, two, "--json")
    assert compared["runs"] == [str(one), str(two)] and compared["final"][0] == pytest.approx(report["episode_return"])
    fields = told(capsys, "config", "impala", "--unroll", 8, "--json")["fields"]
    assert fields["unroll"] == {"value": 8, "from": "flag"} and fields["gamma"]["from"] in ("default", "preset classic")
    for command in ("systems", "envs", "runs"):
        assert told(capsys, command, *([trained] if command == "runs" else []), "--json")


def test_fields_are_told_that_differ_within_a_system(trained: Path, tmp_path: Path) -> None:
    """Those of different systems are different in nearly all."""
    for name, system, more in (("a", "impala", ["--gamma", "0.9"]), ("b", "a3c", [])):
        assert main(["train", system, *WORDS, *more, "--run-dir", str(tmp_path / name), "--quiet"]) == 0
    same, other = trained / "seed-3", tmp_path / "b"
    assert config_table(groups([same, other]))[1] == []
    heads, rows = config_table(groups([same, tmp_path / "a", other]))
    assert [row[0] for row in rows] == ["gamma"] and len(heads) == 4
