"""A slow model of the table of sequences: lists of steps, cut as the docstring of ``SequenceOptions`` says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from counting import Counting

from shoal.api import Field
from shoal.replay.sequence_options import SequenceOptions

Step = dict[str, Any]


class Recurrent(Counting):
    """Counting environments whose recurrent state says before which step it is."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        lead = self.spec["reward"].shape
        self.spec |= {"state/h": Field((*lead, 3), "float32"), "state/c": Field((*lead, 2), "int32")}

    def unroll(self) -> dict[str, np.ndarray]:
        out = super().unroll()
        where = out["obs/where"]
        out["state/h"][:] = where[..., 1:]
        out["state/c"][:] = where[..., :1] * 7 + where[..., 2:]
        return out


class NaiveSequences:
    """``items``: all sequences ever, in the order of their keys; each a dict of what a batch shows of it."""

    def __init__(self, options: SequenceOptions, envs: int, writers: int, same_step: bool):
        self.options, self.envs, self.same_step = options, envs, same_step
        self.items: list[dict[str, Any]] = []
        self.streams: list[list[Step]] = [[] for _ in range(writers * envs)]
        self.generations = [-1] * writers

    def add(self, unroll: dict[str, np.ndarray], writer: int, generation: int) -> int:
        before = len(self.items)
        if self.generations[writer] != generation:
            self.generations[writer] = generation
            for e in range(self.envs):
                self.streams[writer * self.envs + e].clear()
        for e in range(self.envs):
            stream = self.streams[writer * self.envs + e]
            for t in range(len(unroll["reward"])):
                step = {name: array[t, e] for name, array in unroll.items()}
                ended = bool(stream) and (stream[-1]["terminated"] or stream[-1]["truncated"])
                if ended and not step["valid"] and not step["first"]:
                    self._finish(stream, step)
                    continue
                if ended or step["first"] or not step["valid"]:
                    stream.clear()
                if not step["valid"]:
                    continue
                stream.append(step)
                self._cut(stream, len(stream) - 1, False)
                if self.same_step and (step["terminated"] or step["truncated"]):
                    final = {name: step.get(f"final/{name}", value) for name, value in step.items()}
                    self._finish(stream, final)
        return len(self.items) - before

    def _finish(self, stream: list[Step], final: Step) -> None:
        stream.append(final)
        self._cut(stream, len(stream) - 1, True)
        stream.clear()

    def _cut(self, stream: list[Step], there: int, end: bool) -> None:
        """Make the sequences whose last observation is number ``there`` of the stream."""
        o = self.options
        offset = 0 if stream[0]["first"] else o.burn_in + o.stack - 1
        starts = range(offset, there, o.stride)
        covered = max([0, *(a + o.length for a in starts if a + o.length <= there)])
        for start in starts:
            if start + o.length == there:
                self._make(stream, start, o.length, end)
            elif end and start + o.length > there and (covered < there or covered == 0):
                self._make(stream, start, there - start, True)
                return

    def _make(self, stream: list[Step], start: int, length: int, end: bool) -> None:
        o = self.options
        begin = max(0, start - o.burn_in)
        item: dict[str, Any] = {"where": [], "valid": [], "first": [], "terminated": [], "reward": [], "action": []}
        for row in range(start - o.burn_in, start + o.length + 1):
            step = stream[min(max(row, begin), start + length)]
            real = begin <= row < start + length
            item["where"].append(step["obs/where"].tolist())
            item["valid"].append(real)
            item["first"].append(real and row == 0 and bool(step["first"]))
            item["terminated"].append(real and end and row == start + length - 1 and bool(step["terminated"]))
            item["reward"].append(step["reward"] if real else 0.0)
            item["action"].append(step["action"] if real else None)
        zero = begin == 0 and bool(stream[0]["first"])
        item["state"] = [0, 0, 0] if zero else stream[begin]["state/h"].tolist()
        item["c"] = [0, 0] if zero else stream[begin]["state/c"].tolist()
        item["probe/first"] = stream[start]["state/h"].tolist()
        item["probe/last"] = stream[start + length - 1]["state/h"].tolist() if length == o.length else None
        item["priority"] = self._priority(stream, start, length, bool(any(item["terminated"])))
        self.items.append(item)

    def _priority(self, stream: list[Step], start: int, length: int, terminated: bool) -> float:
        o, errors = self.options, []
        for t in range(start, start + length):
            steps = min(o.n_step, start + length - t)
            total = sum(o.gamma**i * float(stream[t + i]["reward"]) for i in range(steps))
            if not (terminated and t + steps == start + length):
                total += o.gamma**steps * self._inverse(float(stream[t + steps]["q_max"]))
            errors.append(abs(self._h(total) - float(stream[t]["q_taken"])))
        return o.eta * max(errors) + (1 - o.eta) * sum(errors) / len(errors) + o.eps

    def _h(self, x: float) -> float:
        eps = self.options.rescale
        return x if eps is None else math.copysign(math.sqrt(abs(x) + 1) - 1, x) + eps * x

    def _inverse(self, x: float) -> float:
        eps = self.options.rescale
        if not eps:
            return x if eps is None else math.copysign((abs(x) + 1) ** 2 - 1, x)
        root = math.sqrt(1 + 4 * eps * (abs(x) + 1 + eps))
        return math.copysign(((root - 1) / (2 * eps)) ** 2 - 1, x)
