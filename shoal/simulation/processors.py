"""The cores of a node, shared equally among those who have work."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import simpy


class Processors:
    """``cores`` cores, on which any number of jobs go on side by side: each has a core, or an equal share of all.

    speed: of a core, relative to the one on which costs were measured. busy: speed of each core when all are at work,
    relative to one that works alone, as they share caches, memory and heat; between, it is interpolated.

    All jobs progress at the same rate at any moment. One that needs ``w`` seconds is therefore done when the progress
    since the beginning (``_done``) has grown by ``w``.
    """

    def __init__(self, env: simpy.Environment, cores: int, speed: float = 1.0, busy: float = 1.0) -> None:
        self._env, self._cores, self._speed, self._busy = env, cores, speed, busy
        self._done = self._since = self._rate = 0.0
        self._jobs: list[tuple[float, int, simpy.Event]] = []
        self._number = count()
        self._alarm = 0
        self._used = 0.0

    def used(self) -> float:
        """Core seconds so far."""
        self._progress()
        self._set()
        return self._used

    def run(self, seconds: float) -> simpy.Event:
        """An event that comes when so many seconds of a core are worked off."""
        self._progress()
        job = self._env.event()
        heappush(self._jobs, (self._done + seconds, next(self._number), job))
        self._set()
        return job

    def rate(self, jobs: int) -> float:
        """Speed of each of so many jobs."""
        used = min(jobs, self._cores)
        alike = 1.0 - (1.0 - self._busy) * (used - 1) / max(1, self._cores - 1)
        return self._speed * alike * min(1.0, self._cores / jobs) if jobs else 0.0

    def _progress(self) -> None:
        now = self._env.now
        self._done += (now - self._since) * self._rate
        self._used += (now - self._since) * min(len(self._jobs), self._cores)
        self._since = now

    def _set(self) -> None:
        self._rate = self.rate(len(self._jobs))
        self._alarm += 1
        if self._jobs:
            wait = max(0.0, (self._jobs[0][0] - self._done) / self._rate)
            self._env.timeout(wait, self._alarm).callbacks.append(self._ring)

    def _ring(self, event: simpy.Event) -> None:
        if event.value != self._alarm:
            return  # others have come or gone since
        self._progress()
        jobs = self._jobs
        self._done = max(self._done, jobs[0][0])
        while jobs and jobs[0][0] <= self._done * (1 + 1e-12):
            heappop(jobs)[2].succeed()
        self._set()


class Network:
    """Links of nodes: what a node sends goes out, and what it receives comes in, one after the other."""

    def __init__(self, env: simpy.Environment, rates: Sequence[float], latencies: Sequence[float]) -> None:
        self._env, self._rates, self._latencies = env, rates, latencies
        self._out, self._in = [0.0] * len(rates), [0.0] * len(rates)
        self.sent, self.received = [0.0] * len(rates), [0.0] * len(rates)  # bytes

    def send(self, source: int, target: int, nbytes: float) -> simpy.Event:
        """An event that comes when so many bytes have arrived."""
        begin = max(self._env.now, self._out[source], self._in[target])
        end = begin + nbytes / min(self._rates[source], self._rates[target])
        self._out[source] = self._in[target] = end
        self.sent[source] += nbytes
        self.received[target] += nbytes
        return self._env.timeout(end - self._env.now + max(self._latencies[source], self._latencies[target]))

    def all_reduce(self, nodes: Sequence[int], nbytes: float, tree: bool = False) -> float:
        """Seconds of an all-reduce of ``nbytes`` over nodes: round a ring in 2 (k - 1) messages of a k-th, or up and
        down a tree."""
        k = len(nodes)
        if k < 2:
            return 0.0
        rate, latency = min(self._rates[n] for n in nodes), max(self._latencies[n] for n in nodes)
        for n in nodes:
            self.sent[n] += 2 * nbytes * (k - 1) / k
            self.received[n] += 2 * nbytes * (k - 1) / k
        if tree:
            return float(2 * (k - 1).bit_length() * (nbytes / rate + latency))
        return 2 * (k - 1) * (nbytes / k / rate + latency)
