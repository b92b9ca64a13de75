"""One small row per writer in shared memory: the latest wins, everyone reads all, nobody waits.

A writer has two drafts, each with the number of the row that was last *begun* in it. Row ``n`` lies in draft
``n % 2``; a reader copies it and looks whether row ``n + 2`` was begun meanwhile. A writer killed while it writes
leaves its latest row whole, and its successor goes on after it.
"""

from __future__ import annotations

import numpy as np

from shoal import api
from shoal.shm import futex
from shoal.shm.arena import Arena
from shoal.shm.fields import LINE
from shoal.shm.group_layout import BoardLayout
from shoal.shm.ring import coerce
from shoal.shm.session import Session
from shoal.types import State


class BoardEnd:
    """An end of a board (an ``api.Board``); ``row``: the number of its own row, None for one that only reads."""

    def __init__(self, session: Session, layout: BoardLayout, row: int | None) -> None:
        self._session, self._layout, self._row, self._words = session, layout, row, session.arena.words
        self._drafts = _drafts(session.arena, layout)

    def ready(self) -> bool:
        return True

    def put(self, row: api.Arrays) -> None:
        """Copy a row in as the latest of this writer."""
        channel = self._layout.channel.name
        if self._row is None:
            raise api.UsageError(f"Channel {channel!r}: this end only reads.")
        if len(row) != len(self._layout.fields):
            raise api.UsageError(
                f"Channel {channel!r} has the fields {sorted(self._layout.channel.spec)}, put got {sorted(row)}."
            )
        self._session.fresh = False
        at = self._layout.lines // 8 + self._row * LINE
        number: int = self._words[at] + 1
        draft = self._drafts[self._row][number % 2]
        arrays = {name: coerce(channel, name, row.get(name), array) for name, array in draft.items()}
        self._words[at + 1 + number % 2] = number
        futex.fence()
        for name, array in draft.items():
            array[...] = arrays[name]
        futex.fence()
        self._words[at] = number

    def get(self) -> api.Rows:
        """A private copy of every writer's latest row."""
        return read(self._session.arena, self._layout, self._drafts)


def read(arena: Arena, layout: BoardLayout, drafts: list[list[api.Arrays]] | None = None) -> api.Rows:
    """A copy of every writer's latest row."""
    drafts = _drafts(arena, layout) if drafts is None else drafts
    rows = {f.name: np.zeros((layout.writers, *f.shape), f.dtype) for f in layout.fields}
    puts, words = np.zeros(layout.writers, np.int64), arena.words
    for writer in range(layout.writers):
        at = layout.lines // 8 + writer * LINE
        while number := words[at]:
            futex.fence()
            for name, array in drafts[writer][number % 2].items():
                rows[name][writer] = array
            futex.fence()
            if words[at + 1 + number % 2] == number:
                puts[writer] = number
                break
    return api.Rows(rows, puts)


def place(arena: Arena, layout: BoardLayout, writer: int, number: int, row: api.Arrays) -> None:
    """Copy in the row ``number`` that a writer put on this board in another arena. Nobody else may write it here."""
    words, at = arena.words, layout.lines // 8 + writer * LINE
    if words[at] >= number:
        return
    words[at + 1 + number % 2] = number
    futex.fence()
    for name, array in _drafts(arena, layout)[writer][number % 2].items():
        array[...] = row[name]
    futex.fence()
    words[at] = number


def state_dict(arena: Arena, layout: BoardLayout) -> State:
    rows = read(arena, layout)
    return {"rows": rows.values, "puts": rows.puts}


def load_state_dict(arena: Arena, layout: BoardLayout, state: State) -> None:
    """Before any writer starts."""
    for writer, drafts in enumerate(_drafts(arena, layout)):
        number, at = int(state["puts"][writer]), layout.lines // 8 + writer * LINE
        for name, array in drafts[number % 2].items():
            array[...] = state["rows"][name][writer]
        arena.words[at] = arena.words[at + 1 + number % 2] = number


def _drafts(arena: Arena, layout: BoardLayout) -> list[list[api.Arrays]]:
    """[writer][parity] of rows."""
    starts = [[layout.draft(w, parity) for parity in (0, 1)] for w in range(layout.writers)]
    return [[{f.name: arena.field(start, f) for f in layout.fields} for start in pair] for pair in starts]
