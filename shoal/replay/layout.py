"""The memory layout of a replay table: the columns of a stored row, and the arrays of each sampler."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from shoal.api import Field, Spec, UsageError, WiringError, is_observation
from shoal.registry import Registry
from shoal.replay.sampler import Sampler
from shoal.replay.user_sampler import UserSampler, user_arrays

Arrays = dict[str, tuple[tuple[int, ...], str]]  # name -> (shape, dtype)

STREAM_FIELDS = ("reward", "terminated", "truncated", "valid", "first")  # every unroll has these fields


class Options:
    """Base class of the options of replay tables: ``TableOptions`` and ``SequenceOptions``."""

    sampler: str

    def check(self, what: str, *whole: str, **choices: tuple[str, ...]) -> None:
        """Check the options. Raises WiringError if a count (a common one or one named by ``whole``) is below 1, or if
        an option in ``choices`` has none of the values allowed there."""
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
        """Return the shape and dtype of every array that the table allocates, by name."""
        raise NotImplementedError

    def nbytes(self, unroll: Spec, writers: int = 1) -> int:
        """Return the exact number of bytes that the table allocates. The batches that it returns are not included."""
        arrays = self.arrays(unroll, writers).values()
        return sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in arrays)

    def common_arrays(self, layout: Layout, rows: int, items: int, writers: int, counters: int) -> Arrays:
        """Return the arrays that all tables have: rows, counters, the state of each stream, scratch memory for one
        unroll, and those of a sampler of ``items``."""
        streams, unroll = (writers * layout.envs,), (layout.steps * layout.envs,)
        return {
            "rows/data": ((rows, layout.row_bytes), "uint8"),
            "counters": ((counters,), "int64"),
            "scalars": ((1,), "float64"),
            "rng": ((4,), "uint64"),
            **prefixed("streams", streams, dict.fromkeys(("pushed", "held", "length"), "int64")),
            **prefixed("streams", streams, dict.fromkeys(("known", "ended"), "uint8")),
            "streams/generation": ((writers,), "int64"),
            **prefixed("scratch", unroll, dict.fromkeys(("reward", "q_taken", "q_max", "final_q"), "float32")),
            **prefixed("scratch", unroll, dict.fromkeys(("terminated", "truncated", "valid", "first"), "bool")),
            **prefixed("scratch", unroll, dict.fromkeys(("row_of", "final_of"), "int32")),
            **{f"sampler/{name}": array for name, array in SAMPLERS.find(self.sampler).arrays(items).items()},
        }


@dataclass(frozen=True)
class Column:
    """The place of one field of a step inside a stored row."""

    name: str
    offset: int
    nbytes: int
    shape: tuple[int, ...]  # of one step of one environment
    dtype: str


@dataclass(frozen=True)
class Layout:
    """The mapping from unrolls of one spec to stored rows."""

    steps: int
    envs: int
    obs: tuple[Column, ...]
    rest: tuple[Column, ...]  # action and extras, returned unchanged for the item's first row
    row_bytes: int
    same_step: bool
    final_q: bool  # same_step only: whether the unroll has ``final/q_max``


def steps_and_envs(unroll: Spec) -> tuple[int, int]:
    """Return (T, E), the steps and environments of an unroll. Raises WiringError if the spec is not that of an
    unroll."""
    if "reward" not in unroll:
        raise WiringError("a replay table needs the fields of a stream (roles.actor.unroll_spec), it has no 'reward'")
    steps, envs = unroll["reward"].shape[:2]
    return steps, envs


def make_layout(unroll: Spec, given: bool) -> Layout:
    """Check the spec of an unroll and return the layout of its rows. Raises WiringError if a field is missing or has
    the wrong shape. ``given``: actors send priorities, so ``q_taken`` and ``q_max`` are required."""
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
    """Return the offset of each level of an 8-ary tree over ``rows`` leaves, leaves first, followed by the total
    length."""
    out, size = [0], -(-rows // 8) * 8
    while True:
        out.append(out[-1] + size)
        if size == 8:
            break
        size = -(-(size // 8) // 8) * 8
    return np.array(out, np.int64)


def is_frame(column: Column) -> bool:
    """Return True if the column holds single frames [1, H, W], which can be stacked."""
    return len(column.shape) == 3 and column.shape[0] == 1


def sampled_shape(column: Column, stack: int) -> tuple[int, ...]:
    """Return the shape of one sampled observation. Frames [1, H, W] become stacks [stack, H, W]."""
    return (stack, *column.shape[1:]) if stack > 1 and is_frame(column) else column.shape


def prefixed(group: str, shape: tuple[int, ...], dtypes: Mapping[str, str]) -> Arrays:
    """Return arrays of one shape, named ``group/NAME``, with the given dtypes."""
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
    """What a table must know about a sampler before it builds one.

    arrays: returns the shape and dtype, by name, of the sampler's arrays for a number of items. load: imports the class
    and returns it. has_mass: whether the sampler draws in proportion to weights and has ``mass()``, their sum.
    """

    arrays: Callable[[int], Arrays]
    load: Callable[[], Callable[..., Sampler]]
    has_mass: bool = False


def _import_class(cls: str) -> Callable[[], Callable[..., Sampler]]:
    """Return a function that imports a class of ``replay.samplers``, and with it numba."""
    return lambda: getattr(importlib.import_module("shoal.replay.samplers"), cls)


SAMPLERS = Registry(
    "sampler",
    {
        "uniform": SamplerKind(lambda items: {}, _import_class("Uniform"), has_mass=True),
        "proportional": SamplerKind(tree_arrays, _import_class("Proportional"), has_mass=True),
        "rank": SamplerKind(heap_arrays, _import_class("Rank")),
        "greedy": SamplerKind(tree_arrays, _import_class("Greedy")),
    },
    methods=("insert", "update", "remove", "draw"),
    wrap=lambda cls: SamplerKind(partial(user_arrays, cls), lambda: partial(UserSampler, cls), hasattr(cls, "mass")),
)
