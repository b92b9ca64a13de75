"""How a replay table lies in memory: the columns of a stored row, and the arrays of the samplers."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from shoal.api import Field, Spec, UsageError, WiringError, is_observation
from shoal.registry import Registry
from shoal.replay.own_sampler import OwnSampler, own_arrays

Arrays = dict[str, tuple[tuple[int, ...], str]]  # name -> (shape, dtype)

STREAM_FIELDS = ("reward", "terminated", "truncated", "valid", "first")  # every unroll has these


class Options:
    """What every kind of table is told, and allocates; the kinds are ``TableOptions`` and ``SequenceOptions``."""

    sampler: str

    def check(self, what: str, *whole: str, **choices: tuple[str, ...]) -> None:
        """WiringError unless all counts, those named by ``whole`` too, are at least 1, and names one of their
        ``choices``."""
        for name in ("capacity", *whole, "n_step", "stack", "batches"):
            if getattr(self, name) < 1:
                raise WiringError(f"{what} needs {name} >= 1, got {getattr(self, name)}.")
        try:
            SAMPLERS.find(self.sampler)
        except UsageError as error:
            raise WiringError(str(error)) from error
        all_choices = {"pad": ("repeat", "zero"), "initial": ("max", "given"), **choices}
        for name, expected in all_choices.items():
            if getattr(self, name) not in expected:
                raise WiringError(f"{what} has no {name} {getattr(self, name)!r}: expected one of {expected}.")

    def arrays(self, unroll: Spec, writers: int = 1) -> Arrays:
        """Name, shape and dtype of everything the table allocates."""
        raise NotImplementedError

    def nbytes(self, unroll: Spec, writers: int = 1) -> int:
        """Bytes the table allocates, exactly; the batches it returns are extra."""
        arrays = self.arrays(unroll, writers).values()
        return sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in arrays)

    def common_arrays(self, layout: Layout, rows: int, items: int, writers: int, counters: int) -> Arrays:
        """The data of rows, counters, the state of each stream, room for one unroll, and a sampler of ``items``."""
        streams, unroll = (writers * layout.envs,), (layout.steps * layout.envs,)
        return {
            "rows/data": ((rows, layout.row_bytes), "uint8"),
            "counters": ((counters,), "int64"),
            "scalars": ((1,), "float64"),
            "rng": ((4,), "uint64"),
            **each("streams", streams, dict.fromkeys(("pushed", "held", "length"), "int64")),
            **each("streams", streams, dict.fromkeys(("known", "ended"), "uint8")),
            "streams/generation": ((writers,), "int64"),
            **each("scratch", unroll, dict.fromkeys(("reward", "q_taken", "q_max", "final_q"), "float32")),
            **each("scratch", unroll, dict.fromkeys(("terminated", "truncated", "valid", "first"), "bool")),
            **each("scratch", unroll, dict.fromkeys(("row_of", "final_of"), "int32")),
            **{f"sampler/{name}": array for name, array in SAMPLERS.find(self.sampler).arrays(items).items()},
        }


@dataclass(frozen=True)
class Column:
    """Where one field of a step lies inside a stored row."""

    name: str
    offset: int
    nbytes: int
    shape: tuple[int, ...]  # of one step of one environment
    dtype: str


@dataclass(frozen=True)
class Layout:
    """How unrolls of one spec become rows."""

    steps: int
    envs: int
    obs: tuple[Column, ...]
    rest: tuple[Column, ...]  # action and extras, returned as they are for the item's first row
    row_bytes: int
    same_step: bool
    final_q: bool  # same_step only: ``final/q_max`` is there


def steps_and_envs(unroll: Spec) -> tuple[int, int]:
    """Of an unroll ``[T, E]``. Raises WiringError where it is none."""
    if "reward" not in unroll:
        raise WiringError("a replay table needs the fields of a stream (roles.actor.unroll_spec), it has no 'reward'")
    steps, envs = unroll["reward"].shape[:2]
    return steps, envs


def make_layout(unroll: Spec, given: bool) -> Layout:
    """Check the spec of an unroll and lay out its row. ``given``: ``q_taken`` and ``q_max`` are consumed."""
    need = STREAM_FIELDS + (("q_taken", "q_max") if given else ())
    missing = [name for name in (*need, "action") if name not in unroll]
    names = [name for name in unroll if is_observation(name)]
    same_step = any(name.startswith("final/") for name in unroll)
    if same_step:
        missing += [f"final/{name}" for name in names if f"final/{name}" not in unroll]
    if not names:
        missing.append("obs")
    if missing:
        raise WiringError(f"A replay table needs the fields {missing}, the unroll has {sorted(unroll)}.")
    steps, envs = unroll["reward"].shape[:2]
    for name, f in unroll.items():
        if f.shape[:2] != (steps, envs):
            raise WiringError(f"Field {name!r} has shape {f.shape}, expected it to start with [{steps}, {envs}].")
    for name in names if same_step else ():
        if (unroll[name].shape, unroll[name].dtype) != (unroll[f"final/{name}"].shape, unroll[f"final/{name}"].dtype):
            raise WiringError(f"Field 'final/{name}' must have the shape and dtype of {name!r}.")
    rest = [name for name in unroll if name not in need and not is_observation(name) and not name.startswith("final/")]
    columns: dict[str, Column] = {}
    offset = 0
    for name in names + rest:
        f = unroll[name]
        step = Field(f.shape[2:], f.dtype)
        columns[name] = Column(name, offset, step.nbytes, step.shape, step.dtype)
        offset += step.nbytes
    return Layout(
        steps,
        envs,
        tuple(columns[name] for name in names),
        tuple(columns[name] for name in rest),
        -(-offset // 8) * 8,
        same_step,
        "final/q_max" in unroll,
    )


def tree_offsets(rows: int) -> np.ndarray:
    """Start of each level of an 8-ary tree over ``rows`` leaves (leaves first), and the total length."""
    out, size = [0], -(-rows // 8) * 8
    while True:
        out.append(out[-1] + size)
        if size == 8:
            break
        size = -(-(size // 8) // 8) * 8
    return np.array(out, np.int64)


def is_frame(column: Column) -> bool:
    """Return whether its steps are single frames [1, H, W], of which a stack can be shown."""
    return len(column.shape) == 3 and column.shape[0] == 1


def shown(column: Column, stack: int) -> tuple[int, ...]:
    """Shape of one observation as it is sampled: of a frame, a stack of them."""
    return (stack, *column.shape[1:]) if stack > 1 and is_frame(column) else column.shape


def each(group: str, shape: tuple[int, ...], dtypes: Mapping[str, str]) -> Arrays:
    """Arrays ``group/NAME`` of one shape."""
    return {f"{group}/{name}": (shape, dtype) for name, dtype in dtypes.items()}


def tree_arrays(items: int) -> Arrays:
    """Return the arrays of an 8-ary tree over the items."""
    offsets = tree_offsets(items)
    return {"tree": ((int(offsets[-1]),), "float64"), "offsets": (offsets.shape, "int64")}


def heap_arrays(items: int) -> Arrays:
    """Return the arrays of a binary heap of the items."""
    of_items = {"heap": "int32", "where": "int32", "weight": "float32"}
    return {**{name: ((items,), dtype) for name, dtype in of_items.items()}, "counts": ((2,), "int64")}


@dataclass(frozen=True)
class SamplerKind:
    """What is known of a sampler before a table has one. arrays: name, shape and dtype of what it needs for so many
    items; load: returns its class; weighed: whether it draws in proportion to weights, of which it tells the sum."""

    arrays: Callable[[int], Arrays]
    load: Callable[[], Any]
    weighed: bool = False


def _shoals(cls: str) -> Callable[[], Any]:
    """Return what loads a class of ``samplers``, and with it numba."""
    return lambda: getattr(importlib.import_module("shoal.replay.samplers"), cls)


SAMPLERS = Registry(
    "sampler",
    {
        "uniform": SamplerKind(lambda items: {}, _shoals("Uniform"), weighed=True),
        "proportional": SamplerKind(tree_arrays, _shoals("Proportional"), weighed=True),
        "rank": SamplerKind(heap_arrays, _shoals("Rank")),
        "greedy": SamplerKind(tree_arrays, _shoals("Greedy")),
    },
    methods=("insert", "update", "remove", "draw"),
    wrap=lambda cls: SamplerKind(partial(own_arrays, cls), lambda: partial(OwnSampler, cls), hasattr(cls, "mass")),
)
