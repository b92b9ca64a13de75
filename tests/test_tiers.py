"""The tiers of tests: what the short one leaves out exists, and the scripts ask for the tier that they name."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from tiers import LONG, SLOW, tier

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("tests, path", [(tests, path) for tests in (SLOW, LONG) for path in tests])
def test_a_name_in_a_tier_is_that_of_a_test(tests: dict[str, tuple[str, ...]], path: str) -> None:
    """A test that is renamed would otherwise be of the short tier, unnoticed."""
    text = (ROOT / "tests" / path).read_text(encoding="utf-8")
    for part in tests[path]:
        assert re.search(rf"def test_\w*{part.partition('[')[0].removeprefix('test_')}", text), part


def test_a_tests_file_and_its_name_say_its_tier() -> None:
    assert tier("systems/test_learning.py", "test_learns[dqn-toy:corridor-1]") == "long"
    assert tier("systems/test_resume.py", "test_serial_half_and_half_is_the_whole_bit_for_bit[a3c]") == "slow"
    assert tier("faults/test_kills.py", "test_a_killed_learner_ends_the_run_and_is_named") == "short"
    assert tier("elsewhere.py", "test_a_crash_loop_ends_soon_and_says_why_once") == "short"


TOOLS = ["-m ruff check .", "-m ruff format --check .", "-m mypy", "-m mypy --config-file scripts/mypy-scripts.ini"]


@pytest.mark.parametrize(
    "given, tools, asked",
    [
        ((), TOOLS, []),
        (("-k", "impala"), TOOLS, ["-k", "impala"]),
        (("--all", "-x"), TOOLS, ["-m", "", "-x"]),
        (("--slow", "-x"), [], ["-m", "slow", "-x"]),
        (("--long", "-x"), [], ["-m", "long", "-x"]),
    ],
)
def test_check_runs_the_tools_and_the_tier_that_is_asked_for(
    given: tuple[str, ...], tools: list[str], asked: list[str], tmp_path: Path
) -> None:
    *checks, tests = [words for words, _ in checked(given, tmp_path)]
    assert sorted(checks) == sorted(tools)
    assert tests == " ".join(["-m pytest -n 4 --dist worksteal", *asked])


def test_check_compiles_a_new_checkout_once_before_the_workers_would(tmp_path: Path) -> None:
    *checks, tests = [words for words, _ in checked((), tmp_path, new=True)]
    kernels = next(words for words in checks if " -k " in words)
    assert sorted(checks) == sorted([*TOOLS, "-m pytest --collect-only -q", kernels]) and "-n 4" in tests
    files = [word for word in kernels.split() if word.startswith("tests/")]
    asked = re.findall(r"\w+", kernels.partition(" -k ")[2])[::2]
    paths = [p for name in files for p in ([ROOT / name] if name.endswith(".py") else (ROOT / name).glob("test_*.py"))]
    text = "".join(path.read_text() for path in paths)
    assert paths and all(re.search(rf"def test_\w*{part}", text) for part in asked), asked


def test_check_keeps_what_has_been_compiled_whatever_the_environment_says(tmp_path: Path) -> None:
    assert {unwritten for _, unwritten in checked((), tmp_path, PYTHONDONTWRITEBYTECODE="1")} == {""}


def test_check_fails_where_types_are_wrong(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        checked((), tmp_path, FAILS="-m mypy")
    assert not any("-n 4" in line for line in (tmp_path / "told").read_text().splitlines())


def checked(given: tuple[str, ...], folder: Path, new: bool = False, **environ: str) -> list[tuple[str, str]]:
    """The commands that ``scripts/check`` gives to Python, in a new checkout or one whose tests have been run, and
    what each of them finds in ``PYTHONDONTWRITEBYTECODE``."""
    (folder / "scripts").mkdir()
    check = shutil.copy(ROOT / "scripts" / "check", folder / "scripts")
    if not new:
        (folder / "tests" / "__pycache__").mkdir(parents=True)
    fake, told = folder / "python", folder / "told"
    note = f'echo "$*|$PYTHONDONTWRITEBYTECODE" >> {shlex.quote(str(told))}'
    fake.write_text(f'#!/bin/sh\n{note}\n[ "$*" != "$FAILS" ]\n')
    fake.chmod(0o755)
    environ = {**os.environ, "SHOAL_CHECK_PYTHON": str(fake), **environ}
    subprocess.run([check, *given], env=environ, check=True)
    return [(line.partition("|")[0], line.partition("|")[2]) for line in told.read_text().splitlines()]
