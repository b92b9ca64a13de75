"""Takes away what Linux on x86 has and macOS on Apple silicon has not. Python imports it at its start, in every process
of a run, where this folder is on PYTHONPATH: sealed memory, affinity, futexes, /proc, and stores that are seen in their
order."""

import io
import os
import platform
import sys
from typing import Any

for name in ("memfd_create", "sched_getaffinity", "sched_setaffinity"):
    if hasattr(os, name):
        delattr(os, name)
platform.machine = lambda: "arm64"


def hidden(path: Any) -> bool:
    """Whether a path is below /proc and it is not psutil that asks, which asks the system otherwise there."""
    asks = str(sys._getframe(2).f_globals.get("__name__"))
    return (
        isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith("/proc") and not asks.startswith("psutil")
    )


def without_proc(function: Any) -> Any:
    def call(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
        if hidden(path):
            raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
        return function(path, *args, **kwargs)

    return call


exists = os.path.exists
io.open = without_proc(io.open)
os.listdir = without_proc(os.listdir)
os.path.exists = lambda path: not hidden(path) and exists(path)
