"""Arrays by name, what they look like, and how many bytes they are; ``shoal.api`` offers all of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from shoal.types import State as State

if TYPE_CHECKING:  # whoever only reads the files of runs does without it
    import torch

Arrays = dict[str, np.ndarray]
Tensors: TypeAlias = "dict[str, torch.Tensor]"
UNIT = 16  # elements of float32 in a cache line
OBS = "obs"  # the observation of a plain space, and of others what their names begin with, before a slash
PART = "part"  # the field of a writer's part of divided parameters


@dataclass(frozen=True)
class Field:
    """Shape and dtype (a NumPy name) of one array of an item; ``axis``: along it a reader joins several items."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    axis: int = 1

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


Spec = Mapping[str, Field]
T = TypeVar("T")


def is_observation(name: str) -> bool:
    """Return whether a batch's array of this name is of an observation: ``obs``, or a leaf of it such as
    ``obs/camera``."""
    return name == OBS or name.startswith(f"{OBS}/")


def observations(items: Mapping[str, T], prefix: str = "") -> dict[str, T]:
    """Return the observation arrays of a batch (or the specs of its arrays), by name. ``prefix``: only the arrays whose
    names begin with it, with the prefix removed; ``next/`` selects the observations after each transition."""
    names = {name: name.removeprefix(prefix) for name in items if name.startswith(prefix)}
    return {leaf: items[name] for name, leaf in names.items() if is_observation(leaf)}


def places(spec: Spec) -> dict[str, tuple[int, int]]:
    """Return where the arrays of ``spec`` begin and end in one vector. Each begins at a multiple of ``UNIT``, after
    zeros that mean nothing: cut there, it is worked on by the same machine instructions as if it were whole."""
    out, at = {}, 0
    for name, f in spec.items():
        size = math.prod(f.shape)
        out[name] = (at, at + size)
        at += -(-size // UNIT) * UNIT
    return out


def spec_size(spec: Spec) -> int:
    """Elements of the vector that holds the arrays of ``spec``, a multiple of ``UNIT``."""
    return -(-max((end for _, end in places(spec).values()), default=0) // UNIT) * UNIT


def views(flat: torch.Tensor, spec: Spec) -> Tensors:
    """The arrays of ``spec`` as views of the vector ``flat``."""
    return {name: flat[begin:end].view(spec[name].shape) for name, (begin, end) in places(spec).items()}


def bounds(length: int, parts: int, unit: int = 1) -> list[tuple[int, int]]:
    """Return where each of ``parts`` begins and ends in ``length`` elements, cut at multiples of ``unit``: the first
    ones are longer by one unit where they do not divide evenly (as ``numpy.array_split`` cuts)."""
    each, more = divmod(-(-length // unit), parts)
    ends = [min(length, unit * (k * each + min(k, more))) for k in range(parts + 1)]
    return list(itertools.pairwise(ends))


def spec_nbytes(spec: Spec) -> int:
    """Bytes of one item of ``spec``."""
    return sum(f.nbytes for f in spec.values())
