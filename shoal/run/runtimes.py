"""The runtimes by name. Each is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable

from shoal.api import UsageError
from shoal.runtime.launch import Runtime
from shoal.settings.flags import unknown


def _local(hang_timeout: float, address: str | None) -> Runtime:
    from shoal.local import processes

    processes.prepare()
    from shoal.local.runtime import LocalRuntime

    return LocalRuntime(hang_timeout=hang_timeout)


def _serial(hang_timeout: float, address: str | None) -> Runtime:
    """One process has nobody to watch it: there is no hang timeout."""
    from shoal.serial.runtime import SerialRuntime

    return SerialRuntime()


def _ray(hang_timeout: float, address: str | None) -> Runtime:
    from shoal.ray_runtime.runtime import RayRuntime

    return RayRuntime(address, hang_timeout=hang_timeout)


RUNTIMES: dict[str, Callable[[float, str | None], Runtime]] = {"local": _local, "serial": _serial, "ray": _ray}


def make_runtime(name: str, hang_timeout: float, address: str | None = None) -> Runtime:
    """The runtime called ``name``; ``hang_timeout`` and ``address`` as in ``RunOptions``. UsageError with the nearest
    valid name."""
    check_runtime(name, address)
    return RUNTIMES[name](hang_timeout, address)


def check_runtime(name: str, address: str | None = None) -> None:
    """UsageError, with the nearest valid name, for a runtime that there is not, or that has no ``address``."""
    if name not in RUNTIMES:
        raise unknown("runtime", name, tuple(RUNTIMES))
    if address is not None and name != "ray":
        raise UsageError(f"the runtime '{name}' runs on this machine: an address ('{address}') needs --runtime ray")
