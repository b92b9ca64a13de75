"""The memory layout of images. Convolutions are fastest with the channels of a pixel side by side (channels-last), and
with many channels."""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor

from shoal import fast
from shoal.jit import jit_late


def channels_last(x: Tensor) -> Tensor:
    """Return images [N, C, H, W] stored channels-last. Compiled for stacks of four frames of bytes on the CPU."""
    if not readable(x) or x.dtype != torch.uint8 or x.shape[1] != 4 or not x.is_contiguous():
        return x.contiguous(memory_format=torch.channels_last)
    n, channels, h, w = x.shape
    out = torch.empty_like(x, memory_format=torch.channels_last)
    pixels = out.permute(0, 2, 3, 1).view(n, h * w, channels).numpy().view(np.uint32)
    _interleave(x.view(n, channels, h * w).numpy(), pixels[..., 0])
    return out


def unshuffled(x: Tensor, side: int) -> Tensor:
    """Return ``pixel_unshuffle`` of images [N, C, H, W]: [N, C * side * side, H / side, W / side] stored channels-last,
    with one pixel for each block of ``side`` x ``side``. Compiled for blocks of 4 x 4 bytes on the CPU."""
    n, channels, h, w = x.shape
    if not readable(x) or x.dtype != torch.uint8 or side != 4 or not x.is_contiguous():
        # F.pixel_unshuffle would return an empty batch unchanged
        blocks = x.reshape(n, channels, h // side, side, w // side, side).permute(0, 2, 4, 1, 3, 5)
        return blocks.reshape(n, h // side, w // side, channels * side * side).permute(0, 3, 1, 2)
    out = torch.empty((n, 16 * channels, h // 4, w // 4), dtype=x.dtype, memory_format=torch.channels_last)
    rows = x.numpy().view(np.uint32).reshape(n, channels, h // 4, 4, w // 4)
    _gather_blocks(rows, out.permute(0, 2, 3, 1).numpy().view(np.uint32))
    return out


def readable(x: Tensor) -> bool:
    """Return True if the tensor's memory can be read: it is not being traced, exported or compiled."""
    if not fast.ENABLED:
        return False
    recorded = torch._C._get_tracing_state() is not None or torch.compiler.is_compiling()
    return x.device.type == "cpu" and type(x) is Tensor and not recorded and sys.byteorder == "little"


def preload() -> None:
    """Load numba and both functions below, before many processes are forked from this one."""
    _interleave(np.zeros((1, 4, 1), np.uint8), np.zeros((1, 1), np.uint32))
    _gather_blocks(np.zeros((1, 1, 1, 4, 1), np.uint32), np.zeros((1, 1, 1, 4), np.uint32))


@jit_late
def _interleave(frames: np.ndarray, out: np.ndarray) -> None:
    """Interleave frames. frames: bytes [N, 4, P]; out: [N, P], one integer for the four bytes of a pixel."""
    for i in range(frames.shape[0]):
        a, b, c, d = frames[i, 0], frames[i, 1], frames[i, 2], frames[i, 3]
        for j in range(frames.shape[2]):
            low = np.uint32(a[j]) | (np.uint32(b[j]) << np.uint32(8))
            out[i, j] = low | (np.uint32(c[j]) << np.uint32(16)) | (np.uint32(d[j]) << np.uint32(24))


@jit_late
def _gather_blocks(rows: np.ndarray, out: np.ndarray) -> None:
    """Gather blocks of pixels. rows: [N, C, H / 4, 4, W / 4], one integer for four adjacent bytes; out: [N, H / 4, W /
    4, C * 4]."""
    n, channels, height, lines, width = rows.shape
    for i in range(n):
        for y in range(height):
            for c in range(channels):
                for line in range(lines):
                    row = rows[i, c, y, line]
                    for x in range(width):
                        out[i, y, x, lines * c + line] = row[x]
