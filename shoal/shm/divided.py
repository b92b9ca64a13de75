"""The ends of divided channels that have to do with all parts, over the rings and stores of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from shoal import api
from shoal.program import Channel
from shoal.shm import store
from shoal.shm.arena import Arena
from shoal.shm.layout import Plan, StoreLayout
from shoal.shm.ring import Producer, coerce
from shoal.shm.session import Session
from shoal.shm.store import StoreReader


class PartsProducer:
    """The write end of a divided queue (an ``api.PartsWriter``)."""

    def __init__(self, channel: Channel, producers: Sequence[Producer]) -> None:
        self._channel, self._producers = channel, producers
        self._cuts = {name: api.bounds(f.shape[0], len(producers), channel.divided) for name, f in channel.spec.items()}
        self._like = {name: np.empty(f.shape, f.dtype) for name, f in channel.spec.items()}

    def ready(self) -> bool:
        return all(producer.ready() for producer in self._producers)

    def put(self, items: api.Arrays, versions: Sequence[int]) -> None:
        """Copy the parts of one item in; blocks while the ring of one of them is full."""
        whole = {name: coerce(self._channel.name, name, items.get(name), like) for name, like in self._like.items()}
        for producer in self._producers:
            producer.reserve()  # all wait before one writes: who is stopped meanwhile has sent nothing
        for k, (producer, version) in enumerate(zip(self._producers, versions, strict=True)):
            producer.put({name: whole[name][slice(*cuts[k])] for name, cuts in self._cuts.items()}, version)

    def put_part(self, reader: int, items: api.Arrays, version: int = 0) -> None:
        """Copy the part of one reader alone in; blocks while its ring is full."""
        self._producers[reader].put(items, version)


class PartsConsumer:
    """The read end of parameters in parts (an ``api.PartsReader``): ``latest`` fills the same private tensors each
    time."""

    def __init__(self, session: Session, channel: Channel, layouts: Sequence[StoreLayout], reader: int) -> None:
        self._readers = [StoreReader(session, layout, reader) for layout in layouts]
        self._own = torch.zeros(api.spec_size(channel.spec))
        self._tensors = api.views(self._own, channel.spec)
        self._cuts = [slice(*cut) for cut in api.bounds(len(self._own), len(layouts), channel.divided)]
        self.versions = (0,) * len(layouts)

    def ready(self) -> bool:
        return all(reader.ready() for reader in self._readers)

    def latest(self, newer_than: int = -1) -> tuple[int, api.Tensors] | None:
        """The latest parts and the version of the oldest; None if none has changed since, and that is not newer."""
        version = self.fetch(self._own, newer_than)
        return None if version is None else (version, self._tensors)

    def fetch(self, into: torch.Tensor, newer_than: int = -1) -> int | None:
        """As ``latest``, but copied into the vector ``into``; see ``api.PartsReader``."""
        for reader in self._readers:
            if not reader.ready():
                reader.wait()
        if min(self.versions) <= newer_than and tuple(reader.newest() for reader in self._readers) == self.versions:
            return None
        flat = into.numpy()
        pairs = zip(self._readers, self._cuts, strict=True)
        self.versions = tuple(reader.copy(flat[cut].view(np.uint8)) for reader, cut in pairs)
        return min(self.versions)

    def newest(self) -> int:
        return min(reader.newest() for reader in self._readers)


def read(arena: Arena, plan: Plan) -> dict[str, api.Tensors]:
    """Private copies of the parameters last published in every params channel that has some."""
    return join(plan, {name: store.read(arena, layout) for name, layout in plan.stores.items()})


def join(plan: Plan, read: Mapping[str, api.Tensors | None]) -> dict[str, api.Tensors]:
    """The parameters of whole channels, given those of each store; without those of which some are missing."""
    found = dict(read)
    for name, (channel, parts) in plan.divided.items():
        if channel.kind == "params":
            tensors = [found.pop(part, None) for part in parts]
            whole = [part[api.PART] for part in tensors if part is not None]
            found[name] = api.views(torch.cat(whole), channel.spec) if len(whole) == len(parts) else None
    return {name: tensors for name, tensors in found.items() if tensors is not None}
