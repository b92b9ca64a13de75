"""Numbers in an environment's ``info`` at the end of an episode, which become metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

MAX_NAME_LENGTH = 100  # characters of a metric's name


def numbers(info: object) -> dict[str, float]:
    """Return the finite numbers and truth values of one environment's ``info``. Nested values and arrays are left
    out."""
    if not isinstance(info, Mapping):
        return {}
    out = {}
    for key, value in info.items():
        if isinstance(value, (float, np.floating, np.integer, np.bool_)) or (
            isinstance(value, int) and abs(value) < 2**63
        ):
            out[name_of(key)] = float(value)
    return {key: value for key, value in out.items() if math.isfinite(value)}


def name_of(key: object) -> str:
    """Return the metric's name for a key of ``info``: one line of at most ``MAX_NAME_LENGTH`` characters."""
    text = " ".join(str(key).split()) or "unnamed"
    return "".join(c if c.isprintable() else "?" for c in text[:MAX_NAME_LENGTH])


def episode_numbers(info: Mapping[str, Any], rows: np.ndarray, num: int) -> list[dict[str, float]]:
    """Return a dict of numbers for each row in ``rows`` (integers ``[N]``) whose episode has ended, from the ``info``
    of a vector of ``num`` environments. An array ``key`` counts where its mask ``_key`` is True, or everywhere without
    a mask. If an environment has reset already, the numbers of its last step are in ``final_info``."""
    last = info.get("final_info", info)
    # Gymnasium before 1.0 has dicts in an object array
    if isinstance(last, np.ndarray) and last.shape == (num,) and last.dtype == object:
        return [numbers(last[row]) for row in rows.tolist()]
    if not isinstance(last, Mapping):  # a user's own number with this key
        last = info
    out: list[dict[str, float]] = [{} for _ in range(len(rows))]
    for key, values in last.items():
        if not isinstance(key, str) or key.startswith("_") or not isinstance(values, np.ndarray):
            continue
        if values.shape != (num,) or values.dtype.kind not in "biuf":
            continue
        mask = last.get(f"_{key}")
        for episode, row in zip(out, rows.tolist(), strict=True):
            value = float(values[row])
            if math.isfinite(value) and (mask is None or mask[row]):
                episode[name_of(key)] = value
    return out
