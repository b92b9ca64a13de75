"""The precision of forward passes: convolutional torsos may run in bfloat16, heads and recurrent cores never do.

Autocast with channels-last images is at most a fifth slower than the fastest alternative (bfloat16 parameters), and
keeps the parameters in float32. docs/architecture.md has the figures.
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
    """Return the unit of this CPU that multiplies bfloat16: ``AMX`` (Intel's tiles), ``AVX512_BF16`` (AMD from Zen 4,
    some of Intel's), or "" for none."""
    info = Path("/proc/cpuinfo")
    flags = info.read_text().split() if info.exists() else []
    return next((name for name, flag in (("AMX", "amx_bf16"), ("AVX512_BF16", "avx512_bf16")) if flag in flags), "")


def supports_bf16(device: torch.device | str) -> bool:
    """Return True if bfloat16 is fast (not only possible) on ``device``."""
    kind = torch.device(device).type
    if kind == "cuda":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return kind == "cpu" and bool(bf16_unit())


def resolve(
    precision: Precision, device: torch.device | str = "cpu", net: nn.Module | None = None
) -> Literal["fp32", "bf16"]:
    """Return the precision that ``precision`` means on ``device``. ``auto`` is bf16 on a device where it is fast, if
    ``net`` (where given) contains a convolution, because casts cost small MLPs more than they gain."""
    if precision not in get_args(Precision):
        raise UsageError(f"precision must be one of {', '.join(get_args(Precision))}, not {precision!r}")
    if precision != "auto":
        return precision
    convolves = net is None or any(isinstance(m, nn.Conv2d) for m in net.modules())
    return "bf16" if convolves and supports_bf16(device) else "fp32"


def autocast(
    precision: Precision, device: torch.device | str = "cpu", net: nn.Module | None = None
) -> AbstractContextManager[None]:
    """Return a context that runs a forward pass (not the backward pass) in ``precision``: ``with autocast("auto",
    device, net): ...``.

    In a hot loop, call ``resolve`` once and pass its result.
    """
    enabled = resolve(precision, device, net) == "bf16"
    return torch.autocast(torch.device(device).type, dtype=torch.bfloat16, enabled=enabled)


def full(device: torch.device) -> AbstractContextManager[None]:
    """Return a context without autocast, for heads and recurrent cores."""
    if not torch.is_autocast_enabled(device.type):
        return nullcontext()  # cheaper than autocast, which an actor would enter three times per step
    return torch.autocast(device.type, enabled=False)


def compute_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of a convolution on ``device`` under the current autocast setting."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else torch.float32


def inferring(nets: M) -> M:
    """Prepare ``nets`` for inference in place (``rounded`` weights, no gradients, eval mode) and return it."""
    return rounded(nets.requires_grad_(False).eval())
