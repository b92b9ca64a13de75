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
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

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

if TYPE_CHECKING:  # protocols and plain data need no torch; whoever computes with it imports it
    import torch


@dataclass(frozen=True)
class Observation:
    """One array of an observation. ``kind`` says how a network reads it: ``image`` (uint8 ``[C, H, W]``), ``vector``
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
    """Observations and actions of a batch of environments, known before any process starts.
    observations: ``obs`` (a plain space), ``obs/camera`` (a Dict), ``obs/0`` (a Tuple).
    stack: frames on axis 0 of ``obs``; only the newest (``obs[:, -1:]``) is new each step.
    pad: what a stack holds before an episode's first frame: ``repeat`` (of it) or ``zero``.
    autoreset: ``next_step``: a step after an episode's end ignores its action (``valid`` is False there), and the last
        such step returns the next first observation; ``same_step``: the ending step returns that observation, and
        ``EnvStep.final_obs`` holds the true last one."""

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
    """Result of ``Agent.act``: actions ``[E, ...]``, next recurrent state, arrays ``[E, ...]`` to store beside them."""

    action: np.ndarray
    state: Tensors
    extras: Arrays


class Agent(Protocol):
    """Choose actions for ``E`` environments: drawn, or the best with ``greedy``. ``first`` (bool ``[E]``) marks
    observations that start an episode: the agent clears those rows of ``state`` before using it."""

    def initial_state(self, envs: int) -> Tensors: ...
    def act(self, obs: Arrays, first: np.ndarray, state: Tensors, greedy: bool = False) -> Act: ...
    def load(self, params: Tensors, version: int) -> None: ...


class Update(NamedTuple):
    """Result of one learner update: metrics, and new ``priorities`` (float32 ``[B]``) for the replay."""

    metrics: Mapping[str, torch.Tensor | float]
    priorities: torch.Tensor | None = None


class Batch(NamedTuple):
    """Batch that ``Reader.get`` returns, valid until the next ``get``. Only a replay sets ``keys`` (int64), ``probs``
    (float32, probability of drawing each item) and ``size`` (items in the replay).

    versions: for each joined item of a queue, the version of the parameters it was made with, as given by its writer
    (0: none given). Empty if unknown: from a replay, or after items are mixed or split.
    """

    items: Tensors
    keys: torch.Tensor | None = None
    probs: torch.Tensor | None = None
    size: int = 0
    versions: tuple[int, ...] = ()


class Learner(Protocol):
    """Update parameters from batches. Most systems use ``SGDLearner``."""

    step: int

    def update(self, batch: Batch) -> Update: ...
    def params(self) -> Tensors: ...
    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...


class Role(Protocol):
    """Do one unit of work per ``step``, with at most one ``put`` per write port and one ``get`` per read port.
    Optional: ``start()`` before the first step of a run (not after a resume), ``close()``, ``Stateful``'s methods,
    ``due()`` (no step while False) and ``would_wait()`` (no step in the serial runtime while True)."""

    def step(self) -> None: ...


@runtime_checkable
class Stateful(Protocol):
    """Save and restore the state of a role, an agent or an algorithm. A state is nested dicts, lists and tuples of
    numbers, strings, None, arrays and tensors. It may share memory with its owner: it is written before the next step.
    It is read between two steps, or while the first port of a step blocks: until then the step changes nothing."""

    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...


class Slot(Protocol):
    """Context manager that writes one item in place; an exception inside discards the item. ``version`` is read at the
    end of the block, so the parameters for the item may be fetched inside, once there is room."""

    version: int

    def __enter__(self) -> Arrays: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Writer(Protocol):
    """Write end of a queue or replay. ``version``: of the parameters an item was made with (``Batch.versions``)."""

    def ready(self) -> bool: ...
    def put(self, items: Arrays, version: int = 0) -> None: ...  # copies one item; blocks while the channel is full
    def slot(self, version: int = 0) -> Slot:
        """Write one item in place (zero-copy); blocks while the channel is full."""


class Reader(Protocol):
    """Read end of a queue or replay. ``reprioritise`` sets priorities of a replay's items by their keys."""

    def ready(self) -> bool: ...
    def poll(self) -> bool: ...  # ready(), after taking in what writers have sent, as a get does before it blocks
    def get(self) -> Batch: ...  # may lie in a channel's memory: valid until the next get
    def reprioritise(self, keys: torch.Tensor, priorities: torch.Tensor) -> None: ...


class ParamsWriter(Protocol):
    """Write end of published parameters, with version numbers from 1 on."""

    @property
    def version(self) -> int:
        """Return the number of the latest version, possibly published before a restart of this replica; 0: none."""

    def ready(self) -> bool: ...
    def slot(self) -> AbstractContextManager[Tensors]: ...  # the next version, written in place; an error discards it
    def publish(self, params: Tensors) -> int:
        """Make ``params`` the latest version and return its number (1, 2, ...). Never blocks."""


class ParamsReader(Protocol):
    """Read end of published parameters: the latest version, or in lockstep the next one."""

    def ready(self) -> bool: ...
    def latest(self, newer_than: int = -1) -> tuple[int, Tensors] | None:
        """Return the latest (version, parameters), a private copy; None if not newer. Blocks before version 1, and on
        a lockstep port that has read the latest as often as allowed. The version of shards is that of the oldest."""

    def newest(self) -> int: ...  # number of the latest version; 0 before the first


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
    """Metrics of a role. Each name becomes a column of the metric files: for ``record`` the mean since the last row,
    for ``tally`` the columns ``NAME_p50``, ``NAME_p95`` and ``NAME_max``. Time counts for one phase only: that of the
    innermost ``phase`` block, or the one that ``enter`` began last (cheaper; returns the phase before)."""

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
    """Facts about a replica and its run. role: its name; index: number of this replica, of ``replicas``.

    generation: number of restarts and resumed launches of this replica; always 0 in the serial runtime.
    seed: of this generation only. A resumed serial run builds its roles with its first seeds, then loads states.
    total_steps: environment steps that end the run, or None. run_dir: directory of the run, or None.
    counts: counters of earlier generations of this replica (``env_steps``, ``updates``, ``actions``), so that schedules
        continue after a restart or resume. Empty in the serial runtime, where saved states contain them.
    exact: states must contain everything, also the environments, so that a resumed run repeats bit for bit.
    pipelined: on a GPU, a step may fetch the batch of the next step, and publish the parameters of the previous one.
    steps: environment steps of the whole run so far. interrupted: whether a long step should return (serial runtime).
    team: makes a ``learning.data_parallel.Team`` of the given number of processes; None: the runtime has none.
    initial: loads the run's initial parameters into a network (``topology.roles.begin``); None: there are none."""

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
