"""A policy as one module, tensors in and tensors out, that needs nothing of its environment: what is exported."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces as gs
from torch import Tensor, nn

from shoal.api import Action
from shoal.envs.action_box import ActionBox
from shoal.envs.composite import Leaf
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.cem_network import CEMNetwork
from shoal.nets.dpg_network import DPGNetwork
from shoal.nets.evolution_policy import EvolutionPolicy
from shoal.nets.q_network import QNetwork
from shoal.nets.recurrent_q_network import RecurrentQNetwork


class PolicyModule(nn.Module):
    """Inputs, in this order, each with a leading batch axis ``[B, ...]``: the observations (sorted as in ``names``),
    and, for a recurrent policy, ``first`` (bool ``[B]``, True where an episode starts) and its state.

    Outputs: ``action``, the best guess, as the environment takes it, or of a Dict or Tuple one for each of its leaves,
    ``action/PATH``; what it was chosen from (``q``, ``logits``, ``mean`` and ``log_std``; of a deterministic policy
    nothing); the next state.
    """

    def __init__(
        self, nets: ActorCritic | QNetwork | RecurrentQNetwork | DPGNetwork | CEMNetwork | EvolutionPolicy,
        names: list[str], action: Action, leaves: list[Leaf],
    ):  # fmt: skip
        super().__init__()
        self.nets, self.names, self.chosen = nets, names, action
        self.q_learning = isinstance(nets, (QNetwork, RecurrentQNetwork))
        self.deterministic = isinstance(nets, (DPGNetwork, CEMNetwork))
        self.state_names = [] if isinstance(nets, (QNetwork, DPGNetwork, CEMNetwork)) else list(nets.initial_state(1))
        self.parts = [ActionPart(leaf) for leaf in leaves]
        self.registered = nn.ModuleList(self.parts)

    def actions(self) -> list[str]:
        """Return the names of the outputs that the environment takes."""
        return ["/".join(("action", *map(str, part.path))) for part in self.parts]

    def inputs(self) -> list[str]:
        return self.names + (["first", *(f"state/{n}" for n in self.state_names)] if self.state_names else [])

    def outputs(self) -> list[str]:
        chosen_from: list[str] = []
        if not self.deterministic:
            chosen_from += (["q"] if self.q_learning else ["logits"]) if self.chosen.sizes else []
            chosen_from += ["mean", "log_std"] if self.chosen.low else []
        return [*self.actions(), *chosen_from, *(f"next/{n}" for n in self.state_names)]

    def forward(self, *args: Tensor) -> tuple[Tensor, ...]:
        obs = dict(zip(self.names, args, strict=False))
        rest = args[len(self.names) :]
        if isinstance(self.nets, QNetwork):
            q = self.nets(obs)
            return *self._taken(q.argmax(-1)), q
        if isinstance(self.nets, DPGNetwork):
            return self._taken(self.nets.act(self.nets.features(obs)))
        if isinstance(self.nets, CEMNetwork):
            return self._taken(self.nets(obs))
        state = dict(zip(self.state_names, rest[1:], strict=False))
        first = rest[0] if rest else next(iter(obs.values())).new_zeros(args[0].shape[0], dtype=torch.bool)
        if isinstance(self.nets, RecurrentQNetwork):
            q, state = self.nets.step(obs, first, state)
            return *self._taken(q.argmax(-1)), q, *(state[n] for n in self.state_names)
        params, _, state = self.nets.step(obs, first, state)
        chosen_from = self.nets.dist.parts(params)
        return *self._taken(self.nets.dist.mode(params)), *chosen_from, *(state[n] for n in self.state_names)

    def _taken(self, action: Tensor) -> tuple[Tensor, ...]:
        """Return the actions ``[B, ...]`` of agents as the environment takes them, one for each leaf."""
        rows = action.reshape(action.shape[0], -1)
        return tuple(part(rows) for part in self.parts)


class ActionPart(nn.Module):
    """Turns the columns of one leaf of the action space into what the environment takes there."""

    offset: Tensor
    low: Tensor
    high: Tensor
    middle: Tensor
    half_width: Tensor
    least: Tensor
    most: Tensor

    def __init__(self, leaf: Leaf):
        super().__init__()
        self.path, self.columns = leaf.path, leaf.columns.tolist()
        self.shape = tuple(leaf.space.shape or ())
        space: Any = leaf.space
        self.box = ActionBox(space) if isinstance(space, gs.Box) else None
        if self.box is None:
            offset = torch.as_tensor(np.ravel(getattr(space, "start", 0)))
            self.register_buffer("offset", offset.long(), persistent=False)
        else:
            box = self.box
            sides = {"least": box.low, "most": box.high, "middle": box.middle, "half_width": box.half}
            sides |= {"low": space.low, "high": space.high}
            for name, side in sides.items():
                side = side.astype(space.dtype).reshape(self.shape)
                self.register_buffer(name, torch.as_tensor(side), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """rows ``[B, n]``: whole actions of agents."""
        own = rows[:, self.columns]
        if self.box is None:
            return (own.long() + self.offset).reshape(-1, *self.shape)
        own = own.reshape(-1, *self.shape).to(self.low.dtype)
        inside = _clip(own, self.least, self.most)
        return inside if self.box.same else _clip(self.middle + self.half_width * inside, self.low, self.high)


def _clip(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(x, low), high)
