"""Dependencies that are too old or missing are told in one sentence, before anything of them is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from shoal.dependencies import _number, unsuitable


def distribution(site: Path, name: str, version: str, *requires: str) -> None:
    """Metadata of an installed package, found before the real one's."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    (folder / "METADATA").write_text("\n".join(lines) + "\n")


def command(site: Path, *code: str) -> tuple[int, str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(Path(__file__).parents[1])])}
    done = subprocess.run([sys.executable, *code], env=env, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


OWN = "torch>=2.6", "numpy>=1.26", "gymnasium>=1.1", "tomli>=2; python_version < '3.11'", "ray>=99; extra == 'ray'"


def test_what_is_installed_here_suits() -> None:
    assert unsuitable() == ""


def test_an_old_gymnasium_is_told_with_who_holds_it(tmp_path: Path) -> None:
    distribution(tmp_path, "shoal", "0.1.0", *OWN)
    distribution(tmp_path, "gymnasium", "0.29.1", "numpy>=1.21")
    distribution(tmp_path, "flappy-bird-gymnasium", "0.4.0", "Gymnasium (<1.0,>=0.29)", "pygame")
    distribution(tmp_path, "harmless", "1.0", "gymnasium>=0.26", "gymnasium<1 ; extra == 'old'")
    expected = (
        "gymnasium 0.29.1 is installed, and Shoal needs 1.1 or newer: flappy-bird-gymnasium 0.4.0 asks for "
        "Gymnasium<1.0,>=0.29. An environment of its own (python -m venv) keeps them apart"
    )
    assert command(tmp_path, "-m", "shoal", "train", "dqn") == (2, f"shoal: {expected}\n")
    code, said = command(tmp_path, "-c", "import shoal; shoal.train('dqn')")
    assert code == 1 and said.strip().splitlines()[-1] == f"ImportError: {expected}"


def test_an_old_torch_that_nobody_holds_is_told_with_what_to_install(tmp_path: Path) -> None:
    distribution(tmp_path, "shoal", "0.1.0", *OWN)
    distribution(tmp_path, "torch", "2.5.1+cpu")
    told = "torch 2.5.1+cpu is installed, and Shoal needs 2.6 or newer: pip install 'torch>=2.6'"
    assert command(tmp_path, "-m", "shoal", "--help") == (2, f"shoal: {told}\n")


def test_a_missing_dependency_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "requires", lambda name: ["no-such-package>=3", "torch>=2"])
    told = "no-such-package is not installed, and Shoal needs 3 or newer: pip install 'no-such-package>=3'"
    assert unsuitable() == told


def test_versions_are_compared_as_numbers() -> None:
    assert _number("2.13.0+cpu") == (2, 13) > _number("2.6.0") == _number("2.6")
    assert _number("1.10") > _number("1.9.9") and _number("2.0.0rc1") == (2,)
