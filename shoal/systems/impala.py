"""IMPALA: actors send whole trajectories; a learner corrects their policy lag with V-trace.

Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from shoal import transfer
from shoal.api import Batch, Context, Learner, Spec, Tensors, Update, UsageError, spec_nbytes
from shoal.learning.actor_critic import ActorCriticAgent, ActorCriticConfig, boundaries
from shoal.learning.algorithm import Algorithm
from shoal.nets.actor_critic import ActorCritic, PolicyValue
from shoal.nets.recurrent import column_axis
from shoal.nets.torsos import Activation
from shoal.ops import explained_variance, vtrace
from shoal.program import Program
from shoal.settings.ranges import Count, Envs, Fraction, Natural, NonNegative, OnlyWith, Parts, Unbounded
from shoal.settings.schedule import Scheduled, linear
from shoal.topology.channels import queue, shapes, trajectories
from shoal.topology.config import Preset, Presets, SystemConfig, messages_per_batch
from shoal.topology.roles import actors_and_learner, trajectory_learner
from shoal.types import State
from shoal.words import counted


@dataclass(frozen=True, kw_only=True)
class Config(SystemConfig, ActorCriticConfig):
    """IMPALA. One update learns from ``batch`` trajectories of ``unroll`` steps."""

    has_server: ClassVar[bool] = True
    fixed_at_start: ClassVar[tuple[str, ...]] = ("replay",)
    for_more_updates: ClassVar[str] = "smaller values of unroll, batch, envs or total_envs"
    only_with: ClassVar[OnlyWith] = {"replay_ratio": ("replay",)}

    envs: Envs = 32
    unroll: Count = 20
    batch: Natural = 0
    """Trajectories in each gradient step, or as near to it as whole messages of `envs` and their parts allow; 0: one
    actor's message."""
    learners: Parts = 1
    """Learner processes, each with its share of the actors. Each learns from `batch` trajectories, and all apply the
    mean of their gradients (section 3)."""
    queue: Count = 1
    """Largest number of waiting messages of each actor, which bounds the policy lag. Where a server chooses the actions
    it is one more: the server keeps the actors in step, so that a full queue would stop all of them."""
    replay: Natural = 0
    """Trajectories that the learner keeps for replay; 0: none."""
    replay_ratio: NonNegative = 1.0
    """Replayed trajectories in a gradient step, for each fresh one."""
    trace_lambda: Scheduled[Fraction] = 1.0
    """Factor λ of the trace weights, c = λ min(c̄, π/μ)."""
    rho_bar: Scheduled[Unbounded] = 1.0
    """Upper clip ρ̄ of the importance weights: decides which policy's value is learned (section 4.1)."""
    c_bar: Scheduled[Unbounded] = 1.0
    """Upper clip c̄ of the trace weights: decides how fast the values are learned (section 4.1)."""
    correction: Literal["v-trace", "one-step", "epsilon", "none"] = "v-trace"
    """Off-policy correction: v-trace, or what it is compared with (section 5.2.2): one-step, importance weights on the
    advantages alone; epsilon, a small number added to π; none."""
    lag: Natural = 0
    """Updates by which the parameters of actors are too old, to study the lag (serial runtime only)."""
    pop_art: bool = False
    """Learn values on the scale of the returns, whatever the size of rewards, and divide advantages by it (Hessel et
    al. 2019)."""
    reduction: Literal["mean", "sum"] = "mean"
    """Mean or sum of the loss over batch and time (the paper sums)."""
    activation: Activation = "relu"
    core_size: Count = 256

    def updates(self) -> float | None:
        return self.steps / (self.unroll * (self.batch or self.envs) * self.learners)


PAPER: Preset = dict(  # section 5 and appendix D/G, Atari column
    steps=50_000_000, total_envs=64, unroll=20, batch=32, learning_rate=linear(6e-4, 0.0), optimiser="rmsprop",
    optimiser_eps=0.01, max_grad_norm=40.0, reduction="sum", entropy_cost=0.01, reward_clip="unit", life_loss=True,
    torso="impala-deep", precision="fp32",
)  # fmt: skip
ATARI: Preset = dict(  # the paper's optimiser: with Adam it learns far slower (benchmarks/results/notes-on-learning.md)
    steps=5_000_000, total_envs=32, unroll=20, batch=4, replay=512, replay_ratio=3.0, trace_lambda=0.95,
    learning_rate=linear(6e-4, 0.0), optimiser="rmsprop", optimiser_eps=0.01, max_grad_norm=40.0, reduction="sum",
    entropy_cost=0.01, reward_clip="sign", torso="impala-shallow",
)  # fmt: skip
CLASSIC: Preset = dict(
    steps=1_500_000, total_envs=64, batch=16, gamma=0.98, trace_lambda=0.9, learning_rate=linear(1e-3, 0.0),
    value_cost=0.25, max_grad_norm=1.0, entropy_cost=0.005, reward_scale=0.1,
)  # fmt: skip
BOX2D: Preset = dict(
    steps=2_000_000, total_envs=64, unroll=8, batch=8, gamma=0.995, reward_scale=0.02, learning_rate=linear(7e-4, 0.0),
    max_grad_norm=1.0, entropy_cost=0.001, hidden=(128, 128),
)  # fmt: skip
VECTOR: Preset = dict(  # tanh: a ReLU that the first, large errors have pushed below 0 stays there
    steps=1_500_000, total_envs=64, batch=8, trace_lambda=0.95, learning_rate=linear(1e-3, 0.0), max_grad_norm=1.0,
    entropy_cost=linear(0.01, 0.0), pop_art=True, normalise_obs=True, activation="tanh", novelty=0.5,
    novelty_steps=12_000,
)  # fmt: skip
VECTOR_CONTINUOUS: Preset = {**VECTOR, "batch": 4, "entropy_cost": 0.0}
STATES: Preset = {  # discount and entropy as PPO's; chosen on FrozenLake8x8
    **VECTOR, "gamma": 0.995, "entropy_cost": linear(0.02, 0.0), "normalise_obs": False, "episode_bound": 500,
    "novelty": 0.0,
}  # fmt: skip
PICTURE: Preset = {
    **VECTOR, "steps": 3_000_000, "total_envs": 32, "batch": 4, "replay": 512, "replay_ratio": 3.0,
    "learning_rate": linear(5e-4, 0.0), "torso": "impala-shallow", "novelty_steps": 45_000,
}  # fmt: skip
PICTURE_CONTINUOUS: Preset = {**PICTURE, "entropy_cost": 0.0}
# As PAPER, in small batches for a short run; network and gamma: Young and Tian 2019. Epsilon and batch chosen on
# SpaceInvaders (a return of 33 for 9 after 400,000 steps; a fresh seed: 27): beside the paper's epsilon, averages of
# this network's gradients are small. Shown on Breakout (5 for 4); Freeway is learned by one seed of two (20 and 0.8)
MINATAR: Preset = dict(
    steps=1_000_000, torso="minatar", total_envs=32, unroll=20, batch=2, learning_rate=linear(6e-4, 0.0),
    optimiser="rmsprop", optimiser_eps=1e-5, max_grad_norm=40.0, reduction="sum", entropy_cost=0.01,
)  # fmt: skip
PRESETS: Presets = {
    "paper": PAPER, "atari": ATARI, "classic": CLASSIC, "box2d": BOX2D, "minatar": MINATAR,
    "classic_continuous": VECTOR_CONTINUOUS, "states": STATES, "vector": VECTOR, "vector_continuous": VECTOR_CONTINUOUS,
    "picture": PICTURE, "picture_continuous": PICTURE_CONTINUOUS,
}  # fmt: skip


class VTrace(Algorithm):
    """The V-trace actor-critic loss (section 4.2): policy gradient, value regression, entropy bonus."""

    capturable = True

    def __init__(self, cfg: Config, nets: ActorCritic) -> None:
        super().__init__(nets)
        self.cfg = cfg
        # statistics move with the loss, and a core asks the host where episodes begin
        plain = not (cfg.normalise_obs or cfg.pop_art) and cfg.core == "none"
        self.capturable = self.capturable and plain

    def loss(self, outputs: PolicyValue, batch: Batch) -> tuple[Tensor, Update]:
        cfg, items, value = self.cfg, batch.items, outputs.value  # [T + 1, B]
        log_prob, entropies = outputs.evaluate(items["action"])
        discounts, next_values, cut = boundaries(items, value.detach(), cfg.gamma)
        log_rhos = log_prob.detach() - outputs.dist.log_prob(items["policy"], items["action"])
        corrected = log_rhos if cfg.correction == "v-trace" else torch.zeros_like(log_rhos)  # zero: as if on policy
        targets = vtrace(
            corrected, items["reward"], discounts, value[:-1].detach(), next_values, cut,
            rho_bar=cfg.rho_bar, c_bar=cfg.c_bar, lam=cfg.trace_lambda,
        )  # fmt: skip
        advantages = targets.pg_advantages
        if cfg.correction == "one-step":
            advantages = advantages * log_rhos.exp().clamp(max=1.0)
        elif cfg.correction == "epsilon":
            log_prob = (log_prob.exp() + 1e-6).log()  # section 5.2.2
        mask = items["valid"].float()
        scale = 1.0 / mask.sum().clamp(min=1.0) if cfg.reduction == "mean" else 1.0
        unit = self.nets.unit_of(targets.vs, items["valid"])
        policy_loss = -(advantages / unit * log_prob * mask).sum() * scale
        value_loss = 0.5 * (((targets.vs - value[:-1]) / unit).square() * mask).sum() * scale
        entropy = (entropies * mask).sum() * scale
        loss = policy_loss + cfg.value_cost * value_loss - cfg.entropy_cost * entropy
        self.nets.update_statistics(items)
        return loss, Update({
            "policy_loss": policy_loss.detach(),
            "value_loss": value_loss.detach(),
            "entropy": entropies.detach()[-1].mean(),
            "explained_variance": explained_variance(targets.vs - value[:-1].detach(), targets.vs, items["valid"]),
            "rho": log_rhos.clamp(max=10.0).exp().mean(),
        })  # fmt: skip

    def after_step(self, step: int) -> None:
        self.nets.rescale()


class TrajectoryReplay:
    """IMPALA's replay (Espeholt et al. 2018, section 5.2.2): the last ``capacity`` trajectories, first in first out.
    Each gradient step learns from the fresh ones and from ``ratio`` times as many drawn uniformly, with replacement,
    from all that are kept (the fresh ones among them).

    Tensors are stored as they come, [T, columns, ...] and recurrent states [columns, ...]; but of observations that are
    stacks of ``stack`` frames, each frame once.
    """

    def __init__(self, capacity: int, ratio: float, seed: int, stack: int = 1) -> None:
        self.capacity, self.ratio, self.stack = capacity, ratio, stack
        self.random = torch.Generator().manual_seed(seed)
        self.kept: Tensors = {}
        self.size = self.next = 0

    def mix(self, batch: Batch) -> Batch:
        """The batch, followed by columns from the memory; a copy. ``fresh`` [1, columns] says which are the batch's."""
        items = dict(batch.items)
        if self.stack > 1:
            items["obs"] = frames_of(items["obs"])
        if not self.kept:
            self.kept = {k: _room(k, v, self.capacity) for k, v in items.items()}
        count = next(v.shape[column_axis(k)] for k, v in items.items())
        fresh = torch.arange(self.next, self.next + count) % self.capacity
        device = next(iter(items.values())).device
        places = transfer.send(fresh, device)
        for k, v in items.items():
            self.kept[k].index_copy_(column_axis(k), places, v)
        self.next = (self.next + count) % self.capacity
        self.size = min(self.size + count, self.capacity)
        drawn = torch.randint(self.size, (round(self.ratio * count),), generator=self.random)
        columns = torch.cat([fresh, drawn])
        columns = transfer.send(columns, device)
        mixed = {k: v.index_select(column_axis(k), columns) for k, v in self.kept.items()}
        if self.stack > 1:
            mixed["obs"] = stacks_of(mixed["obs"], mixed["first"])
        mixed["fresh"] = (torch.arange(len(columns), device=device) < count)[None]
        return batch._replace(items=mixed, versions=())

    def state_dict(self) -> State:
        return {"kept": self.kept, "size": self.size, "next": self.next, "random": self.random.get_state()}

    def load_state_dict(self, state: State, device: torch.device | str = "cpu") -> None:
        """Go on from a state; ``device``: where the batches are."""
        self.kept = {k: v.to(device) for k, v in state["kept"].items()}
        self.size, self.next = state["size"], state["next"]
        self.random.set_state(state["random"])


def frames_of(stacks: Tensor) -> Tensor:
    """Stacks of S frames, the newest last, [T, columns, S, ...] -> each frame once, [S - 1 + T, columns, ...]."""
    return torch.cat([stacks[0, :, :-1].transpose(0, 1), stacks[:, :, -1]])


def stacks_of(frames: Tensor, first: Tensor) -> Tensor:
    """The stacks that ``frames_of`` took apart. first [T, columns]: where an episode begins; frames before it are 0."""
    steps = len(first)
    older = len(frames) - steps
    out = torch.stack([frames[k : k + steps] for k in range(older + 1)], 2)
    if first.device.type != "cpu":  # by operations that need not know where
        row = torch.arange(steps, device=first.device)[:, None]
        since = row - torch.where(first & (row > 0), row, -older).cummax(0).values  # of the episode, or more
        for place in range(older):
            out[:, :, place].masked_fill_((since < older - place).view(*since.shape, *[1] * (out.ndim - 3)), 0)
        return out
    for t, column in first[1:].nonzero().tolist():  # few; the first stack was stored with its own blanks
        for age in range(min(older, steps - 1 - t)):
            out[t + 1 + age, column, : older - age] = 0
    return out


def replay_nbytes(capacity: int, step: int, spec: Spec, envs: int, stack: int = 1) -> int:
    """Bytes of a TrajectoryReplay of ``capacity`` trajectories (0: none), where an item of ``spec`` brings ``envs``.
    UsageError if it cannot hold the ``step`` fresh ones of one gradient step."""
    if capacity and capacity < step:
        raise UsageError(f"replay ({counted(capacity, 'trajectory')}) must hold at least one gradient step's ({step})")
    if stack > 1:
        rows, columns, _, *frame = spec["obs"].shape
        spec = {**spec, "obs": replace(spec["obs"], shape=(rows + stack - 1, columns, *frame))}
    return capacity * spec_nbytes(spec) // envs


def _room(name: str, like: Tensor, columns: int) -> Tensor:
    shape = list(like.shape)
    shape[column_axis(name)] = columns
    return like.new_zeros(shape)


def network(cfg: Config, device: str = "cpu") -> ActorCritic:
    """Policy and value on one network."""
    return ActorCritic.of(cfg, cfg.env_spec(), device, pop_art=cfg.pop_art)


def agent(cfg: Config, seed: int = 0, ctx: Context | None = None) -> ActorCriticAgent:
    """Samples from the policy, whose parameters travel with the actions."""
    return ActorCriticAgent(network(cfg), seed, ("policy",))


def program(cfg: Config) -> Program:
    """Actors, a queue of trajectories, one learner or several."""
    count, fresh = messages_per_batch(cfg.batch, cfg.envs), cfg.batch or cfg.envs
    env, nets, writers = cfg.env_spec(), shapes(lambda: network(cfg)), max(1, cfg.num_actors() // cfg.learners)
    if cfg.learners > 1 and (cfg.normalise_obs or cfg.pop_art):
        name = "normalise_obs" if cfg.normalise_obs else "pop_art"
        raise UsageError(f"{name} serves one learner: several would each have statistics of their own")
    spec = trajectories(cfg, network, {"policy": ((nets.dist.params_size,), "float32")})

    def progress(ctx: Context, update: int) -> float:
        return (update * cfg.unroll * fresh * cfg.learners if cfg.learners > 1 else ctx.steps()) / cfg.steps

    def learn(nets: ActorCritic, ctx: Context) -> Learner:
        return trajectory_learner(
            cfg, VTrace(cfg, nets), partial(progress, ctx), cfg.learner_device(), learners=cfg.learners,
            parts=max(1, cfg.envs // fresh),
            replay=TrajectoryReplay(cfg.replay, cfg.replay_ratio, ctx.seed, env.stack) if cfg.replay else None,
        )  # fmt: skip

    sent = queue("trajectories", spec, max(cfg.queue + cfg.acts_by_server(), -(-count // writers)))
    held = replay_nbytes(cfg.replay, fresh, spec, cfg.envs, env.stack)
    return actors_and_learner(
        "impala", cfg, sent, network, agent, learn, count=count, memory=held, lag=cfg.lag, learners=cfg.learners
    )
