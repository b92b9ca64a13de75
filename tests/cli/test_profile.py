"""shoal profile: a valid trace, a table that adds up, a bottleneck."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from shoal.cli import main as cli

SMALL = ["--preset", "none", "--actors", "2", "--envs", "2", "--unroll", "8", "--hidden", "8", "--quiet"]


def profiled(path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[list[dict[str, Any]], str]:
    assert cli.main(["profile", *words, "--run-dir", str(path), "--seconds", "60"]) == 0
    return json.loads((path / "trace.json").read_text())["traceEvents"], capsys.readouterr().out


def check(events: list[dict[str, Any]], shown: str, processes: set[str]) -> None:
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert set(names.values()) == processes
    spans = [e for e in events if e["ph"] == "X"]
    assert {"env", "inference", "learn", "publish"} <= {e["name"] for e in spans}
    for pid in names:
        mine = [(e["ts"], e["ts"] + e["dur"]) for e in spans if e["pid"] == pid]
        assert mine == sorted(mine) and mine[0][0] >= 0
        assert all(end <= start + 0.01 for (_, end), (start, _) in pairwise(mine)), "spans overlap"
    shares: dict[str, float] = {}
    role = ""
    for found in re.finditer(r"^(\w*) +([\w:]+) +([\d.]+)% ", shown, re.MULTILINE):
        role = found[1] or role
        shares[role] = shares.get(role, 0.0) + float(found[3])
    assert shares.keys() == {name.rpartition("-")[0] for name in processes}
    assert all(abs(total - 100) < 1 for total in shares.values()), shares
    assert re.search(r"^bottleneck: (actor|inference|replay|learner)-bound", shown, re.MULTILINE)


def test_of_a_system_and_again_of_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["impala", "--env", "CartPole-v1", "--steps", "4_000", *SMALL]
    events, shown = profiled(tmp_path / "a", capsys, *words)
    check(events, shown, {"actor-0", "actor-1", "learner-0"})
    events, shown = profiled(tmp_path / "b", capsys, str(tmp_path / "a"), "--runtime", "serial", "--quiet")
    check(events, shown, {"actor-0", "learner-0"})  # serial: the replicas of a role take turns in one line
    again = json.loads((tmp_path / "b" / "config.json").read_text())
    assert again["config"] == json.loads((tmp_path / "a" / "config.json").read_text())["config"]


def test_of_a_run_whose_preset_is_for_other_environments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A preset may hold what its environment ignores; settings that another version did not write have defaults."""
    few = "--batch 8 --min-replay 50 --replay 500 --actors 1 --envs 2 --unroll 8 --hidden 8 --steps 300 --quiet"
    words = ["train", "dqn", "--preset", "atari", "--env", "CartPole-v1", "--runtime", "serial", *few.split()]
    assert cli.main([*words, "--run-dir", str(tmp_path / "a")]) == 0
    file = tmp_path / "a" / "config.json"
    facts = json.loads(file.read_text())
    assert facts["config"]["noop_max"] and facts["config"].pop("double") is not None
    file.write_text(json.dumps(facts))
    capsys.readouterr()
    profiled(tmp_path / "b", capsys, str(tmp_path / "a"), "--quiet")
    again = json.loads((tmp_path / "b" / "config.json").read_text())
    assert again["preset"] == "atari" and again["origins"] == facts["origins"]


def test_a_name_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", "--seconds", "3"]) == 2
    assert "needs a run or a system" in capsys.readouterr().err
