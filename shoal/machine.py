"""The machine that a process is on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from shoal.types import Values


def cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def hardware() -> Values:
    import psutil
    import torch

    out: Values = {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": cores(),
        "memory": psutil.virtual_memory().total,
    }
    if torch.cuda.is_available():
        out["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return out


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
