"""``summary.md``: what a person reads of a run, as it goes on and when it has ended or failed."""

from __future__ import annotations

import logging
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.metering.aggregator import Snapshot
from shoal.records.markdown import NAME, command
from shoal.records.summary import Summary
from shoal.watch.files import RunFiles

SMALL: dict[str, Any] = dict(
    env="CartPole-v1", runtime="serial", actors=1, envs=2, unroll=8, hidden=(8,), checkpoint_every=0.0, quiet=True
)  # fmt: skip


def test_a_run_that_ended_says_what_it_was_and_came_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/shoal", "train", "impala", "--env-kwargs", "{a: 1}"])
    how = shoal.Evaluation(every=10_000, episodes=3)
    run = shoal.train("impala", run_dir=tmp_path / "r", steps=2_000, seed=7, evaluation=how, **SMALL)
    text, report, path = (run.path / NAME).read_text(), run.report, shlex.quote(str(run.path))
    assert report is not None
    for part in (
        "# impala on CartPole-v1, seed 7", "ended: steps (written ", "`shoal train impala --env-kwargs '{a: 1}'`",
        "preset | classic (CartPole-v1 is of the kind 'classic'", "| machine | ", "torch ", "training episodes: ",
        f"{report.episode_return:.4g} [", f"| {report.steps:,} | 3 | ", f"{report.steps:,} steps and ", "Bottleneck: ",
        "fewer than 100: more steps", f"shoal resume {path}", f"shoal eval {path} --best",
    ):  # fmt: skip
        assert part in text, part


def test_it_is_current_while_the_run_goes_on(tmp_path: Path) -> None:
    path, seen = tmp_path / "r", []

    def look(row: Any) -> bool:
        if (path / NAME).is_file():
            seen.append((path / NAME).read_text())
        return bool(seen)

    shoal.train("impala", run_dir=path, steps=10**6, observers=look, **SMALL)
    assert "\nrunning (written" in seen[0] and "steps and" in seen[0]


def test_a_run_that_failed_says_why(tmp_path: Path) -> None:
    def fails(row: Any) -> None:
        raise ValueError("the disk is on fire")

    with pytest.raises(shoal.ShoalError):
        shoal.train("impala", run_dir=tmp_path / "r", steps=2_000, observers=fails, **SMALL)
    assert "\nfailed: the observer 'test_a_run_that_failed" in (tmp_path / "r" / NAME).read_text()


def test_what_a_file_says_is_text_in_the_summary(tmp_path: Path) -> None:
    preset = r"\u001b[2J<script>x</script>\n# H"
    text = '{"format": 2, "system": "x", "seed": 0, "preset": "PRESET", "config": {"env": "\\u0007E"}}'.replace(
        "PRESET", preset
    )
    (tmp_path / "config.json").write_text(text)
    Summary(tmp_path, "asked for").write("running")
    found = (tmp_path / NAME).read_text()
    assert r"\x1b[2J&lt;script>x&lt;/script>\n# H" in found and r"\x07E" in found
    assert not {"\x1b", "\x07", "<"} & set(found) and "\n# H" not in found


def test_what_a_file_says_is_no_link_in_the_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = "[x](javascript:alert(1)) [x][y]\\n[y]: javascript:alert(1)"
    text = '{"format": 2, "system": "EVIL", "seed": "EVIL", "git": "EVIL", "config": {"env": "EVIL"}}'
    (tmp_path / "config.json").write_text(text.replace("EVIL", evil))
    monkeypatch.setattr(sys, "argv", ["shoal", "train", "impala", "``|`[a](b)", "it's"])
    summary = Summary(tmp_path, "asked for")
    summary.note(evil)
    summary.finish(None, RuntimeError(evil))
    found = (tmp_path / NAME).read_text()
    assert not re.search(r"\][(\[:]", found.replace(r"\[", "")) and r"]\(javascript" in found
    assert "\n[y]" not in found
    (line,) = [line for line in found.splitlines() if line.startswith("| command |")]
    assert line.startswith("| command | ``` shoal train") and line.endswith(" ``` |")
    assert RunFiles(tmp_path).command().startswith("shoal train impala '``")


def test_warnings_are_counted_until_the_end(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"format": 2, "system": "x", "seed": 0, "config": {"env": "E"}}')
    summary, log = Summary(tmp_path, "asked for"), logging.getLogger("shoal.runtime")
    for _ in range(3):
        log.warning("slow %s\nTraceback", "disk")
    summary.finish(None)
    log.warning("too late")
    summary.update(Snapshot(1, 2.0, 10, 1, 5.0, 0.5, 1.0, 1.0, 1, new_episodes=[(1.0, 1)]))
    text = (tmp_path / NAME).read_text()
    assert "- slow disk (3 times)" in text and "too late" not in text
    assert "10 steps and 1 update in 2 s: 5 steps/s" in text


@pytest.mark.parametrize(
    "argv, shown",
    [(["/x/shoal", "plot", "a b"], "shoal plot 'a b'"), (["/x/shoal/__main__.py", "runs"], "shoal runs"),
     (["train.py", "--fast"], "python train.py --fast"), (["-c"], "python"), ([""], "python")],
)  # fmt: skip
def test_the_command_is_told_as_it_would_be_typed(argv: list[str], shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    assert command() == shown
