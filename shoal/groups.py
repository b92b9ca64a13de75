"""Channels between equals: the ends of ``reduce``, ``board`` and ``shared`` channels; and ends of all parts of divided
channels. Offered by ``api`` as well."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from shoal.arrays import Arrays, Spec, Tensors

if TYPE_CHECKING:
    import torch

__all__ = ["GROUPS", "Board", "PartsReader", "PartsWriter", "Reducer", "Rows", "Rule", "SharedParams"]

GROUPS = ("reduce", "board", "shared")  # the kinds of channels below


class Reducer(Protocol):
    """One replica's end of a ``reduce`` channel: every replica of a role puts an item, and then gets the sum of all
    (or their mean), field by field, added in the order of the replicas: the result is bitwise equal everywhere.

    Puts and gets take turns. A get waits until every replica has put, so that a step may get and then put, but never
    put and then get. Nobody may leave a round out: what ends a pass early is itself reduced.
    """

    @property
    def pending(self) -> bool:
        """Whether this replica has put an item and has not yet got the result."""

    def ready(self) -> bool:
        """Return whether the next of the two would not wait: a put always, a get once every replica has put."""

    def put(self, items: Arrays) -> None: ...
    def slot(self) -> AbstractContextManager[Arrays]:
        """Write the item in place (zero-copy); an exception inside discards it."""

    def get(self) -> Tensors:
        """The sum or mean of what every replica has put. To be read only; valid until the next get."""


class Rows(NamedTuple):
    """What stands on a board: each field [W, ...] in the order of the writers, and how many rows each of them has put
    so far (int64 [W]); the row of a writer that has put none is 0."""

    values: Arrays
    puts: np.ndarray


class Board(Protocol):
    """An end of a ``board`` channel: one small row per writer, the latest wins, everyone reads all, nobody waits."""

    def ready(self) -> bool: ...
    def put(self, row: Arrays) -> None: ...
    def get(self) -> Rows: ...


class SharedParams(Protocol):
    """A worker's end of a ``shared`` channel: parameters that all workers change in place, without a lock (Hogwild).

    Steps of two workers that meet may lose parts of each other, and a copy may show a part of a step. Only the counts
    are exact. Read ends of the channel are ``ParamsReader``s, whose versions are numbers of steps.
    """

    def ready(self) -> bool:
        """Return whether there are parameters."""

    def offer(self, params: Tensors) -> None:
        """Give the first parameters; does nothing where there are some. One worker does so when it starts."""

    def copy(self) -> tuple[int, Tensors]:
        """Return how many steps all workers have added, and the parameters: a private copy, valid until the next."""

    def add(self, gradient: Tensors, lr: float) -> int:
        """Move the parameters by the channel's rule; returns how many steps all workers have added."""


class Rule(Protocol):
    """Plain data: how a gradient moves parameters and the statistics that are shared beside them, in place."""

    def statistics(self, params: Spec) -> Spec:
        """The fields that are kept beside the parameters, at first 0."""

    def apply(self, params: Tensors, statistics: Tensors, gradient: Tensors, lr: float) -> None: ...


class PartsWriter(Protocol):
    """The write end of a divided queue. Each reader gets its part of the item, with its own of the ``versions``."""

    def ready(self) -> bool: ...
    def put(self, items: Arrays, versions: Sequence[int]) -> None:
        """Copy the parts of one item into the channel; blocks while one of its readers is full."""

    def put_part(self, reader: int, items: Arrays, version: int = 0) -> None:
        """Copy the part of one reader alone into the channel; blocks while that reader is full."""


class PartsReader(Protocol):
    """The read end of parameters that several writers publish in parts (also a ``ParamsReader``)."""

    versions: tuple[int, ...]  # of each part of what was read last

    def ready(self) -> bool: ...
    def latest(self, newer_than: int = -1) -> tuple[int, Tensors] | None: ...
    def fetch(self, into: torch.Tensor, newer_than: int = -1) -> int | None:
        """As ``latest``, but copied into the vector of all of them (``into`` [N], float32, on the CPU, whose fields lie
        where ``places`` says); returns the version alone. None: ``into`` is as it was."""

    def newest(self) -> int: ...
