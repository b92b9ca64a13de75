"""The order of an image's bytes in memory: convolutions are fastest with the channels of a pixel side by side."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor


def channels_last(x: Tensor) -> Tensor:
    """Images [N, C, H, W] with the channels last in memory. Stacks of four frames of bytes on the CPU take 1 to 2 us
    each (84x84) instead of torch's 13."""
    if not _readable(x) or x.dtype != torch.uint8 or x.shape[1] != 4 or not x.is_contiguous():
        return x.contiguous(memory_format=torch.channels_last)
    n, channels, h, w = x.shape
    out = torch.empty_like(x, memory_format=torch.channels_last)
    pixels = out.permute(0, 2, 3, 1).view(n, h * w, channels).numpy().view(np.uint32)
    compiled()(x.view(n, channels, h * w).numpy(), pixels[..., 0])
    return out


def _readable(x: Tensor) -> bool:
    """Whether the bytes are at hand, and nobody traces, exports or compiles."""
    return x.device.type == "cpu" and type(x) is Tensor and not torch.jit.is_tracing() and sys.byteorder == "little"


@functools.cache
def compiled() -> Callable[[np.ndarray, np.ndarray], None]:
    """``_interleave`` by numba, which is imported here: most processes that import this module do not need it."""
    import numba

    kernel: Callable[[np.ndarray, np.ndarray], None] = numba.njit(nogil=True, cache=True)(_interleave)
    kernel(np.zeros((1, 4, 1), np.uint8), np.zeros((1, 1), np.uint32))
    return kernel


def _interleave(frames: Any, out: Any) -> None:
    """frames: bytes [N, 4, P]; out: [N, P], one number for the four bytes of a pixel."""
    for i in range(frames.shape[0]):
        a, b, c, d = frames[i, 0], frames[i, 1], frames[i, 2], frames[i, 3]
        for j in range(frames.shape[2]):
            low = np.uint32(a[j]) | (np.uint32(b[j]) << np.uint32(8))
            out[i, j] = low | (np.uint32(c[j]) << np.uint32(16)) | (np.uint32(d[j]) << np.uint32(24))
