"""What a program or an environment may have set for its own numbers, put aside while Shoal computes in its process."""

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


class TheirSettings:
    """A context for calls of an environment: what it sets of PyTorch for the whole process, whether gradients are
    recorded and the default dtype, is in force within the context alone, and again in the next one. Otherwise a learner
    of the same process would have it, too."""

    def __init__(self) -> None:
        self._theirs: tuple[bool, torch.dtype] | None = None

    def __enter__(self) -> None:
        self._ours = _of_torch()
        if self._theirs is not None:
            _set_torch(*self._theirs)

    def __exit__(self, *_: object) -> None:
        found = _of_torch()
        self._theirs = None
        if found != self._ours:
            self._theirs = found
            _set_torch(*self._ours)


def _of_torch() -> tuple[bool, torch.dtype]:
    return torch.is_grad_enabled(), torch.get_default_dtype()


def _set_torch(gradients: bool, dtype: torch.dtype) -> None:
    torch.set_grad_enabled(gradients)
    torch.set_default_dtype(dtype)
