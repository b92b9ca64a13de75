"""Arrays by name, what they look like, and how many bytes they are; ``shoal.api`` offers all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Arrays = dict[str, np.ndarray]
Tensors = dict[str, torch.Tensor]
State = dict[str, Any]  # what ``Stateful`` says of a state


@dataclass(frozen=True)
class Field:
    """Shape and dtype (a NumPy name) of one array of an item; ``axis``: along it a reader joins several items."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    axis: int = 1

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


Spec = Mapping[str, Field]


def spec_nbytes(spec: Spec) -> int:
    """Bytes of one item of ``spec``."""
    return sum(f.nbytes for f in spec.values())
