"""Output that nobody takes, modules that hide the library's, places where nothing can be written: one sentence at most,
never a traceback, and a run goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from trainings import ENVIRON, HERE, needs_namespaces

pytestmark = pytest.mark.timeout(110)
TRAIN = "train impala --env CartPole-v1 --preset none --actors 1 --envs 1 --unroll 2 --hidden 4 --steps 300"
SERIAL = f"{TRAIN} --runtime serial"


def bash(script: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a script in which ``shoal`` is the command, ``$python`` the interpreter and ``$package`` the package."""
    environ = {**ENVIRON, "python": sys.executable, "package": str(HERE.parents[1] / "shoal"), **environ}
    script = 'shoal() { "$python" -m shoal "$@"; }; export -f shoal; ' + script
    return subprocess.run(["bash", "-c", script], cwd=folder, env=environ, capture_output=True, text=True, check=False)


FULL = "shoal: cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize(
    "script, code, told",
    [
        ("shoal --help > /dev/full", 1, FULL),
        ("shoal --help >&-", 0, ""),
        ("shoal nonsense <&- 2>&-", 2, ""),
        ("shoal --help | head -1; exit ${PIPESTATUS[0]}", 0, ""),
        (f"shoal {SERIAL} --run-dir r <&- > /dev/full", 0, FULL),
    ],
)
def test_nobody_takes_the_output(tmp_path: Path, script: str, code: int, told: str) -> None:
    done = bash(script, tmp_path)
    assert (done.returncode, done.stderr) == (code, told)
    if "--run-dir" in script:
        assert json.loads((tmp_path / "r" / "report.json").read_text())["steps"] >= 300


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_processes_start_without_standard_streams(tmp_path: Path, closed: str) -> None:
    """In which a replica's log begins, and an environment may print."""
    done = bash(f"shoal {TRAIN} --run-dir r {closed}", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "r" / "report.json").read_text())["reason"] == "steps"


def test_a_script_trains_without_standard_streams(tmp_path: Path) -> None:
    small = "env='CartPole-v1', preset='none', actors=1, envs=1, unroll=2, hidden=(4,), steps=300, run_dir='r'"
    (tmp_path / "script.py").write_text(f"import shoal\nshoal.train('impala', {small})")
    done = bash('"$python" script.py <&- >&- 2>&-', tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "r" / "report.json").read_text())["reason"] == "steps"


@needs_namespaces
def test_neither_a_home_nor_the_package_can_be_written(tmp_path: Path) -> None:
    """Beside a ``random.py`` in the working directory, and with a pipe that ends: processes start, and the run ends."""
    (tmp_path / "random.py").write_text("raise SystemExit('this is not the library')")
    mount = 'mount --bind "$package" "$package" && mount -o remount,ro,bind "$package"'
    script = f"{mount} && shoal {TRAIN} --run-dir r | head -1"
    done = bash(f"unshare -rm bash -c '{script}; exit ${{PIPESTATUS[0]}}'", tmp_path, HOME="/proc/none")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "r" / "report.json").read_text())["reason"] == "steps"


@needs_namespaces
def test_a_disk_that_is_full_at_the_start_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    fill = "mount -t tmpfs -o size=64k none d && head -c 1M /dev/zero > d/filler 2> /dev/null"
    done = bash(f"unshare -rm bash -c '{fill}; shoal {SERIAL} --run-dir d/r; code=$?; ls d; exit $code'", tmp_path)
    assert done.returncode == 2 and done.stdout == "filler\n"
    assert done.stderr == "shoal: cannot create the run directory 'd/r': No space left on device\n"
