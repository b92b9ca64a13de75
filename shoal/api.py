"""Every noun of Shoal: the protocols and the plain data they exchange.

Arrays are time-major: ``T`` steps, ``E`` environments of one actor, ``B`` the batch of a learner. Writers take NumPy
arrays, readers return torch tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

from shoal.arrays import (
    PART as PART,
    UNIT as UNIT,
    Arrays as Arrays,
    Field as Field,
    Spec as Spec,
    State as State,
    Tensors as Tensors,
    bounds as bounds,
    is_observation as is_observation,
    observations as observations,
    places as places,
    spec_nbytes as spec_nbytes,
    spec_size as spec_size,
    views as views,
)
from shoal.errors import (
    Deadlock as Deadlock,
    Diverged as Diverged,
    EnvironmentFailed as EnvironmentFailed,
    RoleFailed as RoleFailed,
    ShoalError as ShoalError,
    Stopped as Stopped,
    UsageError as UsageError,
    WiringError as WiringError,
)
from shoal.groups import (
    GROUPS as GROUPS,
    Board as Board,
    PartsReader as PartsReader,
    PartsWriter as PartsWriter,
    Reducer as Reducer,
    Rows as Rows,
    Rule as Rule,
    SharedParams as SharedParams,
)


@dataclass(frozen=True)
class Observation:
    """One leaf of an observation. ``kind`` says how a network reads it: ``image`` (uint8 ``[C, H, W]``), ``vector``
    (floats, any shape), ``one_hot`` (integers below ``size``), or not at all: ``mask`` (bool ``[A]``, ``MASK``)."""

    shape: tuple[int, ...]
    dtype: str
    kind: Literal["image", "vector", "one_hot", "mask"] = "vector"
    size: tuple[int, ...] = ()  # one_hot: number of values of each integer


MASK = "obs/action_mask"  # the observation that says which actions are allowed, of all parts of an action in a row


@dataclass(frozen=True)
class Action:
    """``discrete`` (int64 ``[]``), ``multi_discrete`` (int64 ``[len(sizes)]``), ``continuous`` (float32 [len(low)]), or
    ``mixed`` (float32 [len(sizes) + len(low)]: a choice for each of the sizes, then the continuous part).

    low, high: bounds of a continuous action in the units that agents act in, which are not the environment's: -1 and 1
    along a bounded side, 0 and 0 along one of length 0, infinite where there is no bound (``envs.action_box``)."""

    kind: Literal["discrete", "multi_discrete", "continuous", "mixed"]
    sizes: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return () if self.kind == "discrete" else (len(self.sizes) + len(self.low),)

    @property
    def dtype(self) -> str:
        return "float32" if self.kind in ("continuous", "mixed") else "int64"

    def __str__(self) -> str:
        choices = f"Discrete({self.sizes[0]})" if self.kind == "discrete" else f"MultiDiscrete({list(self.sizes)})"
        return " with ".join([choices] * bool(self.sizes) + [f"Box({len(self.low)},)"] * bool(self.low))


@dataclass(frozen=True)
class EnvSpec:
    """What a batch of environments offers, known before any process starts.
    observations: ``obs`` (a plain space), ``obs/camera`` (a Dict), ``obs/0`` (a Tuple).
    stack: frames on axis 0 of ``obs``; only the newest (``obs[:, -1:]``) is new each step.
    pad: what a stack holds before an episode's first frame: ``repeat`` (of it) or ``zero``.
    autoreset: ``next_step``: a step after an episode's end ignores its action (``valid`` is False there), and the last
        such step returns the next first observation; ``same_step``: the ending step already returns that, and the true
        last one travels in ``EnvStep.final_obs``.
    """

    id: str
    observations: dict[str, Observation]
    action: Action
    stack: int = 1
    pad: Literal["repeat", "zero"] = "repeat"
    autoreset: Literal["next_step", "same_step"] = "next_step"
    frames_per_step: int = 1
    backend: str = "gymnasium"
    why: str = ""  # why ``--backend auto`` chose it
    agents: int = 1  # rows of a game that they play together


NO_NUMBERS: Mapping[str, float] = {}


class Episode(NamedTuple):
    """A finished episode of the true game: raw (unclipped) return, length in agent steps, last ``info``'s numbers."""

    ret: float
    length: int
    info: Mapping[str, float] = NO_NUMBERS


class EnvStep(NamedTuple):
    """Result of one step of ``E`` environments. ``obs`` is what the next action answers."""

    obs: Arrays  # each [E, ...]
    reward: np.ndarray  # float32 [E], as used for training (clipped if so configured)
    terminated: np.ndarray  # bool [E]
    truncated: np.ndarray  # bool [E]
    valid: np.ndarray  # bool [E]; False: the action was ignored (autoreset row), never train on it
    final_obs: Arrays | None  # same_step only: [E, ...], rows meaningful where an episode ended
    episodes: list[Episode]


class EnvBatch(Protocol):
    """``num_envs`` environments stepped together. The arrays it returns may be reused by the next step."""

    spec: EnvSpec
    num_envs: int

    def reset(self, seed: int) -> Arrays: ...
    def step(self, action: np.ndarray) -> EnvStep: ...
    def so_far(self) -> list[Episode]: ...  # of each environment the episode that goes on: raw return, length until now
    def close(self) -> None: ...


class Act(NamedTuple):
    """Actions ``[E, ...]``, the next recurrent state, and arrays ``[E, ...]`` stored beside them (values ...)."""

    action: np.ndarray
    state: Tensors
    extras: Arrays


class Agent(Protocol):
    """Chooses actions for ``E`` environments. ``first`` (bool ``[E]``) marks observations that start an
    episode: the agent clears those rows of ``state`` before using it. A greedy agent takes its best guess."""

    def initial_state(self, envs: int) -> Tensors: ...
    def act(self, obs: Arrays, first: np.ndarray, state: Tensors, greedy: bool = False) -> Act: ...
    def load(self, params: Tensors, version: int) -> None: ...


class Update(NamedTuple):
    """What one learner update reports; ``priorities`` (float32 ``[B]``) go back to the replay."""

    metrics: Mapping[str, torch.Tensor | float]
    priorities: torch.Tensor | None = None


class Batch(NamedTuple):
    """What a reader returns; valid until its next ``get``. ``keys`` (int64) and ``probs`` (float32, probability that an
    item is drawn) only from a replay; ``size`` is the replay's size in items (0: it is no replay).

    versions: of each joined item of a queue, the version of the parameters it was made with, as its writer said (0: it
    said none); empty where nobody can say: from a replay, or once items are mixed or taken apart.
    """

    items: Tensors
    keys: torch.Tensor | None = None
    probs: torch.Tensor | None = None
    size: int = 0
    versions: tuple[int, ...] = ()


class Learner(Protocol):
    """Turns batches into parameters. ``SGDLearner`` is the usual one."""

    step: int

    def update(self, batch: Batch) -> Update: ...
    def params(self) -> Tensors: ...
    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...


class Role(Protocol):
    """One unit of work per ``step``, with at most one ``put`` per write port and one ``get`` per read port.
    Optional: ``start()`` before the first step of a run (not when it is resumed), ``close()``, ``Stateful``'s methods;
    ``due() -> bool``: not stepped while False; ``would_wait() -> bool``: nor by the serial runtime while that is True.
    """

    def step(self) -> None: ...


@runtime_checkable
class Stateful(Protocol):
    """What goes on exactly where it stopped: a role, an agent, an algorithm with more state than its networks.
    A state is nested dicts, lists and tuples of numbers, strings, None, arrays and tensors, and may share memory with
    its owner: it is written before the next step. A role is asked between two steps, or while the first port of a step
    blocks: until then the step must have changed nothing.
    """

    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...


class Slot(Protocol):
    """``with`` it one item is written in place; an exception inside discards the item. ``version`` counts as it is at
    the end: what the item is made with may be fetched inside, once there is room."""

    version: int

    def __enter__(self) -> Arrays: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Writer(Protocol):
    """``version``: of the parameters that an item was made with, for its reader (``Batch.versions``)."""

    def ready(self) -> bool: ...
    def put(self, items: Arrays, version: int = 0) -> None:
        """Copy one item into the channel; blocks while it is full."""

    def slot(self, version: int = 0) -> Slot:
        """Write one item in place (zero-copy); blocks while the channel is full."""


class Reader(Protocol):
    def ready(self) -> bool: ...
    def get(self) -> Batch: ...  # may lie in a channel's memory: valid until the next get
    def reprioritise(self, keys: torch.Tensor, priorities: torch.Tensor) -> None: ...


class ParamsWriter(Protocol):
    @property
    def version(self) -> int:
        """Number of the latest version, which an earlier life of this replica may have published; 0: there is none."""

    def ready(self) -> bool: ...
    def slot(self) -> AbstractContextManager[Tensors]: ...  # the next version, written in place; an error discards it
    def publish(self, params: Tensors) -> int:
        """Make ``params`` the latest version and return its number (1, 2, ...). Never blocks."""


class ParamsReader(Protocol):
    def ready(self) -> bool: ...
    def latest(self, newer_than: int = -1) -> tuple[int, Tensors] | None:
        """The latest (version, parameters), a private copy; None if not newer. Blocks before the first version, and on
        a lockstep port that has read the latest as often as it may. The version of parts is that of the oldest."""

    def newest(self) -> int:
        """Number of the latest version; 0 before the first."""


class Constant(Protocol):
    arrays: Arrays  # one memory for all readers of a machine: do not write

    def ready(self) -> bool: ...


class Replay(Protocol):
    """The table behind a replay channel. ``add`` takes one unroll ``[T, E]`` of stream ``writer``."""

    inserted: int  # items that became sampleable, ever
    sampled: int  # items drawn, ever
    size: int  # items sampleable now

    def mass(self) -> float: ...  # sum of the weights in proportion to which items are drawn
    def arrays(self) -> list[np.ndarray]: ...  # all memory that grows with the capacity
    def add(self, unroll: Arrays, writer: int = 0, generation: int = 0) -> int: ...
    def sample(self, n: int) -> Batch: ...
    def reprioritise(self, keys: np.ndarray, priorities: np.ndarray) -> None: ...
    def state(self) -> State: ...
    def restore(self, state: State) -> None: ...


class ReplaySpec(Protocol):  # plain data that says how big a table is and builds it
    def nbytes(self, unroll: Spec, writers: int = 1) -> int: ...
    def items_per_insert(self, unroll: Spec) -> int: ...
    def build(self, unroll: Spec, writers: int, seed: int) -> Replay: ...


class Metrics(Protocol):
    """What a role reports of itself. A new name becomes a column of the metric files: of ``record`` the mean since
    the row before, of ``tally`` its ``NAME_p50``, ``NAME_p95`` and ``NAME_max``. Time is booked to one phase at a time:
    ``phase`` takes its part out of the phase around it; ``enter`` (until the next; returns the one before) is cheaper.
    """

    def count(self, name: str, n: int = 1) -> None: ...
    def making(self, steps: int) -> None: ...  # environment steps that are made, and not counted yet: for displays
    def record(self, name: str, value: float) -> None: ...
    def record_all(self, values: Mapping[str, torch.Tensor | float]) -> None: ...
    def tally(self, name: str, values: Iterable[int]) -> None: ...
    def episode(self, ret: float, length: int, info: Mapping[str, float] = NO_NUMBERS) -> None: ...
    def phase(self, name: str) -> AbstractContextManager[None]: ...
    def enter(self, phase: str) -> str: ...


@dataclass
class Context:
    """What a replica knows of itself and of its run. role, index, replicas: its role, its number of how many replicas.

    generation: number of this life: it grows with every restart and resumed launch; 0 in serial, where there is one.
    seed: of this life alone. A serial run that is resumed builds its roles with its first seeds, then loads states.
    total_steps: environment steps that end the run, or None. run_dir: where the run writes, and roles may, or None.
    counts: what earlier lives of this replica counted (``env_steps``, ``updates``, ``actions``), so that schedules go
        on when it is restarted or the run resumed. Empty in the serial runtime: states are all that goes on there.
    exact: states must hold everything, environments too, as a resumed run shall repeat bit for bit.
    pipelined: on a GPU, a step may get the next one's batch, and publish the parameters of the one before.
    steps: environment steps of the whole run so far; interrupted: whether it should end (serial): a long step returns.
    team: makes a ``learning.data_parallel.Team`` of so many processes; None: the runtime has none.
    initial: puts the parameters that the run begins with into a network (``topology.roles.begin``); None: it has none.
    """

    role: str
    index: int
    replicas: int
    generation: int
    seed: int
    metrics: Metrics
    total_steps: int | None = None
    run_dir: Path | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    exact: bool = False
    pipelined: bool = False
    steps: Callable[[], int] = lambda: 0
    interrupted: Callable[[], bool] = lambda: False
    team: Callable[[int], Any] | None = None
    initial: Callable[[torch.nn.Module], None] | None = None
