"""Environments that record how they were reached: the seed and every action since."""

from __future__ import annotations

import numpy as np

from shoal.api import Arrays, EnvBatch, EnvironmentFailed, EnvStep, Episode
from shoal.types import State


class RecordedEnvs:
    """An ``EnvBatch`` that can be saved. Few environments give their state, but every deterministic one arrives at it
    again: ``load_state_dict`` resets it, repeats every action and compares the last observations.

    The state grows by one action per step, and loading it takes as long as the recorded steps took.
    """

    _seed: int  # of the last reset
    _actions: list[np.ndarray]  # since then

    def __init__(self, inner: EnvBatch) -> None:
        self.inner, self.spec, self.num_envs = inner, inner.spec, inner.num_envs
        self.obs: Arrays = {}  # the newest observations

    def reset(self, seed: int) -> Arrays:
        self._seed, self._actions = seed, []
        self.obs = self.inner.reset(seed)
        return self.obs

    def step(self, action: np.ndarray) -> EnvStep:
        self._actions.append(np.array(action))
        step = self.inner.step(action)
        self.obs = step.obs
        return step

    def so_far(self) -> list[Episode]:
        return self.inner.so_far()

    def close(self) -> None:
        self.inner.close()

    def state_dict(self) -> State:
        actions = np.stack(self._actions) if self._actions else None
        return {"seed": self._seed, "actions": actions, "obs": dict(self.obs)}

    def load_state_dict(self, state: State) -> None:
        """EnvironmentFailed if the environments do not arrive where they were, ValueError for what were no actions."""
        actions, wanted = state["actions"], (self.num_envs, *self.spec.action.shape)
        if actions is not None and (actions.shape[1:] != wanted or actions.dtype.kind not in "iuf"):
            raise ValueError(f"expected actions of the shape {list(wanted)}, found {list(actions.shape[1:])}")
        self.reset(state["seed"])
        for action in () if actions is None else actions:
            self.step(action)
        for name, array in state["obs"].items():
            if not np.array_equal(self.obs[name], array, equal_nan=array.dtype.kind == "f"):
                raise EnvironmentFailed(
                    f"environment {self.spec.id!r} is not deterministic: with the same seed and the same "
                    f"{len(self._actions)} actions it shows another {name!r}, so the run cannot be resumed exactly "
                    "(a new run may begin with its parameters: init_from, or shoal train --init-from RUN)"
                )
