"""Control of gradients through networks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def without_gradients(nets: nn.Module) -> Iterator[None]:
    """Disable gradients of the parameters of ``nets`` inside the block, but not of its inputs. A policy that ascends a
    critic (Silver et al. 2014, equation 9; Haarnoja et al. 2018, equation 7) must not change the critic."""
    learn = [p for p in nets.parameters() if p.requires_grad]
    for p in learn:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in learn:
            p.requires_grad_(True)
