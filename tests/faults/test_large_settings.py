"""Texts and lists without measure in the config.json of a run: no command prints them whole or takes long over them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_large_tables import original  # noqa: F401  # a fixture

from shoal.api import UsageError
from shoal.cli.main import main
from shoal.records.damage import read_json
from shoal.records.run_dir import RunDirectory
from shoal.run.changes import MOST_RESUMED, note

pytestmark = pytest.mark.timeout(110)
LONG = "x" * 300_000
COMMANDS = (
    "eval {} --episodes 1", "eval {} --episodes 1 --json", "resume {} --steps 90 --quiet", "plot {} --out plot.svg",
    "compare {}", "compare {} --json", "runs .", "runs . --json", "report {} --out report.html",
    "profile {} --seconds 0.01 --quiet", "export {} --out policy.pt", "watch --terminal {}",
)  # fmt: skip


def nested(name: str, key: str) -> Callable[[dict[str, Any]], None]:
    def change(facts: dict[str, Any]) -> None:
        facts[name] = {**facts[name], key: LONG}

    return change


CHANGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "system": lambda facts: facts.update(system=LONG),
    "preset": lambda facts: facts.update(preset=LONG),
    "git": lambda facts: facts.update(git=LONG),
    "name": lambda facts: facts.update({LONG: 1}),
    "env": nested("config", "env"),
    "device": nested("config", "device"),
    "origin": nested("origins", "env"),
    "platform": nested("hardware", "platform"),
    "version": nested("versions", "torch"),
    "backend": nested("environment", "backend"),
    "name of a setting": nested("config", LONG),
    "hidden": lambda facts: facts["config"].update(hidden=[4] * 10_001),
    "changes": lambda facts: facts.update(
        changes=[{"steps": n, "settings": {"learning_rate": [0.1, 0.2]}} for n in range(10_001)]
    ),
    "settings": lambda facts: facts.update(
        changes=[{"steps": 1, "settings": {f"s{n}": [0.1, 0.2] for n in range(10_001)}}]
    ),
    "many changes": lambda facts: facts.update(
        changes=[{"steps": n, "settings": {"learning_rate": [0.1, 0.2]}} for n in range(1_000)]
    ),
    "was": lambda facts: facts.update(changes=[{"steps": 1, "settings": {"hidden": [[4] * 10_001, LONG]}}]),
}


@pytest.mark.parametrize("what", CHANGES)
def test_it_is_not_printed_whole(
    what: str,
    original: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    facts = json.loads((original / "config.json").read_text())
    CHANGES[what](facts)
    for n, words in enumerate(COMMANDS):
        run = shutil.copytree(original, tmp_path / f"run{n}")
        (run / "config.json").write_text(json.dumps(facts))
        code = main([word.format(run) for word in words.split()])
        out, err = capsys.readouterr()
        assert code in (0, 1, 2) and "Traceback" not in err, (words, err[:2_000])
        assert len(err) < 2_000 and len(out) < 40_000, (words, len(err), len(out), err[:300], out[:300])
        assert code == 0 or err.count("\n") <= 3, (words, err)
        for made in tmp_path.glob("*.*"):
            assert made.stat().st_size < 8_000_000, (words, made.name)
            made.unlink()
        shutil.rmtree(run)


def test_a_report_shows_the_latest_changes(
    original: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = shutil.copytree(original, tmp_path / "run")
    facts = json.loads((run / "config.json").read_text())
    settings = {f"s{n}": [0, 1] for n in range(30)}
    facts["changes"] = [{"steps": 2, "settings": settings}] * 3 + [{"steps": 3, "settings": settings}] * 20
    (run / "config.json").write_text(json.dumps(facts))
    assert main(["eval", str(run), "--episodes", "1"]) == 0
    out = capsys.readouterr().out
    assert "3 earlier changes, which config.json lists" in out and " at 2 steps" not in out
    assert out.count(" at 3 steps") == out.count("s19 0 -> 1, 10 more settings at 3 steps") == 20


def test_a_run_that_is_resumed_again_and_again_keeps_its_latest_changes() -> None:
    facts: dict[str, Any] = {"config": {"a": 0}, "origins": {}}
    for n in range(MOST_RESUMED + 5):
        note(facts, {"a": n}, {"a": n + 1}, steps=n)
    assert facts["resumed"] == list(range(5, MOST_RESUMED + 5))
    assert [change["steps"] for change in facts["changes"]] == facts["resumed"]
    assert facts["changes"][-1]["settings"] == {"a": [MOST_RESUMED + 4, MOST_RESUMED + 5]}


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A list of settings is bounded where it is given, other things where the run begins."""
    words = ["train", "dqn", "--env", "CartPole-v1", "--preset", "none", "--run-dir", str(tmp_path / "r")]
    (tmp_path / "deep.toml").write_text(f"hidden = {[4] * 1_001}")
    assert main([*words, "--config", str(tmp_path / "deep.toml")]) == 2
    assert "at most 1,000 values are taken, not 1,001" in capsys.readouterr().err
    many = dict.fromkeys(map(str, range(10_001)))
    for n, facts in enumerate(({"a": LONG}, {"a": [{"b": LONG}]}, {LONG: 1}, {"a": [1] * 10_001}, {"a": many})):
        directory = RunDirectory(tmp_path / f"new{n}")
        with pytest.raises(UsageError, match=r"kept in config.json: .*at most (4,096|10,000) are taken"):
            directory.describe({"config": facts}, {}, {})
        directory.close()
    directory = RunDirectory(tmp_path / "newer")
    directory.describe({"config": {"a": "x" * 4_096, "b": [1] * 10_000, "env_kwargs": {"model": LONG}}}, {}, {})
    directory.close()
    assert read_json(tmp_path / "newer" / "config.json", "run")["config"]["env_kwargs"]["model"] == LONG
