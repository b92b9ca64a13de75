"""Parts that all ends of reduce channels share: the order of summation, and saving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from shoal.api import Arrays
from shoal.records.checkpoint import Checkpoint, part
from shoal.types import State

BLOCK = 16_384  # elements that are added before the next ones, so that partial sums stay in the cache


def combine(out: np.ndarray, parts: Sequence[np.ndarray], mean: bool) -> None:
    """``out = parts[0] + parts[1] + ...``, from left to right, element by element; divided by their number if ``mean``.

    All arrays are flat and equally long, and of one dtype; ``out`` may lie in none of the parts. However a caller cuts
    them, each element of the result is the same bit for bit.
    """
    first, *others = parts
    for start in range(0, len(out), BLOCK):
        block = slice(start, start + BLOCK)
        total = out[block]
        if others:
            np.add(first[block], others[0][block], out=total)
            for part in others[1:]:
                total += part[block]
        else:
            total[:] = first[block]
        if mean:
            total /= len(parts)


@runtime_checkable
class Saved(Protocol):
    """Saved state of a member's end of a reduce channel.

    agreed: the number of the checkpoint that every member knew of when it put the item of the round that was got last.
    It is the same for all members after the same round, so that all save themselves there.
    """

    agreed: int

    def state_dict(self) -> State: ...

    def load_state_dict(self, mine: State, of_all: Callable[[], list[State]]) -> None:
        """Go on where this member was. ``of_all``: the states of all members, in their order, if they are needed."""


def got(states: Sequence[State], round: int) -> Arrays | None:
    """The result of a round, where the state of one of the members that had got it has it, as those do which add in an
    order of their own; None: none has."""
    return next((state["result"] for state in states if state["gets"] == round + 1 and state.get("result")), None)


def saved_states(source: Checkpoint, role: str, members: int, number: int) -> list[State]:
    """The states in a checkpoint of all members of a reduce channel; ``number``: which of the channels of its role."""
    return [source.read(part("role", role, member))["reduce"][number] for member in range(members)]
