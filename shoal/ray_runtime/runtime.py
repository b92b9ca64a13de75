"""The Ray runtime: a program on the nodes of a cluster. Ray is imported when it is used."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from shoal.api import UsageError
from shoal.local.failures import Failures, Patience
from shoal.program import Program, held
from shoal.ray_runtime import instance, placement
from shoal.runtime import memory
from shoal.runtime.launch import Launch, Report, run_from_newest
from shoal.shm import layout


class RayRuntime:
    """Runs a program on a Ray cluster: on each node an agent with an arena of shared memory and a process per replica,
    as in the local runtime; between nodes, Ray.

    address: of a cluster, as ``ray.init`` takes it; None: the one that this program is connected to, or else an
    instance of its own on this machine.
    hang_timeout, grace: as for ``LocalRuntime``.
    """

    def __init__(self, address: str | None = None, *, hang_timeout: float = 60.0, grace: float = 5.0) -> None:
        instance.check_installed()
        self.address, self.hang_timeout, self.grace = address, hang_timeout, grace
        self.traffic: dict[str, tuple[int, int]] = {}  # of the last launch: channel -> messages, bytes between nodes

    def check(self, program: Program) -> None:
        """See ``runtime.launch.Runtime``: whether it fits into the cluster."""
        for channel in program.channels.values():
            if channel.lag:
                raise UsageError(
                    f"channel '{channel.name}' has a lag of {channel.lag}, which only the serial runtime keeps"
                )
        program.validate()
        plan = layout.plan(program)
        if self._starts_its_own():
            memory.check_fits(layout.needed(plan), held(program))
            return
        with self._connected(program):
            self._check_room(program)

    def launch(self, program: Program, launch: Launch) -> Report:
        """See ``runtime.launch.Runtime``. Interrupt once for an orderly end, twice to kill at once."""
        with self._connected(program), contextlib.ExitStack() as stack:
            from shoal.ray_runtime.places import Places, nodes
            from shoal.ray_runtime.supervisor import RaySupervisor

            self._check_room(program)
            places = Places(placement.units_on(program, nodes()), nodes())
            stack.callback(instance.within, instance.GOODBYE, places.close)
            plan = layout.plan(program)
            launch = replace(launch, publication=None)  # parameters lie on another node: checkpoints serve

            def run(launch: Launch) -> Report:
                supervisor = RaySupervisor(
                    program, plan, launch, Failures(Patience()), self.grace, self.hang_timeout, places
                )  # fmt: skip
                try:
                    return supervisor.go()
                finally:
                    self.traffic = supervisor.traffic()

            return run_from_newest(launch, run)

    def _check_room(self, program: Program) -> None:
        from shoal.ray_runtime.places import nodes

        placement.check(placement.units_on(program, nodes()), nodes(), "the Ray cluster")

    def _starts_its_own(self) -> bool:
        return self.address is None and not instance.connected()

    def _connected(self, program: Program) -> contextlib.AbstractContextManager[None]:
        if self.address is not None:
            return instance.attached(self.address)
        if not self._starts_its_own():
            return instance.no_other()
        return instance.own(placement.total(placement.units(program)))
