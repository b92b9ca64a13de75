"""The process's own random generators, for environments and networks that draw from them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from shoal.api import State


def seed(number: int) -> None:
    """Seed all of them; torch and NumPy take 64 and 32 bits."""
    torch.manual_seed(number % 2**64)
    np.random.seed(number % 2**32)
    random.seed(number)


def state() -> State:
    """The states that ``restore`` takes."""
    numpy: Any = np.random.get_state(legacy=False)
    return {"torch": torch.get_rng_state(), "numpy": numpy, "python": random.getstate()}


def restore(state: State) -> None:
    """Put them where ``state`` was taken."""
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])
