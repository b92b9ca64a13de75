"""SequenceOptions: the contents and the size of a replay table of sequences, as plain data.

This module does not import numba, so that drawing a program and counting its bytes stay instant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shoal.api import Field, Spec, WiringError
from shoal.replay.layout import Arrays, Layout, Options, make_layout, prefixed, sampled_shape, steps_and_envs
from shoal.words import counted

STATE = "state/"
PROBES = ("probe/first/", "probe/last/")
ROW = {
    "previous": "int32", "depth": "int8", "refs": "int32", "reward": "float32", "q_taken": "float32",
    "q_max": "float32", "free": "int32",
}  # fmt: skip
ITEM = {
    "end": "int32", "prefix": "int16", "length": "int16", "flags": "uint8", "key": "int64", "priority": "float32",
    "position": "int32", "order": "int32", "free": "int32",
}  # fmt: skip


@dataclass(frozen=True)
class SequenceOptions(Options):
    """Options of a replay table of overlapping sequences cut from streams of steps, for recurrent learners (R2D2).

    A new sequence of ``length`` steps to learn from begins every ``stride`` steps of an episode, from its first step
    on. The last one of an episode may be shorter. Before these steps come up to ``burn_in`` steps, as many as the
    episode has there. After them comes one more observation, the next one or the episode's final one. A sequence never
    crosses the end of an episode, every step of an episode is learned from, and each frame is stored once however many
    sequences contain it.

    A batch is time-major: ``L = burn_in + length + 1`` rows of observations, actions and extras ``[L, B, ...]``. The
    steps to learn from begin at row ``burn_in``. A sequence with fewer steps before them is padded in front, one that
    ends early is padded behind, with copies of its own rows. ``valid`` bool ``[L, B]`` is True for steps, False for
    padding and the last observation; ``first`` ``[L, B]`` marks an episode's first observation, ``terminated`` ``[L,
    B]`` the step that ended it; ``reward`` is 0 in rows that are not valid.

    Recurrent states: a field ``state/NAME`` ``[T, E, ...]`` of the stream is the state before each step. For each
    sequence the table keeps the state before its first row (``state/NAME`` ``[B, ...]``; zero where an episode begins)
    and, with ``probes``, the states before the first and the last step that is learned from (``probe/first/NAME``,
    ``probe/last/NAME``; the last one only if the sequence has full length).

    capacity: sequences. The table holds at most this many after each insertion; the oldest are evicted first.
    alpha, eps: a priority is ``p + eps``; a sequence is sampled with weight ``priority ** alpha``.
    initial: priority of a new sequence: ``max`` (the largest recent priority) or ``given``: p is ``eta * max + (1 -
        eta) * mean`` of the actor's own absolute n-step TD errors over the steps that are learned from (Kapturowski et
        al. 2019, section 2.3), computed from ``q_taken`` and ``q_max`` with ``n_step``, ``gamma`` and, unless it is
        None, the value rescaling of ``rescale``.
    batches: how many batches of one size stay valid at a time (2 for a reader that fetches one ahead).

    Memory is allocated as rows, one per step: for ``capacity`` sequences that share all but ``stride`` of their steps,
    and for the sequences in progress of all streams. When rows run out, sequences are evicted early, so that adding
    never fails.
    """

    capacity: int
    length: int = 80
    stride: int = 40
    burn_in: int = 40
    n_step: int = 5
    gamma: float = 0.997
    eta: float = 0.9
    rescale: float | None = 1e-3
    stack: int = 1
    pad: Literal["repeat", "zero"] = "repeat"
    sampler: str = "proportional"
    alpha: float = 0.9
    eps: float = 1e-3
    initial: Literal["max", "given"] = "given"
    probes: bool = False
    batches: int = 1

    def __post_init__(self) -> None:
        self.check("A table of sequences", "length", "stride")
        if (
            self.burn_in < 0
            or self.eps <= 0
            or not 0 <= self.eta <= 1
            or (self.rescale is not None and self.rescale < 0)
        ):
            raise WiringError(
                f"A table of sequences needs burn_in >= 0, eps > 0, eta in [0, 1] and rescale >= 0 or None, got "
                f"{self.burn_in}, {self.eps}, {self.eta} and {self.rescale}."
            )
        if self.stride > self.length:
            raise WiringError(
                f"A stride of {counted(self.stride, 'step')} would leave steps out of sequences of {self.length}."
            )
        if self.stack > 100 or self.length + self.burn_in > 30_000:
            raise WiringError(
                f"A table of sequences stacks at most 100 frames and has sequences of at most 30000 steps, got "
                f"{self.stack} and {self.length + self.burn_in}."
            )

    @property
    def steps(self) -> int:
        """Number of rows of a sampled batch."""
        return self.burn_in + self.length + 1

    @property
    def open(self) -> int:
        """Largest number of sequences of one stream that can be in progress."""
        return (self.burn_in + self.length) // self.stride + 2

    @property
    def hold(self) -> int:
        """Number of rows of each stream that a sequence in progress may contain."""
        return self.steps + self.stack

    def layout(self, unroll: Spec) -> Layout:
        """Return the layout of the stream's rows, without recurrent states, which are stored once per sequence."""
        states = self.states(unroll)
        layout = make_layout({k: f for k, f in unroll.items() if k not in states}, self.initial == "given")
        for name, f in states.items():
            if f.shape[:2] != (layout.steps, layout.envs):
                raise WiringError(
                    f"Field {name!r} has shape {f.shape}, expected it to start with [{layout.steps}, {layout.envs}]."
                )
        return layout

    def states(self, unroll: Spec) -> dict[str, Field]:
        """Return the stream's recurrent states, by their names in it."""
        return {name: f for name, f in unroll.items() if name.startswith(STATE)}

    def state_bytes(self, unroll: Spec) -> int:
        """Return the bytes of one recurrent state."""
        return sum(Field(f.shape[2:], f.dtype).nbytes for f in self.states(unroll).values())

    def appended(self, layout: Layout) -> int:
        """Return the largest number of rows, which is also that of sequences, that one unroll completes."""
        return layout.steps * layout.envs * (2 if layout.same_step else 1)

    def rows(self, layout: Layout, writers: int) -> int:
        """Return the number of allocated rows; see the class docstring."""
        rows = self.capacity * self.stride + self.appended(layout) + writers * layout.envs * self.hold + self.steps
        if rows > 2**31 - 1:
            raise WiringError(f"A table of sequences holds at most 2**31 - 1 rows, this one needs {rows}.")
        return rows

    def items_per_insert(self, unroll: Spec) -> int:
        """Return the number of sequences that one unroll brings while episodes are long. Many short episodes bring
        more."""
        steps, envs = steps_and_envs(unroll)
        return -(-steps // self.stride) * envs

    def arrays(self, unroll: Spec, writers: int = 1) -> Arrays:
        """Return the shape and dtype of every array that the table allocates, by name."""
        layout = self.layout(unroll)
        rows, streams = self.rows(layout, writers), writers * layout.envs
        chunk, news = layout.steps * layout.envs, self.appended(layout)
        # the last term: sequences that one unroll begins
        slots = self.capacity + streams * self.open + chunk * (self.burn_in // self.stride + 1)
        out = self.common_arrays(layout, rows, slots, writers, counters=10)
        out |= prefixed("rows", (rows,), ROW) | prefixed("items", (slots,), ITEM)
        out["items/states"] = ((slots, self.state_bytes(unroll) * (3 if self.probes else 1)), "uint8")
        out |= {"streams/hold": ((streams, self.hold), "int32"), "streams/open": ((streams, self.open), "int32")}
        out |= prefixed("streams", (streams,), {"begun": "int64", "done": "int64"})
        out |= prefixed("scratch", (chunk,), dict.fromkeys(("begin_of", "first_of", "last_of"), "int32"))
        out |= prefixed("scratch", (news,), {"new": "int32", "new_priorities": "float32"})
        out |= {"scratch/victims": ((slots,), "int32"), "scratch/window": ((self.steps,), "int32")}
        return out

    def batch(self, unroll: Spec, count: int) -> Spec:
        """Return the fields of a batch of ``count`` sequences: [L, B, ...], and recurrent states [B, ...]."""
        layout, out = self.layout(unroll), {}
        for column in layout.obs + layout.rest:
            shape = sampled_shape(column, self.stack) if column in layout.obs else column.shape
            out[column.name] = Field((self.steps, count, *shape), column.dtype)
        out |= {name: Field((self.steps, count), "bool") for name in ("valid", "first", "terminated")}
        out["reward"] = Field((self.steps, count))
        for part in ("", *(PROBES if self.probes else ())):
            for name, f in self.states(unroll).items():
                out[part + name.removeprefix(STATE) if part else name] = Field((count, *f.shape[2:]), f.dtype, 0)
        return out
