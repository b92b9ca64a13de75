"""The runtimes by name. Each is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable

from shoal.runtime.launch import Runtime
from shoal.settings.flags import unknown


def _local(hang_timeout: float) -> Runtime:
    from shoal.local import processes

    processes.prepare()
    from shoal.local.runtime import LocalRuntime

    return LocalRuntime(hang_timeout=hang_timeout)


def _serial(hang_timeout: float) -> Runtime:
    """One process has nobody to watch it: there is no hang timeout."""
    from shoal.serial.runtime import SerialRuntime

    return SerialRuntime()


RUNTIMES: dict[str, Callable[[float], Runtime]] = {"local": _local, "serial": _serial}


def make_runtime(name: str, hang_timeout: float) -> Runtime:
    """The runtime called ``name``; ``hang_timeout`` as in ``RunOptions``. UsageError with the nearest valid name."""
    check_runtime(name)
    return RUNTIMES[name](hang_timeout)


def check_runtime(name: str) -> None:
    """UsageError, with the nearest valid name, for a runtime that there is not."""
    if name not in RUNTIMES:
        raise unknown("runtime", name, tuple(RUNTIMES))
