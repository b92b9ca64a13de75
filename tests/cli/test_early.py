"""What is refused before torch is imported, so that a slip of the hand costs no seconds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cli.early import check
from shoal.errors import UsageError
from shoal.records.run_lock import RunLock

RUN, FOLDER = "no such run directory: 'nope'", "no such directory: 'nope'"
POLICY, CONFIG = "unknown policy 'nope' of the zoo (`shoal zoo` lists all)", "no such config file: 'nope'"
SYSTEM, FILE = "unknown system 'dqm'; did you mean 'dqn'? (`shoal systems` lists all)", "no such system file: 'nope.py'"
COSTS, INITIAL = "there is no file of costs 'nope'", "no such run or policy to begin with: 'nope'"
CODE = "import sys; from shoal.cli.main import main; print(main(sys.argv[1:]), 'torch' in sys.modules)"


@pytest.mark.parametrize(
    "words, told",
    [("eval nope --episodes 1", RUN), ("runs --json nope", FOLDER), ("zoo nope", POLICY),
     ("train dqn --config nope", CONFIG), ("train dqm --env CartPole-v1", SYSTEM), ("train nope.py", FILE),
     ("plan dqn --costs nope", COSTS), ("train dqn --init-from nope", INITIAL)],
)  # fmt: skip
def test_a_path_that_is_not_there_is_refused_before_torch_is_imported(tmp_path: Path, words: str, told: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", CODE, *words.split()], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert found.stdout == "2 False\n" and found.stderr == f"shoal: {told}\n"


@pytest.mark.parametrize(
    "words, told",
    [
        ("export nope --to onnx", RUN), ("resume nope", RUN), ("plot . nope", RUN), ("compare nope", RUN),
        ("record nope --out set", RUN), ("runs nope", FOLDER), ("report nope", FOLDER),
        ("report --out x.html nope", FOLDER), ("watch --port 1 . nope", FOLDER), ("watch --port=1 nope", FOLDER),
        ("watch --open nope", FOLDER), ("eval zoo:nope", POLICY), ("record zoo:nope --out set", POLICY),
        ("train dqn --init-from=nope", INITIAL), ("train dqn --init-from zoo:nope", POLICY),
        ("train pbt --of dqm", SYSTEM), ("plan dqn --machine nope", "there is no machine file 'nope'"),
        *((f"{command} dqm", SYSTEM) for command in ("config", "draw", "tune", "plan")),
        ("zoo zoo:nope", POLICY), ("config dqn --config=nope", CONFIG), ("train dqn --steps 1 --config nope", CONFIG),
        *((f"{command} dqn --config nope", CONFIG) for command in ("config", "draw", "tune", "plan", "profile")),
    ],
)  # fmt: skip
def test_a_path_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        check(words.split()[0], words.split()[1:])
    assert str(refused.value) == told


@pytest.mark.parametrize(
    "words",
    ["record keyboard --out set", "record mine:player --out set", "eval . nope", "watch --port nope .",
     "plot . --out nope", "eval . --config nope", "train dqn --config", "train dqn --configs nope"],
)  # fmt: skip
def test_what_names_no_path_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """A policy that is no run, what follows what a command takes, a flag's value, a flag that a command lacks."""
    monkeypatch.chdir(tmp_path)
    check(words.split()[0], words.split()[1:])


@pytest.mark.parametrize(
    "words", ["resume r", "train dqn --run-dir r", "train dqn --run_dir r", "train --run-dir=r dqn"]
)
def test_a_run_that_goes_on_is_not_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r").mkdir()
    lock = RunLock(tmp_path / "r")
    try:
        with pytest.raises(UsageError, match=rf"'r' is still going on \(process {os.getpid()}\)"):
            check(words.split()[0], words.split()[1:])
    finally:
        lock.release()
    check(words.split()[0], words.split()[1:])
