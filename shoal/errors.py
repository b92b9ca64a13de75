"""Every error that Shoal raises on purpose; ``shoal.api`` offers them too."""

from __future__ import annotations

from shoal.types import Values

__all__ = [
    "Deadlock",
    "Diverged",
    "EnvironmentFailed",
    "RoleFailed",
    "ShoalError",
    "Stopped",
    "UsageError",
    "WiringError",
]


class ShoalError(Exception):
    """Base class of Shoal's errors; the message is one sentence for the user."""


class UsageError(ShoalError):
    """Raised for an invalid name or value from the user (a command exits with code 2)."""


class WiringError(ShoalError):
    """Raised by ``Program.validate``, before anything starts, for a program that cannot run."""


class Deadlock(ShoalError):
    """No role of a serial program can step; the text lists each role's unready ports."""


class Stopped(ShoalError):
    """Raised out of a blocking port when the run ends. Roles need not catch it, and none raises it."""


class EnvironmentFailed(ShoalError):
    """An environment raised, or returned what it must not; the text names environment and action. chance: another try
    may go well, though nothing was raised."""

    def __init__(self, text: str, chance: bool = False):
        self.chance = chance
        super().__init__(text)


class Diverged(ShoalError):
    """The loss or its gradient was not finite in many updates in a row. The runtime saves ``tensors`` (batch and
    parameters: name -> tensor) and ``facts`` for whoever looks for the cause."""

    def __init__(self, text: str, facts: Values | None = None):
        self.facts: Values = facts or {}
        self.tensors: Values = {}
        super().__init__(text)


PROGRAMMING = (NameError, TypeError, AttributeError, ImportError, NotImplementedError, SyntaxError)


def repeats(error: BaseException) -> bool:
    """Return True if whoever tries again will fail in the same way: by a wrong name or value, by a mistake in a
    program, or by an environment that does not keep to Gymnasium's interface."""
    if isinstance(error, EnvironmentFailed):
        cause = error.__cause__
        return not error.chance if cause is None else isinstance(cause, PROGRAMMING)
    return isinstance(error, (UsageError, *PROGRAMMING))


def out_of_memory(error: BaseException) -> str | None:
    """Return the sentence for an allocation that failed, on the host or on a device; None for any other error."""
    text = str(error).partition("\n")[0]
    of_torch = isinstance(error, RuntimeError) and ("allocate memory" in text or "out of memory" in text)
    if not of_torch and not isinstance(error, MemoryError):
        return None
    return f"no memory is left: {text or 'an allocation failed'}"


class RoleFailed(ShoalError):
    """A replica died and its role may not restart: role, index, generation, exit code, traceback."""

    def __init__(self, role: str, index: int, generation: int, exitcode: int | None, cause: str):
        self.role, self.index, self.generation = role, index, generation
        self.exitcode, self.cause = exitcode, cause
        code = "" if exitcode is None else f" with exit code {exitcode}"
        super().__init__(f"{role}[{index}] (generation {generation}) failed{code}:\n{cause.rstrip()}")
