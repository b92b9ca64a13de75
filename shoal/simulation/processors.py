"""The cores of a node, which those who have work take in turns."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import simpy

SLICE = 0.004  # seconds that a job keeps its core while others wait: a tick of Linux's clock at its usual 250 Hz
MOST_SLICES = 64  # of a job: a longer one has longer slices, so that it costs no more time to simulate


@dataclass(eq=False)
class _Job:
    """seconds of work that were left when it began to wait; slice: of a turn; rest: of this one when it began to wait.
    While it has a core: end and turn, the progress at which it is done and its turn is over, and the number of the
    turn; else -1."""

    owner: object
    over: simpy.Event
    seconds: float
    slice: float
    rest: float
    end: float = 0.0
    turn: float = 0.0
    number: int = -1


class Processors:
    """``cores`` cores and a line of jobs that wait for one, as an operating system has them.

    A job keeps its core until it is done; while others wait, for a slice of time, and then it goes to the end of the
    line. Jobs much longer than a slice therefore get equal shares, and of jobs shorter than one, three on two cores
    take as long as four. An owner who begins a job at the moment at which its last one ends goes on with its turn.

    speed: of a core, relative to the one on which costs were measured. busy: speed of each core when all are at work,
    relative to one that works alone, as they share caches, memory and heat; between, it is interpolated.

    All cores at work progress at the same rate at any moment. A job of ``w`` seconds is therefore done when the
    progress since the beginning (``_done``) has grown by ``w``.
    """

    def __init__(self, env: simpy.Environment, cores: int, speed: float = 1.0, busy: float = 1.0) -> None:
        self._env, self._cores, self._speed, self._busy = env, cores, speed, busy
        self._done = self._since = self._rate = 0.0
        self._working = 0  # cores
        self._ends: list[tuple[float, int, _Job]] = []  # by progress; some of turns that were over before
        self._turns: list[tuple[float, int, _Job]] = []  # likewise
        self._line: deque[_Job] = deque()
        self._ended: dict[object, float] = {}  # of whose job ends at this moment: what is left of its turn
        self._number = count()
        self._alarm = 0
        self._used = 0.0

    def used(self) -> float:
        """Core seconds so far."""
        self._progress()
        return self._used

    def run(self, seconds: float, owner: object = None) -> simpy.Event:
        """An event that comes when so many seconds of a core are worked off, by ``owner``: whoever has one job at a
        time, or None."""
        slice_ = max(SLICE, seconds / MOST_SLICES)
        job = _Job(owner, self._env.event(), seconds, slice_, slice_)
        if (left := self._ended.pop(owner, 0.0)) > 0:
            job.rest = left
            self._line.appendleft(job)
        else:
            self._line.append(job)
        if not self._ended:
            self._hand_out()
        return job.over

    def rate(self, working: int) -> float:
        """Speed of each of so many cores at work."""
        if not working:
            return 0.0
        return self._speed * (1.0 - (1.0 - self._busy) * (working - 1) / max(1, self._cores - 1))

    def _progress(self) -> None:
        now = self._env.now
        self._done += (now - self._since) * self._rate
        self._used += (now - self._since) * self._working
        self._since = now

    def _hand_out(self) -> None:
        """Give the free cores to those who wait, and set the alarm to the next end of a job or, if some wait on, of a
        turn."""
        self._progress()
        line, done = self._line, self._done
        while line and self._working < self._cores:
            job = line.popleft()
            job.end, job.turn, job.number = done + job.seconds, done + job.rest, next(self._number)
            heappush(self._ends, (job.end, job.number, job))
            heappush(self._turns, (job.turn, job.number, job))
            self._working += 1
        if not self._working:
            return
        self._rate = self.rate(self._working)
        first = self._first(self._ends)
        if line:
            while (turn := self._first(self._turns)) < done:  # nobody waited: one slice followed another
                _, number, job = heappop(self._turns)
                job.turn += math.ceil((done - turn) / job.slice) * job.slice
                heappush(self._turns, (job.turn, number, job))
            first = min(first, turn)
        self._alarm += 1
        self._env.timeout(max(0.0, first - done) / self._rate, self._alarm).callbacks.append(self._ring)

    def _first(self, heap: list[tuple[float, int, _Job]]) -> float:
        """The progress of the first entry whose turn goes on."""
        while heap[0][1] != heap[0][2].number:
            heappop(heap)
        return heap[0][0]

    def _ring(self, event: simpy.Event) -> None:
        if event.value != self._alarm:
            return  # others have come or gone since
        self._progress()
        line = self._line
        soon = self._done * (1 + 1e-12) + 1e-15
        while self._working and self._first(self._ends) <= soon:
            job = heappop(self._ends)[2]
            self._free(job)
            if job.owner is not None:
                self._ended[job.owner] = job.turn - self._done
            job.over.succeed()
        if line:
            while self._working and self._first(self._turns) <= soon:
                job = heappop(self._turns)[2]
                self._free(job)
                job.seconds, job.rest = job.end - self._done, job.slice
                line.append(job)
        if self._ended:  # who goes on at once comes first
            self._env.timeout(0.0).callbacks.append(self._resume)
        else:
            self._hand_out()

    def _free(self, job: _Job) -> None:
        job.number = -1
        self._working -= 1

    def _resume(self, _: simpy.Event) -> None:
        self._ended.clear()
        self._hand_out()


Traffic = Counter[str]  # kind of channel -> bytes


class Network:
    """Links of nodes: what a node sends goes out, and what it receives comes in, one after the other."""

    def __init__(self, env: simpy.Environment, rates: Sequence[float], latencies: Sequence[float]) -> None:
        self._env, self._rates, self._latencies = env, rates, latencies
        self._out, self._in = [0.0] * len(rates), [0.0] * len(rates)
        self.sent: list[Traffic] = [Counter() for _ in rates]  # of each node
        self.received: list[Traffic] = [Counter() for _ in rates]

    def send(self, kind: str, source: int, target: int, nbytes: float) -> simpy.Event:
        """An event that comes when so many bytes of a kind of channel have arrived."""
        begin = max(self._env.now, self._out[source], self._in[target])
        end = begin + nbytes / min(self._rates[source], self._rates[target])
        self._out[source] = self._in[target] = end
        self._count(kind, source, target, nbytes)
        return self._env.timeout(end - self._env.now + max(self._latencies[source], self._latencies[target]))

    def all_reduce(self, nodes: Sequence[int], nbytes: float, tree: bool = False) -> float:
        """Seconds of an all-reduce of ``nbytes`` over nodes: round a ring in 2 (k - 1) messages of a k-th, or up and
        down a tree."""
        k = len(nodes)
        if k < 2:
            return 0.0
        rate, latency = min(self._rates[n] for n in nodes), max(self._latencies[n] for n in nodes)
        for n in nodes:
            self._count("reduce", n, n, 2 * nbytes * (k - 1) / k)
        if tree:
            return float(2 * (k - 1).bit_length() * (nbytes / rate + latency))
        return 2 * (k - 1) * (nbytes / k / rate + latency)

    def _count(self, kind: str, source: int, target: int, nbytes: float) -> None:
        self.sent[source][kind] += round(nbytes)
        self.received[target][kind] += round(nbytes)
