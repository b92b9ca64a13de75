"""The runtimes by name, Shoal's and the user's. Each is imported on first use."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from shoal import own_code
from shoal.api import ShoalError, UsageError
from shoal.envs import looking
from shoal.local.apart import Call, apart, call_here
from shoal.program import Program
from shoal.registry import Registry, is_own
from shoal.runtime.launch import Launch, Report, Runtime
from shoal.torchrun.place import place
from shoal.untrusted import excerpt


def _local(hang_timeout: float, address: str | None) -> Runtime:
    from shoal.local import processes

    processes.prepare()
    from shoal.local.runtime import LocalRuntime

    return LocalRuntime(hang_timeout=hang_timeout)


def _serial(hang_timeout: float, address: str | None) -> Runtime:
    """Return the serial runtime. It has no hang timeout, as no other process watches it."""
    from shoal.serial.runtime import SerialRuntime

    return SerialRuntime()


def _ray(hang_timeout: float, address: str | None) -> Runtime:
    from shoal.ray_runtime.runtime import RayRuntime

    return RayRuntime(address, hang_timeout=hang_timeout)


def _torchrun(hang_timeout: float, address: str | None) -> Runtime:
    from shoal.torchrun.runtime import TorchrunRuntime

    return TorchrunRuntime(hang_timeout=hang_timeout)


@dataclass(frozen=True)
class Kind:
    """Properties of a runtime that are known before it is made.

    make: makes it from the hang timeout and the address; in_process: whether environments are stepped in the process
    that was started; deterministic: whether runs repeat exactly, and replay their environments when resumed;
    takes_address: whether it runs on a cluster with an address.
    """

    make: Callable[[float, str | None], Runtime]
    in_process: bool = False
    deterministic: bool = False
    takes_address: bool = False


def _own(cls: Any) -> Kind:
    """Return the properties of the user's class: its attributes ``in_process`` and ``deterministic``, and whether its
    constructor has the parameters ``hang_timeout`` and ``address``."""
    takes = inspect.signature(cls).parameters

    def make(hang_timeout: float, address: str | None) -> Runtime:
        given = {"hang_timeout": hang_timeout, "address": address}
        with own_code.failing(f"the runtime '{cls.__qualname__}' cannot be made"):
            made: Runtime = cls(**{name: value for name, value in given.items() if name in takes})
        return made

    in_process, deterministic = (bool(getattr(cls, fact, False)) for fact in ("in_process", "deterministic"))
    return Kind(make, in_process, deterministic, takes_address="address" in takes)


RUNTIMES = Registry(
    "runtime",
    {
        "local": Kind(_local),
        "serial": Kind(_serial, in_process=True, deterministic=True),
        "ray": Kind(_ray, takes_address=True),
        "torchrun": Kind(_torchrun, in_process=True),
    },
    methods=("check", "launch"),
    wrap=_own,
)  # fmt: skip


def meant(name: str) -> str:
    """Return the runtime that ``name`` means in this process. A process of torchrun is one rank of several and never
    starts a whole run. Raises UsageError for a runtime that would."""
    if place() is None:
        return name
    RUNTIMES.check(name)
    if name not in ("local", "torchrun"):
        raise UsageError(f"torchrun starts every rank itself: --runtime {name} expects to be started without it")
    return "torchrun"


def environment_call(runtime: str) -> Call:
    """Return the function that calls constructors of environments under this runtime: in this process or in a
    subprocess."""
    return call_here if RUNTIMES.find(runtime).in_process else apart


def is_deterministic(runtime: str) -> bool:
    """Return True if runs repeat exactly under this runtime."""
    return RUNTIMES.find(runtime).deterministic


def looking_under(runtime: str) -> AbstractContextManager[None]:
    """Return a context in which environments are inspected as before a run under this runtime. If the runtime steps
    them in other processes, their steps are timed there."""
    return looking(environment_call(runtime), timing=not RUNTIMES.find(runtime).in_process)


def make_runtime(name: str, hang_timeout: float, address: str | None = None) -> Runtime:
    """Return the runtime called ``name``. hang_timeout, address: as in ``RunOptions``. Raises UsageError with the
    nearest valid name."""
    check_runtime(name, address)
    kind = RUNTIMES.find(name)
    if address is not None and not kind.takes_address:
        raise _no_address(name, address)
    return kind.make(hang_timeout, address)


def launched(name: str, runtime: Runtime, program: Program, launch: Launch) -> Report:
    """Run ``program`` with the ``runtime`` called ``name`` and return the report. Raises ShoalError if a user's runtime
    fails or returns no report."""
    if not is_own(name):
        return runtime.launch(program, launch)
    try:
        report: Any = runtime.launch(program, launch)
    except (ShoalError, OSError, MemoryError):
        raise
    except Exception as error:
        said = f"raised {type(error).__name__} in launch: {own_code.told(error)}"
        raise ShoalError(f"the runtime '{name}' {said}") from error
    if not isinstance(report, Report):
        found = "nothing" if report is None else type(report).__name__
        raise ShoalError(f"the runtime '{name}' returned {found} from launch: expected the run's report")
    return report


def runtime_to_resume(name: str) -> str:
    """Return the runtime that resumes a run of ``name`` by default: ranks can continue without torchrun."""
    return "local" if name == "torchrun" else name


def check_runtime(name: str, address: str | None = None) -> None:
    """Raise UsageError, with the nearest valid name, for an unknown runtime or one that takes no ``address``. A user's
    class is not imported."""
    RUNTIMES.check(name)
    if address is not None and not is_own(name) and not RUNTIMES.find(name).takes_address:
        raise _no_address(name, address)


def _no_address(name: str, address: str) -> UsageError:
    return UsageError(
        f"the runtime '{name}' runs on this machine: an address ('{excerpt(address)}') needs --runtime ray"
    )
