"""How far a result in floating point may lie from its exact value, derived from the number of terms in its sums.

A sum in float32 depends on the order of its terms, and that order on the CPU's vectors and the library's blocks. The
bound below holds for every order, so a test that uses it passes or fails alike on every machine."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

Array = Tensor | np.ndarray
Size = TypeVar("Size", Tensor, np.ndarray, float)


def rounding(terms: int, magnitude: Size, dtype: torch.dtype = torch.float32) -> Size:
    """Bound of the rounding error of a sum of ``terms`` products, added in any order, with or without fused
    multiply-adds: ``terms * u * magnitude`` with the unit roundoff ``u`` (2^-24 in float32) and the sum of the
    products' absolute values as ``magnitude``. Higham (2002), Accuracy and Stability of Numerical Algorithms, section
    3.1, to first order in ``u``.

    Of a chain of sums, ``terms`` is the total along the longest path, and ``magnitude`` the same chain computed with
    absolute values."""
    return terms * torch.finfo(dtype).eps / 2 * magnitude


def assert_rounded(found: Array, exact: Array, magnitude: Array | float, terms: int, name: str = "") -> None:
    """Assert that ``found`` (its dtype says how exact it may be) is ``exact`` (float64) up to ``rounding`` of both."""
    dtype = found.dtype if isinstance(found, Tensor) else torch.from_numpy(np.empty(0, found.dtype)).dtype
    result, reference, size = (
        np.asarray(x.detach() if isinstance(x, Tensor) else x, np.float64) for x in (found, exact, magnitude)
    )
    bound = rounding(terms, size, dtype) + rounding(terms, size, torch.float64)
    assert result.shape == reference.shape, f"{name}: shape {result.shape}, expected {reference.shape}"
    error = np.abs(result - reference)
    assert (error <= bound).all(), f"{name}: off by up to {(error / bound).max():.3g} times the bound of {terms} terms"
