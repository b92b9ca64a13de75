"""The runtimes by name. Each is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from shoal.api import UsageError
from shoal.envs import looking
from shoal.local.apart import Call, apart, call_here
from shoal.runtime.launch import Runtime
from shoal.settings.flags import unknown
from shoal.torchrun.place import place


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


def _torchrun(hang_timeout: float, address: str | None) -> Runtime:
    from shoal.torchrun.runtime import TorchrunRuntime

    return TorchrunRuntime(hang_timeout=hang_timeout)


RUNTIMES: dict[str, Callable[[float, str | None], Runtime]] = {
    "local": _local, "serial": _serial, "ray": _ray, "torchrun": _torchrun,
}  # fmt: skip
HERE = ("serial", "torchrun")  # those in which environments are stepped in the process that was started


def meant(name: str) -> str:
    """The runtime that ``name`` means in this process: a process of torchrun's is one rank of several, and never starts
    the whole run by itself. UsageError for one that would."""
    if place() is None:
        return name
    if name in RUNTIMES and name not in ("local", "torchrun"):
        raise UsageError(f"torchrun starts every rank itself: --runtime {name} expects to be started without it")
    return "torchrun" if name in RUNTIMES else name


def environment_call(runtime: str) -> Call:
    """Return the caller of functions that make environments under this runtime: in this process or in one of its
    own."""
    return call_here if runtime in HERE else apart


def looking_under(runtime: str) -> AbstractContextManager[None]:
    """Within this context, environments are looked at as before a run under this runtime: where it steps them in other
    processes, their steps are timed there."""
    return looking(environment_call(runtime), timing=runtime not in HERE)


def make_runtime(name: str, hang_timeout: float, address: str | None = None) -> Runtime:
    """The runtime called ``name``; ``hang_timeout`` and ``address`` as in ``RunOptions``. UsageError with the nearest
    valid name."""
    check_runtime(name, address)
    return RUNTIMES[name](hang_timeout, address)


def runtime_to_resume(name: str) -> str:
    """The runtime with which a run of that one goes on by itself: ranks need no torchrun."""
    return "local" if name == "torchrun" else name


def check_runtime(name: str, address: str | None = None) -> None:
    """UsageError, with the nearest valid name, for a runtime that there is not, or that has no ``address``."""
    if name not in RUNTIMES:
        raise unknown("runtime", name, tuple(RUNTIMES))
    if address is not None and name != "ray":
        raise UsageError(f"the runtime '{name}' runs on this machine: an address ('{address}') needs --runtime ray")
