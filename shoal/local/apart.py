"""A function that is called in a process of its own, which ends with it: what it starts or loads does not stay here."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import cloudpickle

from shoal.api import ShoalError, UsageError
from shoal.local import processes, signals

T = TypeVar("T")
Call = Callable[[Callable[[], Any]], Any]  # calls a function, in this process or in another


def call_here(function: Callable[[], T]) -> T:
    """Call ``function()`` in this process and return its result."""
    return function()


def apart(function: Callable[[], T]) -> T:
    """Return what ``function()`` returns there. Raises what it raised, if that is an error of Shoal's; ShoalError with
    the traceback of any other; UsageError if the function cannot be sent, or ends its process. An interrupt ends both.
    What is printed there, such as the greeting of a package, is shown only if it fails: actors have it in their logs
    too."""
    processes.prepare()
    try:
        blob = cloudpickle.dumps(function)
    except Exception as error:  # whatever a user's object raises when it is pickled
        raise UsageError(
            f"the environment cannot be sent to the processes that step it ({error}): it must make what it holds itself"
        ) from error
    ours, theirs = connection.Pipe(duplex=False)
    with tempfile.NamedTemporaryFile(prefix="shoal-") as printed:
        process = processes.start(_call, (blob, dict(os.environ), theirs, printed.name), "shoal-apart")
        theirs.close()
        try:
            answer = _answer(process, ours)
        except BaseException:
            sys.stderr.write(printed.read().decode(errors="replace"))
            raise
    found: T = answer
    return found


def _answer(process: BaseProcess, ours: connection.Connection) -> Any:
    """Return the function's result from ``process``, which has ended then."""
    try:
        failed, answer = cloudpickle.loads(ours.recv_bytes())
    except EOFError:
        process.join()
        how = processes.describe_exit(process.exitcode)
        raise UsageError(f"the environment ended the process in which it was made: {how}") from None
    finally:
        processes.kill(process)
        process.join()
        ours.close()
    if failed:
        raise answer
    return answer


def _call(blob: bytes, environ: dict[str, str], pipe: connection.Connection, printed: str) -> None:
    from shoal.local.child import follow_parent

    with contextlib.suppress(OSError):
        os.setpgid(0, 0)  # Ctrl-C is for the parent
    signals.shield()
    os.register_at_fork(after_in_child=signals.unshield)
    follow_parent()
    os.environ.clear()
    os.environ.update(environ)
    with open(printed, "ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    answer: tuple[bool, Any]
    try:
        try:
            function = cloudpickle.loads(blob)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            raise UsageError(f"the environment cannot be loaded in the processes that step it ({text})") from error
        answer = (False, function())
    except ShoalError as error:
        answer = (True, error)
    except BaseException:  # noqa: BLE001 - told to the parent, which raises it
        answer = (True, ShoalError(f"the environment failed while it was looked at:\n{traceback.format_exc()}"))
    pipe.send_bytes(cloudpickle.dumps(answer))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # whatever still runs here
