"""A policy as one module, tensors in and tensors out, that needs nothing of its environment: what is exported."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces as gs
from torch import Tensor, nn

from shoal.envs.action_box import ActionBox
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.cem_network import CEMNetwork
from shoal.nets.dpg_network import DPGNetwork
from shoal.nets.evolution_policy import EvolutionPolicy
from shoal.nets.q_network import QNetwork
from shoal.nets.recurrent_q_network import RecurrentQNetwork


class PolicyModule(nn.Module):
    """Inputs, in this order, each with a leading batch axis ``[B, ...]``: the observations (sorted as in ``names``),
    and, for a recurrent policy, ``first`` (bool ``[B]``, True where an episode starts) and its state.

    Outputs: ``action``, the best guess, as the environment takes it; what it was chosen from (``q``, ``logits``, or
    ``mean`` and ``log_std``; of a deterministic policy nothing); the next state.
    """

    offset: Tensor
    low: Tensor
    high: Tensor
    middle: Tensor
    half_width: Tensor
    least: Tensor
    most: Tensor

    def __init__(
        self, nets: ActorCritic | QNetwork | RecurrentQNetwork | DPGNetwork | CEMNetwork | EvolutionPolicy,
        names: list[str], space: gs.Space[Any],
    ):  # fmt: skip
        super().__init__()
        self.nets, self.names, self.space = nets, names, space
        self.q_learning = isinstance(nets, (QNetwork, RecurrentQNetwork))
        self.deterministic = isinstance(nets, (DPGNetwork, CEMNetwork))
        self.state_names = [] if isinstance(nets, (QNetwork, DPGNetwork, CEMNetwork)) else list(nets.initial_state(1))
        self.discrete = isinstance(space, gs.Discrete)
        offset = torch.as_tensor(getattr(space, "start", 0)).reshape(-1)
        self.register_buffer("offset", offset.long(), persistent=False)
        if isinstance(space, gs.Box):
            self.box = ActionBox(space)
            sides = {
                "least": self.box.low,
                "most": self.box.high,
                "middle": self.box.middle,
                "half_width": self.box.half,
            }
            sides = {name: side.astype(space.low.dtype).reshape(space.shape) for name, side in sides.items()}
            for name, side in {**sides, "low": space.low, "high": space.high}.items():
                self.register_buffer(name, torch.as_tensor(side), persistent=False)

    def inputs(self) -> list[str]:
        return self.names + (["first", *(f"state/{n}" for n in self.state_names)] if self.state_names else [])

    def outputs(self) -> list[str]:
        if self.deterministic:
            return ["action"]
        parts = ["mean", "log_std"] if isinstance(self.space, gs.Box) else ["q" if self.q_learning else "logits"]
        return ["action", *parts, *(f"next/{n}" for n in self.state_names)]

    def forward(self, *args: Tensor) -> tuple[Tensor, ...]:
        obs = dict(zip(self.names, args, strict=False))
        rest = args[len(self.names) :]
        if isinstance(self.nets, QNetwork):
            q = self.nets(obs)
            return self._discrete(q.argmax(-1)), q
        if isinstance(self.nets, DPGNetwork):
            return (self._continuous(self.nets.act(self.nets.features(obs))),)
        if isinstance(self.nets, CEMNetwork):
            return (self._continuous(self.nets(obs)),)
        state = dict(zip(self.state_names, rest[1:], strict=False))
        first = rest[0] if rest else next(iter(obs.values())).new_zeros(args[0].shape[0], dtype=torch.bool)
        if isinstance(self.nets, RecurrentQNetwork):
            q, state = self.nets.step(obs, first, state)
            return self._discrete(q.argmax(-1)), q, *(state[n] for n in self.state_names)
        params, _, state = self.nets.step(obs, first, state)
        tail = tuple(state[n] for n in self.state_names)
        if isinstance(self.space, gs.Box):
            mean, log_std = params.chunk(2, -1)
            return self._continuous(mean), mean, log_std, *tail
        return self._discrete(self.nets.dist.mode(params)), params, *tail

    def _discrete(self, action: Tensor) -> Tensor:
        if self.discrete:
            return action + self.offset[0]
        shape = self.space.shape
        assert shape is not None
        return (action + self.offset).reshape(-1, *shape)

    def _continuous(self, action: Tensor) -> Tensor:
        """From the units that agents act in to the environment's (``ActionBox``)."""
        inside = _clip(action.reshape(-1, *self.low.shape).to(self.low.dtype), self.least, self.most)
        return inside if self.box.same else _clip(self.middle + self.half_width * inside, self.low, self.high)


def _clip(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(x, low), high)
