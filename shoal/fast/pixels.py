"""The order of an image's bytes in memory: convolutions are fastest with the channels of a pixel side by side, and the
more channels the better."""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor

from shoal import fast
from shoal.jit import jit_late


def channels_last(x: Tensor) -> Tensor:
    """Images [N, C, H, W] with the channels last in memory; compiled for stacks of four frames of bytes on the CPU."""
    if not readable(x) or x.dtype != torch.uint8 or x.shape[1] != 4 or not x.is_contiguous():
        return x.contiguous(memory_format=torch.channels_last)
    n, channels, h, w = x.shape
    out = torch.empty_like(x, memory_format=torch.channels_last)
    pixels = out.permute(0, 2, 3, 1).view(n, h * w, channels).numpy().view(np.uint32)
    _interleave(x.view(n, channels, h * w).numpy(), pixels[..., 0])
    return out


def unshuffled(x: Tensor, side: int) -> Tensor:
    """``pixel_unshuffle``: images [N, C, H, W] as [N, C * side * side, H / side, W / side], with the channels last in
    memory: a pixel for each block of ``side`` x ``side``; compiled for blocks of 4 x 4 bytes on the CPU."""
    n, channels, h, w = x.shape
    if not readable(x) or x.dtype != torch.uint8 or side != 4 or not x.is_contiguous():
        # not F.pixel_unshuffle, which leaves an empty batch as it is
        blocks = x.reshape(n, channels, h // side, side, w // side, side).permute(0, 2, 4, 1, 3, 5)
        return blocks.reshape(n, h // side, w // side, channels * side * side).permute(0, 3, 1, 2)
    out = torch.empty((n, 16 * channels, h // 4, w // 4), dtype=x.dtype, memory_format=torch.channels_last)
    rows = x.numpy().view(np.uint32).reshape(n, channels, h // 4, 4, w // 4)
    _gather_blocks(rows, out.permute(0, 2, 3, 1).numpy().view(np.uint32))
    return out


def readable(x: Tensor) -> bool:
    """Return whether the bytes are at hand, and nobody traces, exports or compiles."""
    if not fast.ENABLED:
        return False
    recorded = torch._C._get_tracing_state() is not None or torch.compiler.is_compiling()
    return x.device.type == "cpu" and type(x) is Tensor and not recorded and sys.byteorder == "little"


def preload() -> None:
    """Load numba and both functions below, where many processes are forked from this one."""
    _interleave(np.zeros((1, 4, 1), np.uint8), np.zeros((1, 1), np.uint32))
    _gather_blocks(np.zeros((1, 1, 1, 4, 1), np.uint32), np.zeros((1, 1, 1, 4), np.uint32))


@jit_late
def _interleave(frames: np.ndarray, out: np.ndarray) -> None:
    """frames: bytes [N, 4, P]; out: [N, P], one number for the four bytes of a pixel."""
    for i in range(frames.shape[0]):
        a, b, c, d = frames[i, 0], frames[i, 1], frames[i, 2], frames[i, 3]
        for j in range(frames.shape[2]):
            low = np.uint32(a[j]) | (np.uint32(b[j]) << np.uint32(8))
            out[i, j] = low | (np.uint32(c[j]) << np.uint32(16)) | (np.uint32(d[j]) << np.uint32(24))


@jit_late
def _gather_blocks(rows: np.ndarray, out: np.ndarray) -> None:
    """rows: [N, C, H / 4, 4, W / 4], one number for four bytes side by side; out: [N, H / 4, W / 4, C * 4]."""
    n, channels, height, lines, width = rows.shape
    for i in range(n):
        for y in range(height):
            for c in range(channels):
                for line in range(lines):
                    row = rows[i, c, y, line]
                    for x in range(width):
                        out[i, y, x, lines * c + line] = row[x]
