"""A checkpoint of the ranks: each writes its own part between the same two steps, and the first commits.

The parts are those of the local runtime, so that either goes on with the runs of the other.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from functools import partial
from typing import Any

import numpy as np

from shoal.api import ShoalError, State, Stateful
from shoal.metering.aggregator import Aggregator
from shoal.program import Program
from shoal.records import checkpoint, checkpoint_state as state_files
from shoal.records.checkpoint import RUN, Checkpoint, SaveOptions, part
from shoal.records.checkpoint_state import FileDigest
from shoal.runtime.all_reduce import ReduceEnd
from shoal.runtime.reduction import saved_states
from shoal.serial.channels import SerialParams
from shoal.shm.layout import COUNTED
from shoal.torchrun.ends import BoardEnd
from shoal.torchrun.group import Group
from shoal.types import Values
from shoal.untrusted import counter

log = logging.getLogger("shoal.runtime")


class Ends:
    """The ends that have a state, by channel."""

    def __init__(self) -> None:
        self.reducers: dict[str, ReduceEnd] = {}
        self.boards: dict[str, BoardEnd] = {}
        self.params: dict[str, SerialParams] = {}  # of the first rank; a copy at the others


def save(
    saving: SaveOptions, number: int, group: Group, program: Program, role: Any, ends: Ends, counted: Mapping[str, int],
    aggregator: Aggregator,
) -> None:  # fmt: skip
    """Write the checkpoint of that number; all ranks call it, and only the first waits for the others. What goes wrong
    costs the checkpoint and a warning, never the run."""
    name = program.roles[0].name
    rows = {channel: end.row for channel, end in ends.boards.items()}
    answer: Values = {"counted": [counted.get(each, 0) for each in COUNTED], "rows": rows}
    try:
        state: State = {"role": role.state_dict()} if isinstance(role, Stateful) else {}
        state["reduce"] = [end.state_dict() for end in ends.reducers.values()]
        parts = {part("role", name, group.place.rank): state_files.pack(state)}
        if group.place.first:
            for channel, params in ends.params.items():
                if not params.version:
                    continue
                saved = {"version": params.version, "tensors": params.published()}
                parts[part("params", channel)] = state_files.pack(saved)
        written = checkpoint.add(checkpoint.begin(saving, number), parts)
        answer["files"] = {name: astuple(file) for name, file in written.items()}
    except Exception as error:  # noqa: BLE001 - also those of a role's own
        answer["error"] = f"{type(error).__name__}: {error}"
    answers = group.gather(answer)
    if answers is not None:
        _commit(saving, number, program, answers, aggregator)


def _commit(
    saving: SaveOptions, number: int, program: Program, answers: Sequence[Values], aggregator: Aggregator
) -> None:
    """In the first rank, with what all answered."""
    try:
        if errors := [answer["error"] for answer in answers if "error" in answer]:
            raise OSError(errors[0])
        state = aggregator.state_dict()
        counts = [answer["counted"] for answer in answers]
        for column, name in enumerate(COUNTED):
            state["counts"][name] = sum(line[column] for line in counts)
        parts: State = {RUN: {"aggregator": state, "counts": {program.roles[0].name: counts}}}
        for channel in answers[0]["rows"]:
            rows, puts = zip(*(answer["rows"][channel] for answer in answers), strict=True)
            values = {field: np.stack([row[field] for row in rows]) for field in rows[0]}
            parts[part("channel", channel)] = {"rows": values, "puts": np.array(puts)}
        files = {name: FileDigest(*of_file) for answer in answers for name, of_file in answer["files"].items()}
        folder = checkpoint.begin(saving, number)
        files |= checkpoint.add(folder, {name: state_files.pack(state) for name, state in parts.items()})
        facts = checkpoint.facts(saving, program, aggregator)
        facts |= {"steps": state["counts"]["env_steps"], "updates": state["counts"]["updates"]}
        checkpoint.commit(folder, saving, files, facts)
    except (OSError, ShoalError) as error:
        checkpoint.discard(checkpoint.unfinished(saving, number))
        log.warning("no checkpoint at %s steps: %s (training goes on)", f"{aggregator.steps:,}", error)


def counted_before(source: Checkpoint, program: Program, rank: int) -> dict[str, int]:
    """Return a rank's counts over all its lives."""
    state = source.read(RUN)
    with source.fitting(RUN):
        lines = state["counts"][program.roles[0].name]
        return dict(zip(COUNTED, map(counter, lines[rank]), strict=True))


def load(source: Checkpoint, group: Group, program: Program, role: Any, ends: Ends, aggregator: Aggregator) -> None:
    """Put this rank, and the figures of the run, where they were saved."""
    source.check_fits(program)
    rank, ranks = group.place.rank, range(group.place.world)
    state = source.read(RUN)
    with source.fitting(RUN):
        aggregator.load_state_dict(state["aggregator"])
    names = [part("role", program.roles[0].name, each) for each in ranks]
    mine = source.read(names[rank])
    with source.fitting(names[rank]):
        if "role" in mine:
            role.load_state_dict(mine["role"])
        else:
            log.warning("%s has no state_dict: it starts anew", names[rank])
            getattr(role, "start", lambda: None)()
        for number, end in enumerate(ends.reducers.values()):
            of_all = partial(saved_states, source, program.roles[0].name, len(ranks), number)
            end.load_state_dict(mine["reduce"][number], of_all)
    for channel, params in ends.params.items():
        saved = part("params", channel)
        if group.place.first and source.has(saved):
            with source.fitting(saved):
                params.load_state_dict({**source.read(saved), "older": []})
    for channel, board in ends.boards.items():
        if source.has(name := part("channel", channel)):
            with source.fitting(name):
                rows = source.read(name)
                row = {field: np.asarray(values[rank]) for field, values in rows["rows"].items()}
                board.place(row, counter(int(rows["puts"][rank])))
