"""Checks of channel ends: the fields of an item, and the order of puts and gets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager

import numpy as np

from shoal.api import Arrays, UsageError
from shoal.program import Channel


def check_item(channel: Channel, items: Arrays) -> None:
    """Raise UsageError unless ``items`` has the names and shapes of the channel's spec."""
    if items.keys() != channel.spec.keys():
        raise UsageError(f"channel '{channel.name}' has the fields {sorted(channel.spec)}, put got {sorted(items)}")
    for name, f in channel.spec.items():
        if np.shape(items[name]) != f.shape:
            raise UsageError(f"channel '{channel.name}': field '{name}' is {f.shape}, put got {np.shape(items[name])}")


class InTurn(ABC):
    """The checks of a reduce channel's member: an item has the spec's fields, and puts and gets take turns."""

    channel: Channel

    @property
    @abstractmethod
    def pending(self) -> bool:
        """Return True if this member has put an item whose result it has not got."""

    @abstractmethod
    def slot(self) -> AbstractContextManager[Arrays]:
        """This round's item, to be filled in place."""

    def put(self, items: Arrays) -> None:
        check_item(self.channel, items)
        with self.slot() as slot:
            for name, array in slot.items():
                array[...] = items[name]

    def check_put(self) -> None:
        if self.pending:
            raise UsageError(f"channel '{self.channel.name}': a put must follow the get of the put before")

    def check_get(self) -> None:
        if not self.pending:
            raise UsageError(f"channel '{self.channel.name}': a get must follow a put")
