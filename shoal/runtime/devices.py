"""Check that this machine has the devices that a program asks for."""

from __future__ import annotations

import torch

from shoal.api import UsageError
from shoal.program import Program


def check_devices(program: Program) -> None:
    """Raise UsageError for a role whose CUDA device PyTorch cannot find here."""
    for role in program.roles:
        kind, _, index = role.device.partition(":")
        seen = torch.cuda.device_count() if kind == "cuda" else 0
        if kind == "cuda" and int(index or 0) >= seen:
            found = f"cuda:0 to cuda:{seen - 1}" if seen > 1 else "cuda:0" if seen else "no CUDA GPU"
            raise UsageError(
                f"role '{role.name}' expects the device {role.device}, but PyTorch {torch.__version__} finds {found} "
                "on this machine (--device cpu does without)"
            )
