"""Where a forward pass runs in bfloat16: torsos of convolutions do, heads and recurrent cores never.

Autocast with channels-last images is within a fifth of the fastest form tried (bfloat16 parameters), and keeps the
parameters in fp32. docs/architecture.md has the figures.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Literal, TypeVar, get_args

import torch
from torch import nn

from shoal.api import UsageError
from shoal.fast.rounded import rounded

Precision = Literal["fp32", "bf16", "auto"]
M = TypeVar("M", bound=nn.Module)


@functools.cache
def bf16_unit() -> str:
    """Return what multiplies bfloat16 in this CPU: ``AMX`` (Intel's tiles), ``AVX512_BF16`` (AMD from Zen 4, some of
    Intel's), or nothing: ``""``."""
    info = Path("/proc/cpuinfo")
    flags = info.read_text().split() if info.exists() else []
    return next((name for name, flag in (("AMX", "amx_bf16"), ("AVX512_BF16", "avx512_bf16")) if flag in flags), "")


def supports_bf16(device: torch.device | str) -> bool:
    """Is bfloat16 fast (not merely possible) on ``device``?"""
    kind = torch.device(device).type
    if kind == "cuda":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return kind == "cpu" and bool(bf16_unit())


def resolve(
    precision: Precision, device: torch.device | str = "cpu", net: nn.Module | None = None
) -> Literal["fp32", "bf16"]:
    """Return what ``precision`` means here: ``auto`` is bf16 on a device that is fast at it, if ``net`` (where
    given) holds a convolution; small MLPs lose more to the casts than they gain."""
    if precision not in get_args(Precision):
        raise UsageError(f"precision must be one of {', '.join(get_args(Precision))}, not {precision!r}")
    if precision != "auto":
        return precision
    convolves = net is None or any(isinstance(m, nn.Conv2d) for m in net.modules())
    return "bf16" if convolves and supports_bf16(device) else "fp32"


def autocast(
    precision: Precision, device: torch.device | str = "cpu", net: nn.Module | None = None
) -> AbstractContextManager[None]:
    """Run a forward pass (not the backward pass) in ``precision``: ``with autocast("auto", device, net): ...``.

    In a hot loop, call ``resolve`` once and give its answer.
    """
    enabled = resolve(precision, device, net) == "bf16"
    return torch.autocast(torch.device(device).type, dtype=torch.bfloat16, enabled=enabled)


def full(device: torch.device) -> AbstractContextManager[None]:
    """No autocast inside: what heads and recurrent cores compute under."""
    if not torch.is_autocast_enabled(device.type):
        return nullcontext()  # cheaper than autocast, three times per step of an actor
    return torch.autocast(device.type, enabled=False)


def compute_dtype(device: torch.device) -> torch.dtype:
    """The dtype that autocast, if on, would give a convolution on ``device``."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else torch.float32


def inferring(nets: M) -> M:
    """``nets``, changed into a network that only infers: ``rounded``, without gradients, and in eval mode."""
    return rounded(nets.requires_grad_(False).eval())
