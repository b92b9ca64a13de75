"""The connection to Ray: a cluster that was named, or an instance of one's own on this machine."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import logging
import math
import os
import re
import secrets
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shoal.api import UsageError
from shoal.extras import pip_install
from shoal.types import Values

OLDEST = (2, 52)  # older ones run code for whoever reaches their ports (CVE-2025-62593), and know no tokens
OBJECTS = 200 * 2**20  # bytes of the object store of an own instance, where nothing crosses between nodes
LOOPBACK = ("127.0.0.1", "localhost", "::1")
GOODBYE = 5.0  # seconds that Ray has to let go of a run
ATTEMPTS = 3  # to be served as a client (ray://)


def check_installed() -> None:
    """UsageError where Ray is missing or too old."""
    try:
        found = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        raise UsageError(
            f"the runtime 'ray' needs the package ray, which is not installed: {pip_install('ray')}"
        ) from None
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise UsageError(f"the runtime 'ray' needs ray >= {wanted}, found {found}: {pip_install('ray')}")


def connected() -> bool:
    """Return whether this program is connected to some Ray already. Does not import it."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _reach(address: str) -> contextlib.AbstractContextManager[None]:
    """UsageError for what is no address, or where nobody listens: Ray itself would ask again for minutes. To be
    entered while Ray connects."""
    if address == "auto":
        return contextlib.nullcontext()
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not re.fullmatch("[0-9]{1,5}", port):
        raise UsageError(
            f"expected the address of a Ray cluster (auto, HOST:PORT or ray://HOST:PORT), found '{address}'"
        )
    try:
        socket.create_connection((host, int(port)), timeout=10.0).close()
    except (OSError, OverflowError, TypeError, ValueError) as error:  # also of what cannot be a name
        raise UsageError(f"cannot connect to the Ray cluster '{address}': {error}") from None
    if host not in LOOPBACK or address.startswith("ray://"):
        return contextlib.nullcontext()
    from ray.util import get_node_ip_address

    try:  # Ray looks for what is on this machine at the address that other machines know
        socket.create_connection((get_node_ip_address(), int(port)), timeout=10.0).close()
    except OSError:
        return _on_loopback()
    return contextlib.nullcontext()


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Let Ray take 127.0.0.1 for the address of this machine."""
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _why(error: Exception) -> str:
    """One line of what Ray says where a cluster listens that it cannot join."""
    told = str(error).strip()
    if "Traceback" in told:  # of the other side: what counts is at its end
        told = told.splitlines()[-1]
    said = " ".join(told.split())[:300] or type(error).__name__
    if not isinstance(error, ConnectionError):
        return said
    with_token = "with a token" if os.environ.get("RAY_AUTH_MODE") == "token" else "without a token"
    return (
        f"{said}, though something listens there: this was tried {with_token} (RAY_AUTH_MODE, RAY_AUTH_TOKEN or "
        "RAY_AUTH_TOKEN_PATH must be those of the cluster)"
    )


def _join(address: str) -> None:
    """Connect. Ray's proxy for clients fails at random to start what serves one (gRPC and fork): again, then."""
    import ray

    for attempt in range(ATTEMPTS):
        try:
            with _own_handlers():
                ray.init(address, **_QUIET)
            return
        except ConnectionError as error:
            if "Starting Ray client server failed" not in str(error) or attempt == ATTEMPTS - 1:
                raise


def within(seconds: float, call: Callable[[], object]) -> None:
    """Call something that raises or never returns where the head of a cluster is gone, and wait for so long at most."""

    def calling() -> None:
        with contextlib.suppress(Exception):
            call()

    thread = threading.Thread(target=calling, daemon=True)
    thread.start()
    thread.join(seconds)


@contextlib.contextmanager
def attached(address: str) -> Iterator[None]:
    """Connected to the cluster at ``address``: ``auto`` (the one that runs on this machine), ``HOST:PORT`` or
    ``ray://HOST:PORT``. UsageError where there is none."""
    if connected():
        raise UsageError(f"this program is connected to Ray already: leave out the address '{address}'")
    found = _reach(address)
    import ray

    logging.getLogger("ray.util.client").setLevel(logging.CRITICAL)  # what it finds is said below, or by the run
    try:
        with found, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _join(address)
    except Exception as error:  # noqa: BLE001 - whatever Ray raises: there are a dozen
        raise UsageError(f"cannot connect to the Ray cluster '{address}': {_why(error)}") from None
    with no_other():
        try:
            yield
        finally:
            within(GOODBYE, ray.shutdown)


@contextlib.contextmanager
def no_other() -> Iterator[None]:
    """Keep Ray from what it does at a call after its connection has ended by itself: join some other cluster, or start
    one."""
    hook: Any = importlib.import_module("ray._private.auto_init_hook")
    before, hook.enable_auto_connect = getattr(hook, "enable_auto_connect", True), False
    try:
        yield
    finally:
        hook.enable_auto_connect = before


@contextlib.contextmanager
def own(needs: Mapping[str, float]) -> Iterator[None]:
    """An instance of Ray for this run alone, which ends with it: on the loopback interface, behind a token that nobody
    else knows, without a dashboard. ``needs``: what it must have room for; processors are shared like those of the
    local runtime, however many replicas there are."""
    environ = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_ADDRESS": None,  # of a cluster that this run was not told of
        "RAY_enable_worker_prestart": "0",  # there is one worker: the agent
        "RAY_prestart_worker_first_driver": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_worker_niceness": "0",  # as the processes of the local runtime
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # whatever its name says, it decides that the address is 127.0.0.1
    }
    files = tempfile.TemporaryDirectory(prefix="shoal-ray-", ignore_cleanup_errors=True)
    with files, _read_after(), _on_loopback(), _environment(environ), no_other():
        import ray

        _read_anew()
        options: Values = {"num_cpus": max(1, math.ceil(needs.get("CPU", 1.0)))}
        if needs.get("memory"):
            options["_memory"] = needs["memory"] * 1.1 + 2**30
        inside = os.path.join(files.name, "r")  # Ray opens its own folder to everybody: within one of mode 0700
        options |= {"include_dashboard": False, "object_store_memory": OBJECTS, "_temp_dir": inside}
        with _own_handlers():
            ray.init("local", **options, **_QUIET)
        try:
            yield
        finally:
            ray.shutdown()


@contextlib.contextmanager
def _own_handlers() -> Iterator[None]:
    """Keep this process's handlers of signals: Ray puts one in place of that of SIGTERM which ends the process at once,
    without a checkpoint."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                if handler is not None:  # of C code
                    signal.signal(number, handler)


_QUIET: Values = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}


@contextlib.contextmanager
def _read_after() -> Iterator[None]:
    """Else this process would go on to ask for the token of the instance, also where it joins a cluster next."""
    try:
        yield
    finally:
        _read_anew()


def _read_anew() -> None:
    """Let Ray look at its environment variables again, in case that it was imported before."""
    raylet = importlib.import_module("ray._raylet")
    with contextlib.suppress(AttributeError):  # a version that reads them late
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def _environment(values: Mapping[str, str | None]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
