"""A worker's own short memory of its last steps, from which auxiliary tasks are drawn (Jaderberg et al. 2017)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.api import Spec, Tensors, is_observation, observations
from shoal.learning.segment_learner import interrupted
from shoal.types import State

FRAMES = 3  # that the next reward is predicted from
_NOT_KEPT = "state/"


class Rewarded(NamedTuple):
    """Observations [FRAMES, N, ...] each, and the reward [N] of the action taken at the last of them."""

    obs: Tensors
    reward: Tensor


class FrameReplay:
    """The last ``capacity`` steps of each of a worker's environments, first in first out.

    A step is an observation and what followed: action, reward, and whether the episode ended.
    """

    def __init__(self, capacity: int, seed: int) -> None:
        self.capacity = capacity
        self.random = np.random.default_rng([seed, capacity])
        self.rows: Tensors = {}  # [capacity, B, ...]
        self.size = self.next = 0

    def add(self, items: Tensors) -> None:
        """A segment of trajectories (``roles.actor.unroll_spec``): [T, B], of observations one more, which the next
        segment begins with."""
        steps = len(items["reward"])
        kept = {k: v[:steps] for k, v in items.items() if not k.startswith(_NOT_KEPT)}
        if not self.rows:
            self.rows = {k: v.new_zeros((self.capacity, *v.shape[1:])) for k, v in kept.items()}
        if self.size:
            at = (self.next - 1) % self.capacity
            last = {k: v[at] for k, v in self.rows.items()}
            self.rows["valid"][at] &= ~interrupted(last, items["first"][0])
        places = torch.arange(self.next, self.next + steps) % self.capacity
        for k, v in kept.items():
            self.rows[k].index_copy_(0, places, v)
        self.next = (self.next + steps) % self.capacity
        self.size = min(self.size + steps, self.capacity)

    def sequences(self, steps: int, count: int) -> Tensors | None:
        """``count`` sequences of ``steps`` consecutive steps in the form of a segment, drawn uniformly, with the
        observation after the last; None where there are too few. They may cross the end of an episode."""
        if self.size <= steps:
            return None
        starts = self.random.integers(0, self.size - steps, count)
        columns = torch.from_numpy(self.random.integers(0, self._envs(), count))
        times = self._places(starts[None] + np.arange(steps + 1)[:, None])  # [steps + 1, count]
        out = {}
        for k, v in self.rows.items():
            more = k == "first" or is_observation(k)
            out[k] = v[times if more else times[:steps], columns]
        return out

    def rewarded(self, count: int) -> Rewarded | None:
        """Frames before a reward: with probability one half from the steps that had one, else from those that had none
        (from the other kind where there is none of a kind). All frames are of one episode, and the last is that at
        which the rewarded action was taken. None where no step has enough frames before it."""
        if self.size < FRAMES:
            return None
        order = self._places(np.arange(self.size))
        first, valid = self.rows["first"][order].numpy(), self.rows["valid"][order].numpy()
        reward = self.rows["reward"][order].numpy()
        possible = valid.copy()
        possible[: FRAMES - 1] = False
        for age in range(FRAMES - 1):  # the frames after the oldest begin no episode
            possible[FRAMES - 1 :] &= ~first[FRAMES - 1 - age : len(first) - age]
        kinds = [np.argwhere(possible & (reward == 0)), np.argwhere(possible & (reward != 0))]
        if not len(kinds[0]) + len(kinds[1]):
            return None
        drawn = []
        for wanted in self.random.random(count) < 0.5:
            kind = kinds[int(wanted)] if len(kinds[int(wanted)]) else kinds[1 - int(wanted)]
            drawn.append(kind[self.random.integers(len(kind))])
        at, column = np.array(drawn).T
        columns = torch.from_numpy(column)
        times = self._places(at[None] - np.arange(FRAMES - 1, -1, -1)[:, None])  # [FRAMES, count]
        obs = {k: v[times, columns] for k, v in observations(self.rows).items()}
        return Rewarded(obs, self.rows["reward"][times[-1], columns])

    def _envs(self) -> int:
        return self.rows["reward"].shape[1]

    def _places(self, ages: np.ndarray) -> Tensor:
        """Return where the steps lie that are so many after the oldest."""
        return torch.from_numpy((ages + self.next - self.size) % self.capacity)

    def state_dict(self) -> State:
        return {"rows": self.rows, "size": self.size, "next": self.next, "random": self.random.bit_generator.state}

    def load_state_dict(self, state: State) -> None:
        self.rows, self.size, self.next = dict(state["rows"]), state["size"], state["next"]
        self.random.bit_generator.state = state["random"]


def frame_replay_nbytes(capacity: int, spec: Spec) -> int:
    """Bytes of a FrameReplay of so many steps of each environment, of segments of ``spec``."""
    return sum(capacity * (f.nbytes // f.shape[0]) for name, f in spec.items() if not name.startswith(_NOT_KEPT))
