"""Run tests in a fork of this process, on a copy of the repository."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from finder import ROOT, Fault

PATIENCE = 300.0  # seconds, of a fault for which everybody waits
MEMORY = 8 << 30  # bytes of address space, of a fault that allocates without end


class Recorder:
    """A plugin of pytest: how much time of the processor each test takes, and which functions of Shoal it calls."""

    def __init__(self, folder: Path, slowest: float) -> None:
        self.prefix, self.slowest = str(folder / "shoal") + "/", slowest
        self.tests: dict[str, dict[str, Any]] = {}
        self.calls: set[str] = set()

    def profile(self, frame: Any, event: str, arg: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(self.prefix):
            self.calls.add(f"shoal/{frame.f_code.co_filename[len(self.prefix) :]}::{frame.f_code.co_name}")

    def pytest_runtest_protocol(self, item: Any) -> None:
        self.calls = set()
        self.begun = time.process_time()
        sys.setprofile(self.profile)
        threading.setprofile(self.profile)
        signal.signal(signal.SIGPROF, _too_slow)
        signal.setitimer(signal.ITIMER_PROF, 3 * self.slowest)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "setup":
            self.setup, self.failed = set(self.calls), not report.passed
        elif report.when == "call":
            self.failed |= not report.passed
        else:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
            seconds = time.process_time() - self.begun
            self.tests[report.nodeid] = dict(
                seconds=seconds, calls=sorted(self.calls), setup=sorted(self.setup),
                good=not self.failed and report.passed and seconds <= self.slowest,
            )  # fmt: skip


def _too_slow(*_: object) -> None:
    import pytest

    pytest.skip("longer than --slowest")


class Chosen:
    """A plugin of pytest: the chosen tests alone, in their order; which of them failed first."""

    def __init__(self, ids: list[str]) -> None:
        self.order = {name: i for i, name in enumerate(ids)}
        self.failed = ""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.order), key=lambda i: self.order[i.nodeid])

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


def run_pytest(
    folder: Path, files: list[str], plugin: Any, done: Callable[[Any, int], Any], log: Path, seconds: float
) -> int:
    """Start pytest on ``files`` of a copy of the repository in a fork of this process; returns its process id. What
    ``done(plugin, exit code)`` returns is written to ``log`` with the ending .json. seconds: of the processor, at most.
    """
    log.with_suffix(".json").unlink(missing_ok=True)
    if pid := os.fork():
        return pid
    code = 70
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5))
        code = _in_fork(folder, files, plugin, done, log)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:  # nothing of the parent's is cleaned up here
        sys.stdout.flush()
        os._exit(code)


def _in_fork(folder: Path, files: list[str], plugin: Any, done: Callable[[Any, int], Any], log: Path) -> int:
    os.setsid()
    os.chdir(folder)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    sys.path[:] = [str(folder), *(p for p in sys.path if p not in ("", str(ROOT), str(Path(__file__).parent)))]
    os.environ["PYTHONPATH"] = str(folder)
    import pytest

    options = [
        "-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider", "-o", "timeout=900", "--tb=short",
        "-W", "ignore:Module already imported", "-c", str(folder / "pyproject.toml"), "--rootdir", str(folder),
    ]  # fmt: skip
    if isinstance(plugin, Recorder):
        options.remove("-x")
    code = int(pytest.main([*options, *files], plugins=[plugin]))
    log.with_suffix(".json").write_text(json.dumps(done(plugin, code)))
    return code


class Slot:
    """A copy of the repository in which one fault is tried at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder / "repository", folder / "log"
        for name in ("shoal", "tests", "docs", "examples", "scripts"):
            shutil.copytree(ROOT / name, self.folder / name)
        for path in ROOT.iterdir():
            if path.is_file():
                shutil.copy2(path, self.folder)
        self.pid, self.count, self.begun, self.until = 0, 0, 0.0, 0.0
        self.fault: Fault | None = None
        self.dependents: set[str] = set()
        self.kept = folder / "kept"
        self.stamp = int(time.time()) - 10**8

    def start(
        self, fault: Fault, tests: list[str], seconds: float, dependents: set[str], control: bool = False
    ) -> None:
        """Begin to try a fault; control: the same without the fault."""
        self.fault, self.begun = fault, time.monotonic()
        self.until = self.begun + PATIENCE + 10 * seconds
        path = self.folder / fault.path
        self.kept.mkdir()
        shutil.copy2(path, self.kept / "source")
        for compiled in self._compiled(dependents):
            target = self.kept / str(compiled.relative_to(self.folder)).replace("/", "@")
            shutil.move(compiled, target)
        source = path.read_bytes()
        if not control:
            path.write_bytes(source[: fault.start] + fault.text.encode() + source[fault.end :])
        self.stamp += 2  # seconds: no compiled file of Python or Numba may be taken for that of another fault
        os.utime(path, (self.stamp, self.stamp))
        self.dependents = dependents
        files = list(dict.fromkeys(t.split("::")[0] for t in tests))
        self.count = len(tests)
        self.pid = run_pytest(self.folder, files, Chosen(tests), lambda plugin, code: plugin.failed, self.log, seconds)

    def record(self, file: str, slowest: float) -> dict[str, Any]:
        """What ``Recorder`` finds of each test of a file."""
        self.pid = run_pytest(
            self.folder, [file], Recorder(self.folder, slowest), lambda p, _: p.tests, self.log, 3600.0
        )
        os.waitpid(self.pid, 0)
        self.pid, path = 0, self.log.with_suffix(".json")
        return json.loads(path.read_text()) if path.exists() else {}

    def end(self) -> None:
        """End what still runs."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def poll(self) -> tuple[str, str] | None:
        """(what became of the fault, which test noticed it), once that is known."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        late = time.monotonic() > self.until
        if not pid and not late:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if not pid:
            os.waitpid(self.pid, 0)
        self.pid, path = 0, self.log.with_suffix(".json")
        test = json.loads(path.read_text()) if path.exists() else ""
        code = os.waitstatus_to_exitcode(status) if pid else None
        self._restore()
        if code is None:
            return "noticed", "takes too long"
        if code < 0 or not path.exists():
            return "noticed", f"ends with {code}"
        return {0: ("lives", ""), 1: ("noticed", test), 2: ("noticed", test), 5: ("lives", "")}[code]

    def _compiled(self, modules: set[str]) -> Iterator[Path]:
        """What Numba keeps of these files."""
        for module in modules:
            path = self.folder / module
            yield from (path.parent / "__pycache__").glob(f"{path.stem}.*.nb[ic]")

    def _restore(self) -> None:
        assert self.fault is not None
        for compiled in self._compiled(self.dependents):
            compiled.unlink()
        for path in self.kept.iterdir():
            if path.name == "source":
                shutil.copy2(path, self.folder / self.fault.path)
            else:
                shutil.move(path, self.folder / path.name.replace("@", "/"))
        shutil.rmtree(self.kept)
