"""An actor for a learner in the same process: its trajectories are not sent through a channel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from shoal import transfer
from shoal.api import Agent, Arrays, Context, EnvBatch, ParamsReader, Spec, Tensors
from shoal.roles.actor import ActorRole
from shoal.types import State


class OwnParams:
    """The parameters of a rank's own learner, as its actor reads them."""

    def __init__(self, params: Callable[[], Tensors]) -> None:
        self._params, self.version = params, 0
        self._mirror: transfer.Mirror | None = None

    def ready(self) -> bool:
        return True

    def latest(self, newer_than: int = -1) -> tuple[int, Tensors] | None:
        return (self.version, self._here()) if self.version > newer_than else None

    def _here(self) -> Tensors:
        """Return the parameters, those of a GPU by one copy."""
        params = self._params()
        if transfer.streams(next(iter(params.values())).device) is None:
            return params
        self._mirror = self._mirror or transfer.Mirror(params)
        self._mirror.begin(params)
        return self._mirror.take()

    def newest(self) -> int:
        return self.version


class Collector(ActorRole):
    """An actor whose trajectories stay in its process. ``advance`` extends the current one; ``take`` returns it."""

    def __init__(self, ctx: Context, env: EnvBatch, agent: Agent, params: ParamsReader, spec: Spec) -> None:
        super().__init__(ctx, env, agent, None, params, spec)  # type: ignore[arg-type]  # it writes to no channel
        self.unroll: Arrays = {name: np.zeros(f.shape, f.dtype) for name, f in spec.items()}
        self.taken = 0  # steps of this trajectory

    def advance(self, steps: int) -> None:
        """Take ``steps`` more steps in every environment."""
        metrics = self.ctx.metrics
        metrics.enter("unroll")
        if not self.taken:
            self._update_params()
            self._begin(self.unroll)
        count = min(steps, self.steps - self.taken)
        valid = 0
        for t in range(count):
            valid += self._step_envs(self.unroll, self.taken + t)
            metrics.making(valid)
        self.taken += count
        metrics.making(0)
        metrics.count("env_steps", valid)
        metrics.count("actions", count * self.env.num_envs)

    def take(self) -> Tensors:
        """The trajectory so far; valid until the next ``advance``, which begins another."""
        taken, self.taken = self.taken, 0
        self._end(self.unroll, taken)
        rows = {name: len(array) - self.steps for name, array in self.unroll.items()}  # of those that count in steps
        out = {}
        for name, array in self.unroll.items():
            whole = name.startswith("state/")
            out[name] = torch.from_numpy(array if whole else array[: taken + rows[name]])
        return out

    def state_dict(self) -> State:
        out = super().state_dict()
        return out | {"unroll": self.unroll, "taken": self.taken} if self.ctx.exact else out

    def load_state_dict(self, state: State) -> None:
        """Restore the state. If environments start new episodes, so does the trajectory."""
        super().load_state_dict(state)
        if self.ctx.exact:
            self.taken = state["taken"]
            for name, array in self.unroll.items():
                array[...] = state["unroll"][name]
