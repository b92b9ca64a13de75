"""Starting replicas as processes: forkserver with everything heavy imported once.

Why forkserver: docs/decisions/start-method.md.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing as mp
import os
import shutil
import signal
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from multiprocessing import connection, forkserver, resource_tracker, util
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

import psutil

from shoal.beside import ignore_matplotlibrc
from shoal.errors import ShoalError, UsageError
from shoal.held import adopt, rules
from shoal.local import descriptors, signals
from shoal.paths import working_directory
from shoal.runtime.streams import open_standard

PRELOAD = ["shoal.local.preload"]
FOLDER = "SHOAL_SOCKET_FOLDER"  # tells the process that replicas are forked from what it removes at its end
NAMES = "shoal-"  # what the names of all processes begin with
_SERVER_OF: dict[int, int] = {}  # the process that replicas are forked from -> the one that started it
KILL_WAIT_SECONDS = 2.0  # seconds in which a killed process is gone, unless the kernel holds it
MAX_TEMP_PATH_BYTES = 60  # bytes of the folder of temporary files: an address has room for 107
_THREADING = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",  # read once, when the library loads: threads that spin take the actors' cores
}


class Process(Protocol):
    """What a supervisor asks of a replica's process, wherever that runs; as ``multiprocessing`` has it."""

    @property
    def pid(self) -> int | None: ...
    @property
    def exitcode(self) -> int | None: ...
    @property
    def sentinel(self) -> int: ...
    def is_alive(self) -> bool: ...
    def join(self) -> None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


def keep_freed_memory() -> None:
    """Let this process keep what its tensors free, instead of giving large blocks back and faulting them in again at
    the next update (glibc only). Costs no more than the largest amount ever in use at once."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-1, 2**30)  # M_TRIM_THRESHOLD
        mallopt(-3, 2**28)  # M_MMAP_THRESHOLD: larger blocks, such as a replay table's, are pages of their own as ever


def context() -> ForkServerContext:
    """The start method of every replica."""
    return mp.get_context("forkserver")


def require_children() -> None:
    """Raise UsageError in a process that may start none: a daemon, such as a worker of ``multiprocessing.Pool``."""
    if mp.current_process().daemon:
        raise UsageError(
            "this process is a daemon, as a worker of multiprocessing.Pool is, and may start no processes: give "
            "runtime='serial', or use multiprocessing.Process or concurrent.futures.ProcessPoolExecutor"
        )


def _forget_parents() -> None:
    """In a copy of a process by fork: the server that it started is the original's, and this one needs its own."""
    server: Any = forkserver._forkserver
    if server._forkserver_pid is None or _SERVER_OF.get(server._forkserver_pid) == os.getpid():
        return
    with contextlib.suppress(OSError):
        os.close(server._forkserver_alive_fd)
    server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None


def prepare() -> None:
    """Start the process that replicas are forked from; it imports torch while the caller goes on.

    May be called early (a command line does so while it builds the program). Libraries loaded there
    must not start threads of their own, hence the environment. Signals that end a run wait there for ever,
    and in each replica until it has its shield.
    """
    require_children()
    open_standard()
    _forget_parents()
    mp.set_forkserver_preload(PRELOAD)
    wanted = {**_THREADING, **_safe_path(), FOLDER: _socket_folder() if mp.parent_process() is None else ""}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        resource_tracker.ensure_running()  # shields itself, and releases what is held meanwhile
        with without_main(), signals.held(), descriptors.raised():
            forkserver.ensure_running()
        server: Any = forkserver._forkserver
        _SERVER_OF[server._forkserver_pid] = os.getpid()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def end(last: bool = False) -> None:
    """Kill whatever this process has started here: replicas, and the process that they are forked from, which may be
    importing for seconds more. Returns when they are gone, so that none outlives a command and holds what it held.
    Takes no lock: it may be called where a signal has interrupted anything. last: this process ends without finalizers.
    """
    replicas = [process for process in mp.active_children() if process.name.startswith(NAMES)]
    for process in replicas:
        kill(process)
    server: Any = forkserver._forkserver
    if server._forkserver_pid is not None:
        with contextlib.suppress(OSError):
            os.kill(server._forkserver_pid, signal.SIGKILL)
            os.waitpid(server._forkserver_pid, 0)
        server._forkserver_pid = None
    for process in replicas:
        connection.wait([process.sentinel], KILL_WAIT_SECONDS)
    tracker: Any = resource_tracker._resource_tracker
    if tracker._pid is not None and tracker._fd is not None:  # it ends when nobody can write to it
        with contextlib.suppress(OSError, psutil.Error):
            os.close(tracker._fd)
            psutil.Process(tracker._pid).wait(KILL_WAIT_SECONDS)
        tracker._fd = tracker._pid = None
    if last and (folder := mp.current_process()._config.get("tempdir")) is not None:  # type: ignore[attr-defined]
        shutil.rmtree(folder, ignore_errors=True)


def _socket_folder() -> str:
    """The folder of the socket by which replicas are asked for, which a process shares with those it started. The
    address of a socket must be short."""
    before = tempfile.tempdir
    if len(tempfile.gettempdir()) > MAX_TEMP_PATH_BYTES:
        tempfile.tempdir = "/tmp"
    try:
        return util.get_temp_dir()
    finally:
        tempfile.tempdir = before


def _safe_path() -> dict[str, str]:
    """No module of the working directory hides the library's (``random.py``), unless Shoal itself is there."""
    return {} if str(Path(__file__).parents[2]) == working_directory() else {"PYTHONSAFEPATH": "1"}


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Hide the user's ``__main__`` while children are started, so that they do not import it again.

    What roles need of it travels by value (cloudpickle). A script needs no ``__name__`` guard.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def start(target: Callable[..., None], args: tuple[object, ...], name: str) -> BaseProcess:
    """A started process, which follows links where this one does (``held.stay_below``). ShoalError if the system
    allows no further one."""
    working_directory()  # a process cannot be started from one that was removed
    process = context().Process(target=_begin, args=(rules(), target, args), name=name)
    try:
        with without_main():
            process.start()
    except EOFError:  # of the process that replicas are forked from, which ended because it could not fork
        raise ShoalError(
            f"{name.removeprefix('shoal-')} cannot be started: the system allows no further process "
            "(ulimit -u, the pids limit of the container, memory)"
        ) from None
    return process


def _begin(known: dict[str, bool], target: Callable[..., None], args: tuple[object, ...]) -> None:
    adopt(known)
    ignore_matplotlibrc()
    target(*args)


def kill(process: Process) -> None:
    """SIGKILL a replica and the helper processes of its group."""
    if process.pid is None:
        return
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        if process.is_alive():
            process.kill()


def describe_exit(exitcode: int | None) -> str:
    """Describe an exit code when there was no traceback."""
    if exitcode is not None and exitcode < 0:
        try:
            return f"killed by {signal.Signals(-exitcode).name}"
        except ValueError:
            return f"killed by signal {-exitcode}"
    return f"the process exited by itself with code {exitcode} before the run ended"
