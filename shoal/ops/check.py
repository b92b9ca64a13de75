"""Cheap argument checks: shapes and dtypes only, never values (no device synchronisation)."""

from __future__ import annotations

import torch
from torch import Tensor


def same_shape(where: str, **tensors: Tensor) -> None:
    """Raise ValueError unless all tensors have the shape of the first one."""
    (first, reference), *rest = tensors.items()
    for name, tensor in rest:
        if tensor.shape != reference.shape:
            raise ValueError(
                f"{where}: expected {name} of shape {tuple(reference.shape)} (as {first}), found {tuple(tensor.shape)}"
            )


def time_major(where: str, cut: Tensor, **tensors: Tensor) -> None:
    """Raise ValueError unless ``cut`` is bool and everything has one shape ``[T, ...]`` with ``T >= 1``."""
    if cut.dtype != torch.bool:
        raise ValueError(f"{where}: expected cut of dtype torch.bool, found {cut.dtype}")
    if cut.ndim == 0 or cut.shape[0] == 0:
        raise ValueError(f"{where}: expected shapes [T, B] with T >= 1, found cut of shape {tuple(cut.shape)}")
    same_shape(where, **tensors, cut=cut)


def shape(where: str, name: str, tensor: Tensor, expected: tuple[int, ...]) -> None:
    """Raise ValueError unless ``tensor`` has the shape ``expected``."""
    if tensor.shape != expected:
        raise ValueError(f"{where}: expected {name} of shape {tuple(expected)}, found {tuple(tensor.shape)}")


def values(where: str, name: str, tensor: Tensor, rows: Tensor) -> None:
    """Raise ValueError unless ``tensor`` has one more axis, the last, than ``rows``: a value of each action."""
    if tensor.shape[:-1] != rows.shape:
        found = tuple(tensor.shape[:-1])
        raise ValueError(f"{where}: expected {name} without its last axis of shape {tuple(rows.shape)}, found {found}")


def in_range(where: str, name: str, value: float, low: float, high: float) -> None:
    """Raise ValueError unless ``low <= value <= high``."""
    if not low <= value <= high:
        raise ValueError(f"{where}: expected {name} in [{low}, {high}], found {value}")
