"""How a replica of the local runtime saves itself: a forked copy of its process writes while the role goes on."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Protocol

from shoal.api import Role, State, Stateful
from shoal.local import signals
from shoal.local.telemetry import Outbox
from shoal.program import RoleSpec
from shoal.records import checkpoint, checkpoint_state as state_files
from shoal.records.checkpoint import Checkpoint, SaveOptions
from shoal.records.checkpoint_state import PackedState
from shoal.runtime.reduction import Saved, saved_states
from shoal.shm.layout import CHECKPOINT
from shoal.shm.ports import ReplayReader
from shoal.shm.session import Session
from shoal.shm.store import StoreWriter
from shoal.types import Values

log = logging.getLogger("shoal.runtime")

FINAL_CHECKPOINT = 0  # number of the checkpoint at the end of a run


def saves(role: RoleSpec) -> bool:
    """Return whether a role's state is kept. One that may be restarted at any time has none worth keeping."""
    return role.on_failure in ("stop", "restore")


class Reporter(Protocol):
    """What ships a replica's figures; ``outbox`` is its pipe to the supervisor."""

    outbox: Outbox

    def last(self) -> None: ...


class Saver:
    """Looks, between two steps, whether the supervisor asks for a checkpoint. Replicas that reduce save after the same
    round, so that their states belong together.

    Two messages answer it: ``snapshot`` when the state is fixed, with what the replica had counted then, and ``saved``
    with the files or with what went wrong.
    The copy shares its memory with the role until one of them writes: training stands still only for the fork.
    """

    def __init__(
        self,
        saving: SaveOptions,
        role: Role,
        name: str,
        ends: Values,
        session: Session,
        reporter: Reporter,
        counted: Callable[[], list[int]],
    ) -> None:
        self._counted = counted
        self._saving, self._role, self._name, self._ends = saving, role, name, ends
        self._reducers = [end for end in ends.values() if isinstance(end, Saved)]
        self._session, self._reporter, self._outbox = session, reporter, reporter.outbox
        self._words = session.arena.words
        # number of the checkpoint answered last; one may be asked for before the role is built
        self._seen = FINAL_CHECKPOINT
        self._copy, self._pipe = 0, -1  # process and descriptor of the copy that writes, while there is one

    def look(self) -> None:
        if self._copy:
            self._reap(os.WNOHANG)
        wanted = max((end.agreed for end in self._reducers), default=self._words[CHECKPOINT // 8])
        if wanted != self._seen and not self._copy:
            self._seen = wanted
            metrics = self._session.metrics
            with metrics.phase("checkpoint"):
                self._fork(wanted)

    def last(self, whole: bool) -> None:
        """Save at the end of the run, in this process; ``whole``: the role is between two steps."""
        if self._copy:
            os.kill(self._copy, 9)
            self._reap(0)
        answer = self._write(FINAL_CHECKPOINT) if whole else {"error": f"{self._name} was stopped inside a step"}
        self._session.at_rest = None
        self._outbox.send(("saved", (FINAL_CHECKPOINT, answer)))

    def _pack(self) -> dict[str, PackedState]:
        """Every part that is this replica's to save."""
        state: State = {"role": self._role.state_dict()} if isinstance(self._role, Stateful) else {}
        if self._reducers:
            state["reduce"] = [end.state_dict() for end in self._reducers]
        out = {self._name: state_files.pack(state)}
        for end in self._ends.values():
            if isinstance(end, StoreWriter):
                out[checkpoint.part("params", end.channel)] = state_files.pack(end.state_dict())
            elif isinstance(end, ReplayReader) and not self._saving.leaves_out(end.channel, end.writers):
                out[checkpoint.part("channel", end.name)] = state_files.pack(end.state_dict())
        return out

    def _fork(self, number: int) -> None:
        try:
            parts = self._pack()
            ours, theirs = os.pipe()
        except Exception as error:  # noqa: BLE001 - told to the supervisor: training goes on
            self._outbox.send(("saved", (number, {"error": f"{type(error).__name__}: {error}"})))
            return
        self._reporter.last()  # so that the supervisor knows of everything until now
        self._outbox.send(("snapshot", (number, self._counted())))
        try:
            self._copy = signals.fork()
        except OSError as error:
            os.close(ours)
            os.close(theirs)
            self._outbox.send(("saved", (number, {"error": f"no copy of the process could be made: {error}"})))
            return
        if self._copy:
            os.close(theirs)
            self._pipe = ours
            return
        with contextlib.suppress(BaseException):
            os.nice(5)
            os.write(theirs, json.dumps(self._write(number, parts)).encode())
        os._exit(0)

    def _write(self, number: int, parts: dict[str, PackedState] | None = None) -> Values:
        try:
            files = checkpoint.add(checkpoint.begin(self._saving, number), parts or self._pack())
        except Exception as error:  # noqa: BLE001 - told to the supervisor: training goes on
            return {"error": f"{type(error).__name__}: {error}"}
        return {"files": {name: asdict(written) for name, written in files.items()}}

    def _reap(self, options: int) -> None:
        """Take the answer of a copy that has ended."""
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(self._copy, options) == (0, 0):
                return
        received = b""
        while chunk := os.read(self._pipe, 1 << 16):
            received += chunk
        os.close(self._pipe)
        answer = json.loads(received) if received else {"error": "the process that wrote it was killed"}
        self._outbox.send(("saved", (self._seen, answer)))
        self._copy, self._pipe = 0, -1


def restore(source: Checkpoint, role: Role, spec: RoleSpec, index: int, ends: Values, tables: bool = True) -> None:
    """Put a replica, and the parameters and (with ``tables``) the replay tables it holds, where they were saved."""
    name = checkpoint.part("role", spec.name, index)
    state = source.read(name)
    with source.fitting(name):
        if "role" in state:
            assert isinstance(role, Stateful)
            role.load_state_dict(state["role"])
        else:
            log.warning("%s has no state_dict: it starts anew", name)
            getattr(role, "start", lambda: None)()
        reducers = [(port, ends[key]) for key, port in spec.ports.items() if isinstance(ends[key], Saved)]
        for number, ((port, end), saved) in enumerate(zip(reducers, state.get("reduce", []), strict=True)):
            of_all = partial(saved_states, source, spec.name, port.of(spec.replicas), number)
            end.load_state_dict(saved, of_all)
    for end in ends.values():
        if isinstance(end, StoreWriter):
            part = checkpoint.part("params", end.channel)
        elif isinstance(end, ReplayReader) and tables:
            part = checkpoint.part("channel", end.name)
        else:
            continue
        if source.has(part):
            with source.fitting(part):
                end.load_state_dict(source.read(part))
