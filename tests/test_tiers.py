"""The two tiers of tests: what the short one leaves out exists, and the scripts ask for the tier that they name."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from tiers import LONG, is_long

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("path", LONG)
def test_a_name_in_the_long_tier_is_that_of_a_test(path: str) -> None:
    """A test that is renamed would otherwise be of the short tier, unnoticed."""
    text = (ROOT / "tests" / path).read_text(encoding="utf-8")
    for part in LONG[path]:
        assert re.search(rf"def test_\w*{part.partition('[')[0].removeprefix('test_')}", text), part


def test_a_test_is_long_by_its_file_and_its_name() -> None:
    assert is_long("systems/test_learning.py", "test_learns[dqn-toy:corridor-1]")
    assert not is_long("faults/test_kills.py", "test_a_killed_learner_ends_the_run_and_is_named")
    assert not is_long("elsewhere.py", "test_a_crash_loop_ends_soon_and_says_why_once")


@pytest.mark.parametrize(
    "given, tools, asked",
    [
        ((), ["ruff check", "ruff format", "mypy"], []),
        (("-k", "impala"), ["ruff check", "ruff format", "mypy"], ["-k", "impala"]),
        (("--all", "-x"), ["ruff check", "ruff format", "mypy"], ["-m", "", "-x"]),
        (("--long", "-x"), [], ["-m", "long", "-x"]),
    ],
)
def test_check_runs_the_tools_and_the_tier_that_is_asked_for(
    given: tuple[str, ...], tools: list[str], asked: list[str], tmp_path: Path
) -> None:
    fake, told = tmp_path / "python", tmp_path / "told"
    fake.write_text(f'#!/bin/sh\nprintf "%s\\037" "$@" >> {told}; echo >> {told}\n')
    fake.chmod(0o755)
    environ = {**os.environ, "SHOAL_CHECK_PYTHON": str(fake)}
    subprocess.run([ROOT / "scripts" / "check", *given], env=environ, check=True)
    *checks, tests = [line.split("\037")[:-1] for line in told.read_text().splitlines()]
    assert [" ".join(words[1:]).split(" --")[0].removesuffix(" .") for words in checks] == tools
    assert tests[:6] == ["-m", "pytest", "-n", "4", "--dist", "worksteal"] and tests[6:] == asked
