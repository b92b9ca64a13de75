"""Running a user's own program: without an environment and without a run directory."""

from __future__ import annotations

from shoal.api import UsageError
from shoal.program import Program
from shoal.run.options import RunOptions
from shoal.run.runtimes import make_runtime
from shoal.runtime.devices import check_devices
from shoal.runtime.launch import Launch, Report, Stop
from shoal.untrusted import brief


def launch(
    program: Program, *, runtime: str = RunOptions.runtime, seed: int = RunOptions.seed, steps: int | None = None,
    updates: int | None = None, seconds: float | None = None,
) -> Report:  # fmt: skip
    """Run ``program`` until it has counted ``steps`` ``env_steps`` or ``updates``, or for ``seconds``, whichever is
    first. ``Report.params`` holds the parameters published last on each params channel, by its name.

    runtime: ``local`` (processes that share memory) or ``serial`` (one process, deterministic). seed: of all roles.
    Raises WiringError or UsageError if the program cannot be run, and RoleFailed, Diverged or Deadlock if the run
    fails.
    """
    if not isinstance(program, Program):
        raise UsageError(
            f"shoal.launch expects a Program, found {brief(program)}: shoal.train trains a system by its name"
        )
    if steps is None and updates is None and seconds is None:
        raise UsageError("a program needs an end: expected steps, updates or seconds, found none of them")
    launcher = make_runtime(runtime, RunOptions.hang_timeout)
    launcher.check(program)
    check_devices(program)
    return launcher.launch(program, Launch(seed=seed, stop=Stop(steps=steps, updates=updates, seconds=seconds)))
