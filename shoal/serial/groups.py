"""Channels between equals in the serial runtime: ``reduce``, ``board`` and ``shared``."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from shoal.api import Arrays, Deadlock, Rows, Spec, Tensors, UsageError
from shoal.program import Channel
from shoal.runtime.channel_checks import InTurn, check_item
from shoal.runtime.reduction import combine
from shoal.types import State


def _empty(spec: Spec) -> Arrays:
    return {name: np.zeros(f.shape, f.dtype) for name, f in spec.items()}


# ---------------------------------------------------------------------------------------- reduce
class SerialReduce:
    """What each member has put and not every member has got."""

    def __init__(self, channel: Channel, members: int) -> None:
        self.channel = channel
        self.queues: list[deque[Arrays]] = [deque() for _ in range(members)]
        self.results: deque[Arrays] = deque()  # of rounds that some member has not read, the oldest first
        self.unread: list[int] = [0] * members  # how many of them each member has not read

    def put(self, member: int, items: Arrays) -> None:
        self.queues[member].append(items)
        if all(self.queues):
            parts = [queue.popleft() for queue in self.queues]
            result = _empty(self.channel.spec)
            for name, out in result.items():
                combine(out.reshape(-1), [part[name].reshape(-1) for part in parts], self.channel.mean)
            self.results.append(result)
            self.unread = [n + 1 for n in self.unread]

    def get(self, member: int) -> Arrays:
        result = self.results[len(self.results) - self.unread[member]]
        self.unread[member] -= 1
        while len(self.results) > max(self.unread):
            self.results.popleft()
        return result

    def state_dict(self) -> State:
        queues = [list(queue) for queue in self.queues]
        return {"queues": queues, "results": list(self.results), "unread": list(self.unread)}

    def load_state_dict(self, state: State) -> None:
        self.queues = [deque(items) for items in state["queues"]]
        self.results, self.unread = deque(state["results"]), list(state["unread"])


class SerialReducer(InTurn):
    """A member of a reduce channel (an ``api.Reducer``)."""

    def __init__(self, target: SerialReduce, member: int) -> None:
        self.channel, self.target, self.member = target.channel, target, member

    @property
    def pending(self) -> bool:
        return bool(self.target.queues[self.member]) or bool(self.target.unread[self.member])

    def ready(self) -> bool:
        return not self.target.queues[self.member]

    @contextmanager
    def slot(self) -> Iterator[Arrays]:
        self.check_put()
        items = _empty(self.channel.spec)
        yield items
        self.target.put(self.member, items)

    def get(self) -> Tensors:
        self.check_get()
        if not self.ready():
            raise Deadlock(
                f"get from the channel '{self.channel.name}' before all have put: a step may not put and then get"
            )
        return {key: torch.from_numpy(array) for key, array in self.target.get(self.member).items()}


# ----------------------------------------------------------------------------------------- board
class SerialBoard:
    """The rows, [W, ...] each, and how many each writer has put."""

    def __init__(self, channel: Channel, writers: int) -> None:
        self.channel = channel
        self.rows = {name: np.zeros((writers, *f.shape), f.dtype) for name, f in channel.spec.items()}
        self.puts = np.zeros(writers, np.int64)

    def state_dict(self) -> State:
        return {"rows": self.rows, "puts": self.puts}

    def load_state_dict(self, state: State) -> None:
        for name, rows in self.rows.items():
            rows[...] = state["rows"][name]
        self.puts[:] = state["puts"]


class SerialBoardEnd:
    """An end of a board (an ``api.Board``); ``row``: the number of its own row, None for one that only reads."""

    def __init__(self, board: SerialBoard, row: int | None) -> None:
        self.board, self.row = board, row

    def ready(self) -> bool:
        return True

    def put(self, row: Arrays) -> None:
        check_item(self.board.channel, row)
        if self.row is None:
            raise UsageError(f"channel '{self.board.channel.name}': this end only reads")
        for name, rows in self.board.rows.items():
            rows[self.row] = row[name]
        self.board.puts[self.row] += 1

    def get(self) -> Rows:
        return Rows({name: rows.copy() for name, rows in self.board.rows.items()}, self.board.puts.copy())


# ---------------------------------------------------------------------------------------- shared
class SerialShared:
    """Parameters that workers change in turn; ``steps``: how many steps each of them has added."""

    def __init__(self, channel: Channel, members: int) -> None:
        assert channel.rule is not None
        self.channel, self.rule = channel, channel.rule
        self.params: Tensors = {}
        self.statistics = {k: torch.from_numpy(a) for k, a in _empty(channel.rule.statistics(channel.spec)).items()}
        self.steps = [0] * members

    @property
    def version(self) -> int:
        """0 before the first parameters, then one more than the number of steps added."""
        return sum(self.steps) + 1 if self.params else 0

    def published(self) -> Tensors:
        """A copy of the parameters as they are now."""
        return {name: tensor.clone() for name, tensor in self.params.items()}

    def state_dict(self) -> State:
        state = {"version": self.version, "tensors": self.params, "statistics": self.statistics}
        return state | {"steps": list(self.steps)}

    def load_state_dict(self, state: State) -> None:
        self.params = {name: tensor.clone() for name, tensor in state["tensors"].items()}
        self.statistics = {name: tensor.clone() for name, tensor in state["statistics"].items()}
        self.steps = list(state["steps"])


class SerialSharedEnd:
    """A worker's end (an ``api.SharedParams``)."""

    def __init__(self, shared: SerialShared, member: int) -> None:
        self.shared, self.member = shared, member

    def ready(self) -> bool:
        return bool(self.shared.params)

    def offer(self, params: Tensors) -> None:
        if not self.shared.params:
            check_tensors(self.shared.channel, params)
            self.shared.params = {name: params[name].detach().cpu().clone() for name in self.shared.channel.spec}

    def copy(self) -> tuple[int, Tensors]:
        if not self.ready():
            raise Deadlock(f"channel '{self.shared.channel.name}' has no parameters: no worker has offered any")
        return sum(self.shared.steps), self.shared.published()

    def add(self, gradient: Tensors, lr: float) -> int:
        check_tensors(self.shared.channel, gradient)
        with torch.no_grad():
            self.shared.rule.apply(self.shared.params, self.shared.statistics, gradient, lr)
        self.shared.steps[self.member] += 1
        return sum(self.shared.steps)


class SerialSharedReader:
    """A read end (an ``api.ParamsReader``)."""

    def __init__(self, shared: SerialShared) -> None:
        self.shared = shared

    def ready(self) -> bool:
        return self.shared.version > 0

    def latest(self, newer_than: int = -1) -> tuple[int, Tensors] | None:
        if not self.ready():
            raise Deadlock(f"channel '{self.shared.channel.name}' has no parameters: no worker has offered any")
        version = self.shared.version
        return None if version <= newer_than else (version, self.shared.published())

    def newest(self) -> int:
        return self.shared.version


def check_tensors(channel: Channel, tensors: Tensors) -> None:
    """Raise UsageError unless ``tensors`` has the names and shapes of the channel's spec."""
    if tensors.keys() != channel.spec.keys():
        raise UsageError(f"channel '{channel.name}' has the tensors {sorted(channel.spec)}, got {sorted(tensors)}")
    for name, f in channel.spec.items():
        if tuple(tensors[name].shape) != f.shape:
            raise UsageError(f"channel '{channel.name}': '{name}' is {f.shape}, got {tuple(tensors[name].shape)}")


Group = SerialReduce | SerialBoard | SerialShared
End = SerialReducer | SerialBoardEnd | SerialSharedEnd | SerialSharedReader


def channel(spec: Channel, members: int) -> Group:
    """The channel of a kind in ``api.GROUPS`` with so many writing ends."""
    if spec.kind == "reduce":
        return SerialReduce(spec, members)
    return SerialBoard(spec, members) if spec.kind == "board" else SerialShared(spec, members)


def end(group: Group, member: int | None) -> End:
    """A port of a replica; ``member``: the number of its writing end, None for one that only reads."""
    if isinstance(group, SerialBoard):
        return SerialBoardEnd(group, member)
    if member is None:
        assert isinstance(group, SerialShared)  # checked by Program.validate
        return SerialSharedReader(group)
    return SerialReducer(group, member) if isinstance(group, SerialReduce) else SerialSharedEnd(group, member)
