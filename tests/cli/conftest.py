"""The fake system's path, and a command line whose output is captured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.cli.main import main

FAKE = str(Path(__file__).with_name("fake_system.py"))
Outcome = tuple[int, str, str]
Shoal = Callable[..., Outcome]


@pytest.fixture
def fake() -> str:
    return FAKE


@pytest.fixture
def shoal(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shoal:
    """Runs ``shoal ARGS`` in an empty directory: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> Outcome:
        code = main(args)
        out, err = capsys.readouterr()
        return code, out, err

    return run
