"""A batch of transitions with three actions, as a replay table draws them."""

from __future__ import annotations

import torch

from shoal.api import Action, Batch, EnvSpec, Observation

ENV = EnvSpec("test", {"obs": Observation((4,), "float32")}, Action("discrete", (3,)))
ROWS = 16


def batch(seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    items = {
        "obs": torch.randn(ROWS, 4, generator=generator), "next/obs": torch.randn(ROWS, 4, generator=generator),
        "action": torch.randint(0, 3, (ROWS,), generator=generator),
        "reward": 3 * torch.randn(ROWS, generator=generator), "discount": torch.full((ROWS,), 0.9),
    }  # fmt: skip
    return Batch(items, torch.arange(ROWS), torch.rand(ROWS, generator=generator) / ROWS + 0.01, 100)
