"""What a program may have set for its own numbers, put aside while Shoal computes in its process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def own_settings(threads: int = 0) -> Iterator[None]:
    """Within the block PyTorch and NumPy are as Shoal expects them, and afterwards as they were: gradients are recorded
    (also inside of ``no_grad`` and ``inference_mode``), new tensors are float32 and on the CPU, what overflows is no
    error of NumPy's. threads: of PyTorch's operations; 0: as many as there were."""
    dtype, before, device = torch.get_default_dtype(), torch.get_num_threads(), torch.get_default_device()
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"))
        if device.type != "cpu":  # only then: as a context it costs every call of PyTorch's a look
            stack.enter_context(torch.device("cpu"))
        try:
            torch.set_default_dtype(torch.float32)
            if threads:
                torch.set_num_threads(threads)
            yield
        finally:
            torch.set_default_dtype(dtype)
            if torch.get_num_threads() != before:
                torch.set_num_threads(before)
