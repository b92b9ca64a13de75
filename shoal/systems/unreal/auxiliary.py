"""Auxiliary tasks of an actor-critic: pixel control, reward prediction and value replay, each a switch.

Jaderberg et al. 2017, "Reinforcement Learning with Unsupervised Auxiliary Tasks" (UNREAL).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from shoal.api import MASK, EnvSpec, State, Tensors, Update, UsageError, observations
from shoal.learning.actor_critic import boundaries
from shoal.learning.algorithm import Algorithm
from shoal.learning.segment_learner import SegmentLearner
from shoal.nets import PixelControlHead, RewardPredictionHead, autocast
from shoal.nets.actor_critic import ActorCritic
from shoal.ops import central_grid, lambda_returns, pixel_change, reward_class
from shoal.settings.ranges import Count, Fraction, NonNegative, OnlyWith
from shoal.systems.unreal.frame_replay import FRAMES, FrameReplay


@dataclass(frozen=True, kw_only=True)
class AuxiliaryConfig:
    """The auxiliary tasks and their weights in the loss."""

    fixed_at_start: ClassVar[tuple[str, ...]] = ("replay",)
    only_with: ClassVar[OnlyWith] = {
        "pixel_control_cost": ("pixel_control",), "pixel_control_gamma": ("pixel_control",),
        "pixel_cell": ("pixel_control",), "reward_prediction_cost": ("reward_prediction",),
        "value_replay_cost": ("value_replay",),
    }  # fmt: skip

    pixel_control: bool = True
    """Learn to change pixels: n-step Q-learning on replayed sequences, with the change of each cell of the screen as
    reward."""
    reward_prediction: bool = True
    """Predict, from frames of the replay, the sign of the next reward."""
    value_replay: bool = True
    """Learn values from the replay as well."""
    pixel_control_cost: NonNegative = 0.03
    """Weight of the pixel control loss, summed over cells (the paper draws it from 0.01 to 0.1 in Labyrinth)."""
    pixel_control_gamma: Fraction = 0.9
    """Discount of the changes of pixels, per agent step."""
    pixel_cell: Count = 4
    """Side of a cell (pixels)."""
    reward_prediction_cost: NonNegative = 1.0
    """Weight of the reward prediction loss."""
    value_replay_cost: NonNegative = 1.0
    """Weight of the value replay loss, which is half the squared error."""
    replay: Count = 2_000
    """Steps that each worker keeps, over all of its environments."""

    @property
    def auxiliary(self) -> bool:
        """Whether any of the tasks is on."""
        return self.pixel_control or self.reward_prediction or self.value_replay


class AuxiliaryNetwork(ActorCritic):
    """An actor-critic with the heads of the tasks that are on: pixel control behind the recurrent core, reward
    prediction behind the torso of three frames."""

    def __init__(self, env: EnvSpec, *, tasks: AuxiliaryConfig, **fields: Any) -> None:
        super().__init__(env, **fields)
        self.pixel_control: PixelControlHead | None = None
        self.reward_prediction: RewardPredictionHead | None = None
        if tasks.pixel_control:
            grid = screen_grid(env, tasks.pixel_cell)
            self.pixel_control = PixelControlHead(self.core.features, env.action.sizes[0], grid)
        if tasks.reward_prediction:
            self.reward_prediction = RewardPredictionHead(FRAMES * self.encoder.seen_features)

    def features(self, obs: Tensors, first: Tensor) -> Tensor:
        """obs [T, B, ...], first [T, B] -> what the heads are given [T, B, F], from a recurrent state of 0."""
        obs = self._normalise(obs)
        start = self.core.initial_state(first.shape[1])
        return self.core.unroll(self._encode(self.encoder, obs), first, start)[0]

    def predict_reward(self, obs: Tensors) -> Tensor:
        """obs [FRAMES, N, ...] -> logits [N, 3]."""
        assert self.reward_prediction is not None
        rows = {k: v.flatten(0, 1) for k, v in self._normalise(obs).items()}
        with autocast(self.precision, self.device):
            seen = self.encoder.see(rows)
        logits: Tensor = self.reward_prediction(seen.view(FRAMES, -1, seen.shape[-1]).transpose(0, 1).flatten(1))
        return logits


def screen(env: EnvSpec) -> str:
    """The leaf of the observation that is the screen: the first image. UsageError if there is none."""
    for name, leaf in env.observations.items():
        if leaf.kind == "image":
            return name
    found = ", ".join(f"'{name}' ({leaf.kind})" for name, leaf in env.observations.items())
    raise UsageError(
        f"pixel_control is supported where an observation is an image (Box of uint8); {env.id} has {found}: "
        "use --pixel-control false"
    )


def screen_grid(env: EnvSpec, cell: int) -> tuple[int, int]:
    """Rows and columns of cells. UsageError where the image is too small or actions are not discrete."""
    shape = env.observations[screen(env)].shape
    grid = central_grid(shape[1], shape[2], cell)
    if env.action.kind != "discrete":
        raise UsageError(f"pixel_control supports Discrete actions; {env.id} has {env.action}")
    if not all(grid):
        raise UsageError(
            f"pixel_control is supported for images (Box) of at least 4 x 4 cells of pixel_cell={cell} pixels; that of "
            f"{env.id} has {shape[1]} x {shape[2]} pixels"
        )
    return grid


class AuxiliaryTasks:
    """The losses of the tasks, summed over sequences of the replay. gamma: discount of the true reward."""

    def __init__(self, cfg: AuxiliaryConfig, nets: AuxiliaryNetwork, env: EnvSpec, gamma: float) -> None:
        self.cfg, self.nets, self.gamma, self.stack = cfg, nets, gamma, env.stack
        self.screen = screen(env) if cfg.pixel_control else ""
        self.grid = screen_grid(env, cfg.pixel_cell) if cfg.pixel_control else (0, 0)

    def pixel_control(self, items: Tensors) -> Tensor:
        """Half the squared error of n-step Q-learning in every cell (section 3.1); items: sequences of T steps."""
        cfg, first, action = self.cfg, items["first"], items["action"]
        assert self.nets.pixel_control is not None
        frames = items[self.screen]
        frames = frames[:, :, -1:] if self.stack > 1 else frames  # [T + 1, B, C, H, W]
        change = pixel_change(frames[:-1], frames[1:], cfg.pixel_cell, self.grid) * (1 / 255)  # [T, B, rows, columns]
        q = self.nets.pixel_control(self.nets.features(observations(items), first))  # [T + 1, B, A, rows, columns]
        ended = items["terminated"] | items["truncated"]
        lost = ended & ("final_value" in items)  # what was seen at the end: the next row is of another episode
        used = items["valid"] & ~lost
        change = change * used[..., None, None]
        discounts = cfg.pixel_control_gamma * (~(items["terminated"] | lost)).float()
        cut = ended | ~items["valid"]
        cut[:-1] |= ~used[1:]  # nothing is known of what the next row came to
        cells = [x[..., None, None].expand_as(change) for x in (discounts, cut)]
        best = q.detach() if MASK not in items else q.detach().masked_fill(~items[MASK][..., None, None], -torch.inf)
        returns = lambda_returns(change, cells[0], best.amax(2)[1:], cells[1], 1.0)
        index = action[..., None, None, None].expand(*action.shape, 1, *self.grid)
        error = returns - q[:-1].gather(2, index).squeeze(2)
        loss: Tensor = 0.5 * (error.square() * used[..., None, None]).sum()
        return loss

    def value_replay(self, items: Tensors) -> Tensor:
        """Half the squared error of the values (section 3.3); items: sequences of T steps."""
        value = self.nets.value(self.nets.features(observations(items), items["first"]))  # [T + 1, B]
        discounts, next_values, cut = boundaries(items, value.detach(), self.gamma)
        returns = lambda_returns(self.nets.scaled(items["reward"]), discounts, next_values, cut, 1.0)
        loss: Tensor = 0.5 * ((returns - value[:-1]).square() * items["valid"]).sum()
        return loss

    def reward_prediction(self, obs: Tensors, reward: Tensor) -> Tensor:
        """Cross-entropy of the reward's class (section 3.2); obs [FRAMES, N, ...], reward [N]."""
        return F.cross_entropy(self.nets.predict_reward(obs), reward_class(reward), reduction="sum")


class AuxiliaryLearner(SegmentLearner):
    """Adds the gradients of auxiliary tasks, from a memory of its own, to that of the segment.

    steps: length of the sequences; each loss is of as many of them as the worker has environments.
    """

    def __init__(
        self, algorithm: Algorithm, max_norm: float | None, tasks: AuxiliaryTasks, memory: FrameReplay, steps: int
    ) -> None:
        super().__init__(algorithm, max_norm)
        self.tasks, self.memory, self.steps = tasks, memory, steps

    def differentiate(self, items: Tensors) -> tuple[float, Tensor | None, Update]:
        loss, joined, update = super().differentiate(items)
        if not self.tasks.cfg.auxiliary:
            return loss, joined, update
        self.memory.add(items)
        terms = self._terms(items["reward"].shape[1])
        if not terms:
            return loss, joined, update
        cfg = self.tasks.cfg
        costs = {name: getattr(cfg, f"{name}_cost") for name in terms}
        total = torch.stack([costs[name] * term for name, term in terms.items()]).sum()
        total.backward()  # type: ignore[no-untyped-call]  # added to the gradient of the segment
        told = {f"{name}_loss": term.detach() for name, term in terms.items()}
        return loss + float(total.detach()), None, update._replace(metrics={**update.metrics, **told})

    def _terms(self, count: int) -> Mapping[str, Tensor]:
        """The losses that can be worked out yet, each from sequences drawn for it."""
        cfg, tasks, out = self.tasks.cfg, self.tasks, {}
        if cfg.pixel_control and (drawn := self.memory.sequences(self.steps, count)) is not None:
            out["pixel_control"] = tasks.pixel_control(drawn)
        if cfg.reward_prediction and (rewarded := self.memory.rewarded(count)) is not None:
            out["reward_prediction"] = tasks.reward_prediction(*rewarded)
        if cfg.value_replay and (drawn := self.memory.sequences(self.steps, count)) is not None:
            out["value_replay"] = tasks.value_replay(drawn)
        return out

    def state_dict(self) -> State:
        return {**super().state_dict(), "memory": self.memory.state_dict()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.memory.load_state_dict(state["memory"])
