"""A program over several arenas in this process: what the agents of nodes send to each other goes through threads."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

from shoal.metering.recorder import Recorder
from shoal.program import Program, RoleSpec
from shoal.ray_runtime import routes
from shoal.ray_runtime.collective import AllReduce, Member, Store, _Ranks
from shoal.ray_runtime.incoming import Incoming
from shoal.ray_runtime.outgoing import Outgoing
from shoal.shm import bells, layout, ports
from shoal.shm.arena import Arena
from shoal.shm.layout import STOP
from shoal.shm.session import Session

Ends = dict[str, Any]


class _Answer:
    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def future(self) -> Future[Any]:
        return self._future


class Gone(Exception):
    """A peer that is lost."""


class Unreachable(Gone):
    """The connection broke while a peer was called."""


class _Method:
    def __init__(self, pool: ThreadPoolExecutor, call: Any, breaks: list[str]) -> None:
        self._pool, self._call, self._breaks = pool, call, breaks

    def remote(self, *args: Any) -> _Answer:
        return _Answer(self._pool.submit(self._answered, self._breaks.pop() if self._breaks else "", *args))

    def _answered(self, breaks: str, *args: Any) -> Any:
        if breaks == "while":
            self._pool.submit(self._call, *args)
        elif breaks != "before":
            answer = self._call(*args)
        if breaks:
            raise Unreachable(breaks)
        return answer


class _Peer:
    """Looks like the handle of an agent."""

    def __init__(self, pool: ThreadPoolExecutor, incoming: Incoming, breaks: list[str]) -> None:
        self._pool, self._incoming, self._breaks = pool, incoming, breaks

    def __getattr__(self, name: str) -> _Method:
        return _Method(self._pool, getattr(self._incoming, name), self._breaks)


class Arenas:
    """``where``: (role, index) -> node. ``ends``: by ``role/index/port``; ``failures``: of threads, to be empty.
    ``breaks``: of the connection at the next calls: ``before`` one arrives, ``while`` it is answered, or
    ``after``."""

    def __init__(self, program: Program, where: Mapping[tuple[str, int], str]) -> None:
        program.validate()
        self.plan = layout.plan(program)
        self.sessions = {node: Session(Arena(self.plan.total), Recorder()) for node in sorted(set(where.values()))}
        self.pool, self.failures = ThreadPoolExecutor(32), []  # type: ThreadPoolExecutor, list[str]
        self.breaks: list[str] = []
        self.incoming = {node: Incoming(s.arena, self.plan) for node, s in self.sessions.items()}
        self.outgoing = {
            node: Outgoing(s.arena, self.plan, self.failures.append, lambda flat: flat.copy(), Gone, Unreachable)
            for node, s in self.sessions.items()
        }
        for session in self.sessions.values():
            ports.fill(session.arena, self.plan)
        self.routes = routes.routes(program, self.plan, where)
        for r in self.routes:
            members = routes.members(program, self.plan, r.channel, where)
            here = [w for w, node in members.items() if node == r.source]
            self.outgoing[r.source].start(r, _Peer(self.pool, self.incoming[r.target], self.breaks), here)
        self.ends: Ends = {}
        rings, self.store = routes.rings(program, self.plan, where), Store("127.0.0.1")

        def build(role: RoleSpec, index: int) -> Ends:
            own = Session(self.sessions[where[role.name, index]].arena, Recorder())
            far = rings.get((role.name, index), {})
            joins = {c: AllReduce(self.store.where, "127.0.0.1", crosses=crosses) for c, crosses in far.items()}
            return ports.build(own, self.plan, role, index, 0, 0, joins)

        replicas = [(role, index) for role in program.roles for index in range(role.replicas)]
        with ThreadPoolExecutor(len(replicas)) as pool:  # members of a reduce wait for each other
            for (role, index), found in zip(replicas, pool.map(build, *zip(*replicas, strict=True)), strict=True):
                self.ends |= {f"{role.name}/{index}/{name}": end for name, end in found.items()}

    def close(self) -> None:
        for end in self.ends.values():
            if isinstance(end, Member):  # to forget a group waits for reductions which nobody will complete
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(cast(_Ranks, end._group)._group))
        for session in self.sessions.values():
            session.arena.words[STOP // 8] = 1
            bells.ring(session.arena, self.plan)
        for outgoing in self.outgoing.values():
            outgoing.join()
        self.pool.shutdown()
