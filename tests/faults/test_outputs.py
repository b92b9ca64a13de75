"""Files that the user names: a disk that is full leaves what was there before, and the sentence names the file."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.api import ShoalError
from shoal.cli.main import main
from shoal.records.atomic_write import write_output

PBT = ("train", "pbt", "--of", "impala", "--env", "CartPole-v1", "--preset", "none", "--hidden", "4", "--steps", "60",
       "--interval", "30", "--population", "2", "--slots", "1", "--mutate", "learning_rate", "--quiet")  # fmt: skip


@pytest.fixture
def full() -> Iterator[None]:
    """No file of more than 100 bytes can be written."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, before)


def test_what_was_there_before_is_kept(tmp_path: Path, full: None) -> None:
    (kept := tmp_path / "report.html").write_text("before")
    with pytest.raises(ShoalError, match=r"^cannot write '.*report\.html': File too large$"):
        write_output(kept, "x" * 5_000)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"] and kept.read_text() == "before"
    write_output(Path(os.devnull), "x" * 5_000)


@pytest.mark.parametrize("words", [("draw", "impala", "--env", "CartPole-v1", "--output"), (*PBT, "--run-dir")])
def test_a_command_leaves_nothing_of_a_file_or_directory_that_does_not_fit(
    words: tuple[str, ...], tmp_path: Path, full: None, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([*words, str(tmp_path / "new.svg")])
    told = capsys.readouterr().err
    assert code in (1, 2) and told.count("\n") == 1 and "new.svg" in told, told
    assert list(tmp_path.iterdir()) == []
