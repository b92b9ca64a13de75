"""The supervisor's part in a checkpoint: it asks the replicas that save, collects their answers, and commits."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal import api
from shoal.local.checkpoint_save import FINAL_CHECKPOINT, saves as saves
from shoal.metering.aggregator import Aggregator
from shoal.program import Program
from shoal.records import checkpoint, checkpoint_state as state_files
from shoal.records.checkpoint import RUN, Checkpoint, SaveOptions
from shoal.records.checkpoint_shape import SERVER
from shoal.records.checkpoint_state import FileDigest
from shoal.records.presence import DirectoryGone
from shoal.shm import board, shared_params
from shoal.shm.arena import Arena
from shoal.shm.group_layout import BoardLayout, GroupLayout, SharedLayout
from shoal.shm.layout import CHECKPOINT, COUNTED, LINE, Plan
from shoal.types import Values
from shoal.untrusted import counter

log = logging.getLogger("shoal.runtime")


@dataclass
class _Pending:
    """A checkpoint that replicas are writing. ``state`` is the run's own, of the moment when theirs was fixed."""

    number: int
    folder: Path | None = None  # None: it could not be made
    fixed: dict[str, list[int]] = field(default_factory=dict)  # replica -> what it had counted
    saved: set[str] = field(default_factory=set)
    files: dict[str, FileDigest] = field(default_factory=dict)
    facts: Values = field(default_factory=dict)
    state: api.State = field(default_factory=dict)
    groups: api.State = field(default_factory=dict)  # part -> state of a channel that belongs to no replica
    error: str = ""


class Checkpointer:
    """Call ``look`` now and then, ``hear`` with every answer, ``ending`` when the run stops and ``last`` when all its
    processes are gone. What goes wrong costs a checkpoint and a warning, never the run."""

    def __init__(
        self,
        saving: SaveOptions,
        program: Program,
        plan: Plan,
        arena: Arena,
        aggregator: Aggregator,
        ring_bells: Callable[[], None],
        groups: Callable[[], api.State],
    ) -> None:
        self._saving, self._program, self._plan, self._arena = saving, program, plan, arena
        self._aggregator, self._ring_bells, self._groups = aggregator, ring_bells, groups
        self._savers = {f"{r.name}[{i}]" for r in program.roles if saves(r) for i in range(r.replicas)}
        self._number = FINAL_CHECKPOINT
        self._pending: _Pending | None = None
        self._due = time.monotonic() + saving.every if saving.every else math.inf
        self._failing = self._ended = False
        for channel in program.channels.values():
            if channel.kind == "replay" and saving.leaves_out(channel, plan.rings[channel.name].writers):
                log.warning("checkpoints leave out the contents of '%s', which may grow beyond %.1f GB: "
                            "a resumed run fills it anew", channel.name, saving.replay_bytes / 1e9)  # fmt: skip

    def timeout(self) -> float:
        """Seconds until a checkpoint is due."""
        return self._due - time.monotonic() if self._pending is None else math.inf

    def look(self) -> None:
        if self._pending is None and time.monotonic() >= self._due:
            self._number += 1
            self._begin(self._number)
            self._arena.words[CHECKPOINT // 8] = self._number
            self._ring_bells()

    def hear(self, replica: str, kind: str, content: Any) -> None:
        """An answer: ``snapshot`` or ``saved``, see ``checkpoint_save.Saver``."""
        number, answer = content
        if number == FINAL_CHECKPOINT:
            self.ending()  # a replica saw the end first
        pending = self._pending
        if pending is None or number != pending.number:
            # a replica that began anew wrote for one that was complete
            if kind == "saved" and number != FINAL_CHECKPOINT:
                checkpoint.discard(checkpoint.unfinished(self._saving, number))
            return
        if kind == "snapshot":
            pending.fixed[replica] = answer
            if pending.fixed.keys() == self._savers:
                self._fix(pending)
            return
        pending.saved.add(replica)
        pending.error = pending.error or answer.get("error", "")
        pending.files |= {name: FileDigest(**w) for name, w in answer.get("files", {}).items()}
        if pending.number != FINAL_CHECKPOINT and pending.saved == self._savers:
            self._finish(pending)

    def again(self, replica: str) -> None:
        """Another life of a replica begins, which writes once more, over the same files, what is being saved."""
        if self._pending is not None:
            self._pending.saved.discard(replica)

    def ending(self) -> None:
        """The run stops: replicas write their last state when they see it."""
        if self._ended:
            return
        self._ended = True
        if self._pending is not None and self._pending.folder is not None:
            checkpoint.discard(self._pending.folder)
        self._begin(FINAL_CHECKPOINT)

    def give_up(self) -> None:
        """The run ends before anything was done in it: there is no last checkpoint."""
        if self._pending is not None and self._pending.folder is not None:
            checkpoint.discard(self._pending.folder)
        self._pending, self._ended = None, True

    def last(self) -> None:
        pending = self._pending
        if pending is None or pending.number != FINAL_CHECKPOINT:
            return
        if missing := self._savers - pending.saved:
            pending.error = pending.error or f"{', '.join(sorted(missing))} did not finish it"
        self._fix(pending)
        self._finish(pending)

    def _begin(self, number: int) -> None:
        self._pending = _Pending(number)
        try:
            self._pending.folder = checkpoint.begin(self._saving, number)
        except DirectoryGone as error:
            self._pending.error, self._failing = str(error), True  # who writes the run's records says so, once
        except OSError as error:
            self._pending.error = str(error)
        if not self._savers:
            self._fix(self._pending)
            if number != FINAL_CHECKPOINT:
                self._finish(self._pending)

    def _fix(self, pending: _Pending) -> None:
        lines = counted(self._arena, self._plan)
        for role, of_role in lines.items():
            for i in range(len(of_role)):
                of_role[i] = pending.fixed.get(f"{role}[{i}]", of_role[i])
        state = self._aggregator.state_dict()
        for column, name in enumerate(COUNTED):  # telemetry lags behind what was counted
            state["counts"][name] = sum(line[column] for of_role in lines.values() for line in of_role)
        pending.state = {"aggregator": state, "counts": lines}
        pending.groups = self._groups()
        pending.facts = checkpoint.facts(self._saving, self._program, self._aggregator)
        pending.facts |= {"steps": state["counts"]["env_steps"], "updates": state["counts"]["updates"]}

    def _finish(self, pending: _Pending) -> None:
        self._pending = None
        if self._saving.every:
            self._due = time.monotonic() + self._saving.every
        try:
            if pending.folder is None or pending.error:
                raise OSError(pending.error)
            own = pending.groups | {RUN: pending.state}
            pending.files |= checkpoint.add(pending.folder, {name: state_files.pack(s) for name, s in own.items()})
            checkpoint.commit(pending.folder, self._saving, pending.files, pending.facts)
            self._failing = False
        except OSError as error:
            if pending.folder is not None:
                checkpoint.discard(pending.folder)
            if not self._failing:
                then = "" if pending.number == FINAL_CHECKPOINT else " (training goes on; the one before is kept)"
                log.warning("no checkpoint at %s steps: %s%s", f"{self._aggregator.steps:,}", error, then)
            self._failing = True


def counted(arena: Arena, plan: Plan) -> dict[str, list[list[int]]]:
    """role -> replica -> what it has counted over all its lives, in the order of ``COUNTED``."""
    return {
        role: [
            [int(arena.words[start // 8 + i * LINE + c]) for c in range(1, len(COUNTED) + 1)]
            for i in range(plan.counts[role])
        ]
        for role, start in plan.status.items()
    }


def resume(source: Checkpoint, program: Program, plan: Plan, arena: Arena, aggregator: Aggregator) -> None:
    """Set the run's own figures, before any replica starts; each replica that saves loads its state itself."""
    source.check_fits(program)
    state = source.read(RUN)
    with source.fitting(RUN):
        aggregator.load_state_dict(state["aggregator"])
        for role, start in plan.status.items():
            if role == SERVER and role not in state["counts"]:
                continue  # actors chose their actions themselves until now
            for i, line in zip(range(plan.counts[role]), state["counts"][role], strict=True):
                for (column, _), n in zip(enumerate(COUNTED, 1), line, strict=True):
                    arena.words[start // 8 + i * LINE + column] = counter(n)
    for group in plan.groups.values():
        _load(source, group, arena)
    for channel in program.channels.values():
        if channel.kind == "replay" and not source.has(checkpoint.part("channel", channel.name)):
            log.warning("the checkpoint does not hold the contents of '%s': it is filled anew", channel.name)


def groups_state(plan: Plan, arena: Arena) -> api.State:
    """part -> state of each channel that belongs to no replica."""
    out: api.State = {}
    for group in plan.groups.values():
        out |= _saved(group, arena)
    return out


def _saved(group: GroupLayout, arena: Arena) -> Values:
    """The part of a channel that outlives its replicas; what is reduced is saved by those who reduce it."""
    if isinstance(group, BoardLayout):
        return {checkpoint.part("channel", group.channel.name): board.state_dict(arena, group)}
    if isinstance(group, SharedLayout) and (state := shared_params.state_dict(arena, group))["version"]:
        return {checkpoint.part("params", group.channel.name): state}
    return {}


def _load(source: Checkpoint, group: GroupLayout, arena: Arena) -> None:
    name = checkpoint.part("params" if isinstance(group, SharedLayout) else "channel", group.channel.name)
    if source.has(name):
        with source.fitting(name):
            if isinstance(group, BoardLayout):
                board.load_state_dict(arena, group, source.read(name))
            elif isinstance(group, SharedLayout):
                shared_params.load_state_dict(arena, group, source.read(name))
