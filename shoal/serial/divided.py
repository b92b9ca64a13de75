"""Divided channels of the serial runtime: a plain channel for each part, and the ends that have to do with all."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shoal.api import PART, Arrays, Deadlock, State, Tensors, bounds, spec_size, views
from shoal.program import Channel
from shoal.program.divided import parts
from shoal.runtime.channel_checks import check_item
from shoal.serial.channels import SerialParams, SerialParamsReader, SerialQueue, SerialWriter


class DividedQueue:
    """A queue for each reader, of its part of every item."""

    def __init__(self, channel: Channel, writers: int, readers: int) -> None:
        self.channel = channel
        self.parts = [SerialQueue(part, writers) for part in parts(channel, readers)]

    def fill(self) -> float:
        return sum(part.fill() for part in self.parts) / len(self.parts)

    @property
    def moved(self) -> int:
        return max(part.moved for part in self.parts)

    def state_dict(self) -> State:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: State) -> None:
        for part, saved in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(saved)


class DividedWriter:
    """Write end of a divided queue (an ``api.PartsWriter``)."""

    def __init__(self, queue: DividedQueue, writers: Sequence[SerialWriter]) -> None:
        self.channel, self.writers = queue.channel, writers
        spec, unit = self.channel.spec, self.channel.divided
        self._cuts = {name: bounds(f.shape[0], len(writers), unit) for name, f in spec.items()}

    def ready(self) -> bool:
        return all(writer.ready() for writer in self.writers)

    def put(self, items: Arrays, versions: Sequence[int]) -> None:
        check_item(self.channel, items)
        for k, (writer, version) in enumerate(zip(self.writers, versions, strict=True)):
            writer.put({name: items[name][slice(*cuts[k])] for name, cuts in self._cuts.items()}, version)

    def put_part(self, reader: int, items: Arrays, version: int = 0) -> None:
        self.writers[reader].put(items, version)


class DividedParams:
    """Parameters of which each writer publishes a part."""

    def __init__(self, channel: Channel, writers: int) -> None:
        self.channel = channel
        self.parts = [SerialParams(part) for part in parts(channel, writers)]

    @property
    def version(self) -> int:
        return min(part.version for part in self.parts)

    def published(self) -> Tensors:
        """The latest parameters."""
        return views(torch.cat([part.published()[PART] for part in self.parts]), self.channel.spec)

    def state_dict(self) -> State:
        """``tensors``: the latest whole, for whoever wants the policy; ``parts``: what a run goes on from."""
        return {"version": self.version, "tensors": self.published(), "parts": [p.state_dict() for p in self.parts]}

    def load_state_dict(self, state: State) -> None:
        for part, saved in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(saved)


class DividedParamsReader(SerialParamsReader):
    """Read end of parameters in parts (an ``api.PartsReader``)."""

    def __init__(self, store: DividedParams) -> None:
        self.whole = store
        self.seen, self.reads = 0, 0
        self.versions = (0,) * len(store.parts)

    def ready(self) -> bool:
        return all(part.kept for part in self.whole.parts)

    def latest(self, newer_than: int = -1) -> tuple[int, Tensors] | None:
        spec = self.whole.channel.spec
        version = self.fetch(whole := torch.zeros(spec_size(spec)), newer_than)
        return None if version is None else (version, views(whole, spec))

    def fetch(self, into: torch.Tensor, newer_than: int = -1) -> int | None:
        if not self.ready():
            raise Deadlock(f"no version on channel '{self.whole.channel.name}'")
        versions = tuple(part.kept[0][0] for part in self.whole.parts)
        if versions == self.versions and min(versions) <= newer_than:
            return None
        self.versions = versions
        torch.cat([part.kept[0][1][PART] for part in self.whole.parts], out=into)
        return min(versions)

    def newest(self) -> int:
        return self.whole.version
