"""The local runtime: one process per replica, shared memory between them, one supervisor."""

from __future__ import annotations

from shoal.api import UsageError
from shoal.local import descriptors, processes
from shoal.local.failures import Failures, Patience
from shoal.local.supervisor import Supervisor
from shoal.program import Program, held
from shoal.runtime import memory
from shoal.runtime.launch import Launch, Report, run_from_newest
from shoal.shm import layout

PROCESS = 8_000_000  # bytes of a replica's process that no other shares, before its role makes anything: 9 to 11 MB


class LocalRuntime:
    """Runs a program on this machine.

    restarts, window, backoff, longest_backoff, still_born: how often replicas may fail, see ``failures.Patience``.
    grace: seconds replicas have to finish their step at the end; then they are killed.
    hang_timeout: seconds a replica may make no progress, see ``heartbeat.Watch``; 0: for ever.
    """

    def __init__(
        self,
        *,
        restarts: int = Patience.restarts,
        window: float = Patience.window,
        backoff: float = Patience.backoff,
        longest_backoff: float = Patience.longest_backoff,
        still_born: int = Patience.still_born,
        grace: float = 5.0,
        hang_timeout: float = 60.0,
    ) -> None:
        self.patience = Patience(restarts, window, backoff, longest_backoff, still_born)
        self.grace, self.hang_timeout = grace, hang_timeout

    def check(self, program: Program) -> None:
        """See ``runtime.launch.Runtime``: whether it fits into memory and among the files that may be open, and needs
        no other runtime."""
        processes.require_children()
        for channel in program.channels.values():
            if channel.lag:
                raise UsageError(
                    f"channel '{channel.name}' has a lag of {channel.lag}, which only the serial runtime keeps"
                )
        program.validate()
        replicas = sum(role.replicas for role in program.roles)
        descriptors.make_room(replicas)
        memory.check_fits(layout.needed(layout.plan(program)), held(program), {"processes": replicas * PROCESS})

    def launch(self, program: Program, launch: Launch) -> Report:
        """See ``runtime.launch.Runtime``. Interrupt once for an orderly end, twice to kill at once.

        Observers are called every ``launch.interval`` seconds; in a long run, every 7,200th of its length.
        """
        self.check(program)
        plan = layout.plan(program)
        processes.prepare()

        def run(launch: Launch) -> Report:
            return Supervisor(program, plan, launch, Failures(self.patience), self.grace, self.hang_timeout).go()

        return run_from_newest(launch, run)
