"""What the agent of a node tells the driver, and what the driver makes of the news of all nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from shoal.local.telemetry import Message

DIED = "died"  # the kind of event that a replica's process has ended
Event = tuple[str, int, int, Message]  # role, index, generation; a message of its own, or (DIED, (exit code, cause))


@dataclass
class News:
    """What an agent tells the driver: its control lines, and the events that the driver has not heard of yet, the last
    of which is the agent's ``number``. moved: channel -> the items of each writer that are known here."""

    control: np.ndarray
    stop: int
    events: list[Event]
    number: int
    fill: dict[str, float]
    moved: dict[str, np.ndarray]
    used: int
    traffic: dict[str, tuple[int, int]]


def fill(latest: Iterable[News]) -> dict[str, float]:
    """Return the share of a channel's slots that writers see: those of their own nodes, and of the readers'."""
    out: dict[str, float] = {}
    for news in latest:
        for name, share in news.fill.items():
            out[name] = min(1.0, out.get(name, 0.0) + share)
    return out


def items_moved(latest: Iterable[News]) -> dict[str, int]:
    """Return channel -> items put into it since the launch, 0 left out. A writer's own node knows what it has put; its
    reader's node knows what has arrived of that."""
    most: dict[str, np.ndarray] = {}
    for news in latest:
        for name, items in news.moved.items():
            most[name] = np.maximum(most.get(name, 0), items)
    return {name: n for name, items in most.items() if (n := int(items.sum()))}
