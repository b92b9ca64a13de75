"""What is refused before torch is imported, so that a slip of the hand costs no seconds."""

import subprocess
import sys
from pathlib import Path

import pytest

RUN, FOLDER = "no such run directory: 'nope'", "no such directory: 'nope'"
CODE = "import sys; from shoal.cli.main import main; print(main(sys.argv[1:]), 'torch' in sys.modules)"


@pytest.mark.parametrize(
    "words, told",
    [
        ("eval nope --episodes 1", RUN), ("export nope --to onnx", RUN), ("resume nope", RUN), ("plot . nope", RUN),
        ("compare nope", RUN), ("record nope --out set", RUN), ("runs nope", FOLDER), ("runs --json nope", FOLDER),
        ("report nope", FOLDER), ("report --out x.html nope", FOLDER), ("watch --port 1 . nope", FOLDER),
        ("zoo nope", "unknown policy 'nope' of the zoo (`shoal zoo` lists all)"),
        ("eval zoo:nope", "unknown policy 'nope' of the zoo (`shoal zoo` lists all)"),
        ("train dqn --config nope", "no such config file: 'nope'"),
        ("config dqn --config=nope", "no such config file: 'nope'"),
    ],
)  # fmt: skip
def test_a_path_that_is_not_there_is_refused_before_torch_is_imported(tmp_path: Path, words: str, told: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", CODE, *words.split()], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert found.stdout == "2 False\n" and found.stderr == f"shoal: {told}\n"
