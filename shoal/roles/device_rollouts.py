"""Trajectories that never leave the learner's device: environments, policy and batch are tensors there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal.api import Batch, Context, Spec, Tensors
from shoal.on_device import DeviceEnvBatch, go_on_drawing
from shoal.roles.learner import LearnerRole
from shoal.types import State


class DeviceRollouts:
    """A ``Reader`` whose ``get`` plays one trajectory [T, E, ...] with the learner's own network, sampling its actions.

    nets: an ``ActorCritic`` on the environments' device. To the host come, once for each trajectory, the returns and
    lengths of the episodes that ended in it, and how many were truncated; no observation, action or reward.
    """

    def __init__(self, ctx: Context, env: DeviceEnvBatch, nets: Any, spec: Spec) -> None:
        self.ctx, self.env, self.nets = ctx, env, nets
        self.steps = spec["reward"].shape[0]
        self.extras = [name for name in ("policy", "log_prob") if name in spec]
        self.rng = torch.Generator(env.device).manual_seed(ctx.seed)
        self.obs = env.reset(ctx.seed)
        self.first = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        self.state: Tensors = {k: v.to(env.device) for k, v in nets.initial_state(env.num_envs).items()}
        self.ret = torch.zeros(env.num_envs, dtype=torch.float64, device=env.device)
        self.length = torch.zeros(env.num_envs, dtype=torch.int64, device=env.device)

    def ready(self) -> bool:
        return True

    poll = ready

    def reprioritise(self, keys: Tensor, priorities: Tensor) -> None:
        """Do nothing: nothing is kept."""

    @torch.no_grad()
    def get(self) -> Batch:
        metrics = self.ctx.metrics
        metrics.enter("env")
        start = {f"state/{k}": v for k, v in self.state.items()}
        rows: list[Tensors] = []
        finals: list[tuple[Tensors, Tensors]] = []  # true next observations, and the recurrent states to read them with
        played: list[tuple[Tensor, Tensor]] = []
        for _ in range(self.steps):
            row, final, ended = self._step()
            rows.append(row)
            finals.append(final)
            played.append(ended)
        _, value, _ = self.nets.step(self.obs, self.first, self.state)
        last = {**self.obs, "first": self.first, "value": value}
        items = {k: torch.stack([row[k] for row in rows] + ([last[k]] if k in last else [])) for k in rows[0]}
        items["final_value"] = self._final_values(items["truncated"], finals)
        self._tell(items["terminated"] | items["truncated"], played)
        return Batch({**items, **start})

    def _step(self) -> tuple[Tensors, tuple[Tensors, Tensors], tuple[Tensor, Tensor]]:
        policy, value, after = self.nets.step(self.obs, self.first, self.state)
        action = self.nets.dist.sample(policy, self.rng)
        stored = {"policy": policy, "log_prob": self.nets.dist.log_prob(policy, action)}
        step = self.env.step(action)
        row = {
            **self.obs, "first": self.first, "action": action, "reward": step.reward, "value": value,
            "terminated": step.terminated, "truncated": step.truncated, "valid": torch.ones_like(self.first),
            **{name: stored[name] for name in self.extras},
        }  # fmt: skip
        self.ret, self.length = self.ret + step.reward, self.length + 1
        ended = step.terminated | step.truncated
        played = self.ret, self.length
        self.ret, self.length = self.ret.masked_fill(ended, 0.0), self.length.masked_fill(ended, 0)
        self.obs, self.first, self.state = step.obs, ended, after
        return row, (step.final_obs, after), played

    def _final_values(self, truncated: Tensor, finals: list[tuple[Tensors, Tensors]]) -> Tensor:
        """The values [T, E] of the true last observations of episodes that were truncated; 0 elsewhere."""
        out = torch.zeros(truncated.shape, device=truncated.device)
        for t in truncated.any(1).nonzero().flatten().tolist():
            obs, state = finals[t]
            _, value, _ = self.nets.step(obs, torch.zeros_like(truncated[t]), state)
            out[t] = torch.where(truncated[t], value, 0.0)
        return out

    def _tell(self, ended: Tensor, played: list[tuple[Tensor, Tensor]]) -> None:
        metrics = self.ctx.metrics
        metrics.count("env_steps", ended.numel())
        metrics.count("actions", ended.numel())
        returns, lengths = (torch.stack(values)[ended] for values in zip(*played, strict=True))
        for ret, length in zip(returns.tolist(), lengths.tolist(), strict=True):
            metrics.episode(ret, length)

    def state_dict(self) -> State:
        own = {"obs": self.obs, "first": self.first, "state": self.state, "ret": self.ret, "length": self.length}
        return {**own, "env": self.env.state_dict(), "rng": self.rng.get_state()}

    def load_state_dict(self, state: State) -> None:
        """Continue the saved episodes, or start new ones if the environments save no state. On a device of another kind
        the random numbers differ."""
        device = self.env.device
        go_on_drawing(self.rng, state["rng"])
        if not state["env"]:
            return
        self.obs, self.state = ({k: v.to(device) for k, v in state[name].items()} for name in ("obs", "state"))
        self.first, self.ret, self.length = (state[name].to(device) for name in ("first", "ret", "length"))
        self.env.load_state_dict(state["env"])


class DeviceLearnerRole(LearnerRole):
    """Act and learn in one process: one step is a trajectory with the current parameters, an update, and a publish."""

    batches: DeviceRollouts

    def _meanwhile(self) -> None:
        """Publish only: the next trajectory is of the parameters after the update."""
        self._flush()

    def state_dict(self) -> State:
        return {**super().state_dict(), "rollouts": self.batches.state_dict()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.batches.load_state_dict(state["rollouts"])
