"""IMPALA: actors send whole trajectories; a learner corrects their policy lag with V-trace.

Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from shoal.algos.actor_critic import ActorCritic, ActorCriticAgent, boundaries, observations, start_state
from shoal.algos.sgd import KnownLoss, SGDLearner
from shoal.algos.trajectories import TrajectoryReplay, replay_nbytes
from shoal.api import Batch, Channel, Context, ParamsReader, ParamsWriter, Reader, Spec, Tensors, Update, Writer
from shoal.envs import make
from shoal.nets import LiveTensors
from shoal.ops import Adam, RMSProp, linear, vtrace
from shoal.program import Program
from shoal.roles.actor import Actor, unroll_spec
from shoal.roles.learner import LearnerRole
from shoal.settings.ranges import Count, Fraction, Natural, NonNegative, Positive
from shoal.systems.common import CommonConfig, env_spec, messages_per_batch, params_spec


@dataclass(frozen=True, kw_only=True)
class Config(CommonConfig):
    """IMPALA's own fields. One update learns from ``batch`` trajectories of ``unroll`` steps."""

    envs: Count = 32
    unroll: Count = 20
    batch: Natural = 0
    """Trajectories per gradient step: a multiple or a divisor of `envs`; 0: one actor's message."""
    queue: Count = 1
    """Messages that each actor may have waiting: bounds the policy lag."""
    replay: Natural = 0
    """Trajectories that the learner keeps; 0: none."""
    replay_ratio: NonNegative = 1.0
    """Kept trajectories in a gradient step, per fresh one."""
    gamma: Fraction = 0.99
    """Discount per agent step."""
    trace_lambda: Fraction = 1.0
    """lambda in c = lambda min(c_bar, pi/mu)."""
    rho_bar: NonNegative = 1.0
    """Clip of the importance weights that set what is learned."""
    c_bar: NonNegative = 1.0
    """Clip of those that set how fast."""
    value_cost: NonNegative = 0.5
    """Weight of the value loss."""
    entropy_cost: float = 0.01
    """Weight of the entropy bonus."""
    learning_rate: NonNegative = 1e-3
    """At the start."""
    anneal: bool = True
    """Learning rate falls linearly to 0 over `steps`."""
    optimiser: Literal["adam", "rmsprop"] = "adam"
    """rmsprop: decay 0.99, epsilon inside the root, as in the paper."""
    optimiser_eps: NonNegative = 1e-5
    """Epsilon of the optimiser."""
    max_grad_norm: Positive = 0.5
    """Global gradient norm."""
    reduction: Literal["mean", "sum"] = "mean"
    """Of the loss over batch and time (the paper sums)."""
    activation: Literal["tanh", "relu"] = "relu"
    """Of the MLP."""
    core: Literal["none", "lstm", "gru"] = "none"
    """Recurrent core after the torso."""
    core_size: Count = 256
    """Units of the core."""
    last_action_reward: bool = False
    """Feed the last action and reward to the network."""
    normalise_obs: bool = False
    """Normalise vector observations by running statistics."""


PAPER: dict[str, Any] = dict(  # section 5 and appendix D/G, Atari column
    steps=50_000_000, unroll=20, batch=32, learning_rate=6e-4, optimiser="rmsprop", optimiser_eps=0.01,
    max_grad_norm=40.0, reduction="sum", entropy_cost=0.01, reward_clip="unit", life_loss=True,
    torso="impala-deep", precision="fp32",
)  # fmt: skip
ATARI: dict[str, Any] = dict(  # the paper's optimiser: with Adam it learns far slower (docs/results.md)
    steps=5_000_000, envs=16, unroll=20, batch=4, replay=512, replay_ratio=3.0, trace_lambda=0.95,
    learning_rate=6e-4, optimiser="rmsprop", optimiser_eps=0.01, max_grad_norm=40.0, reduction="sum",
    entropy_cost=0.01, reward_clip="sign", torso="impala-shallow",
)  # fmt: skip
CLASSIC: dict[str, Any] = dict(
    steps=1_500_000, batch=16, gamma=0.98, trace_lambda=0.9, learning_rate=1e-3, value_cost=0.25, max_grad_norm=1.0,
    entropy_cost=0.005,
)  # fmt: skip
BOX2D: dict[str, Any] = dict(
    steps=2_000_000, unroll=8, batch=8, gamma=0.995, reward_scale=0.02, learning_rate=7e-4, max_grad_norm=1.0,
    entropy_cost=0.001, hidden=(128, 128),
)  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {"paper": PAPER, "atari": ATARI, "classic": CLASSIC, "box2d": BOX2D}


class VTraceLoss:
    """The V-trace actor-critic loss (section 4.2): policy gradient, value regression, entropy bonus."""

    def __init__(self, cfg: Config, nets: ActorCritic) -> None:
        self.cfg, self.nets, self._live = cfg, nets, LiveTensors(nets)

    def loss(self, batch: Batch) -> tuple[KnownLoss, Update]:
        cfg, items, dist = self.cfg, batch.items, self.nets.dist
        outputs, backward = self.nets.differentiable(observations(items), items["first"], start_state(items))
        outputs.requires_grad_()
        both = outputs.t().view(-1, *items["first"].shape)  # [P + 1, T + 1, B]
        policy, value, action = both[:-1, :-1].movedim(0, -1), both[-1], items["action"]
        log_prob, entropies = dist.evaluate(policy, action)
        discounts, next_values, cut = boundaries(items, value.detach(), cfg.gamma)
        log_rhos = log_prob.detach() - dist.log_prob(items["policy"], action)
        targets = vtrace(
            log_rhos, items["reward"], discounts, value[:-1].detach(), next_values, cut,
            rho_bar=cfg.rho_bar, c_bar=cfg.c_bar, lam=cfg.trace_lambda,
        )  # fmt: skip
        mask = items["valid"].float()
        scale = 1.0 / mask.sum() if cfg.reduction == "mean" else 1.0
        policy_loss = -(targets.pg_advantages * log_prob * mask).sum() * scale
        value_loss = 0.5 * ((targets.vs - value[:-1]).square() * mask).sum() * scale
        entropy = (entropies * mask).sum() * scale
        loss = policy_loss + cfg.value_cost * value_loss - cfg.entropy_cost * entropy
        if cfg.normalise_obs:
            self.nets.update_statistics({k: v[:-1] for k, v in observations(items).items()}, items["valid"])
        metrics = {
            "policy_loss": policy_loss.detach(),
            "value_loss": value_loss.detach(),
            "entropy": entropies.detach()[-1].mean(),
            "rho": log_rhos.clamp(max=10.0).exp().mean(),
        }
        (gradient,) = torch.autograd.grad(loss, outputs)
        return KnownLoss(loss.detach(), partial(backward, gradient)), Update(metrics)

    def after_step(self, step: int) -> None:
        pass

    def actor_params(self) -> Tensors:
        return self._live.tensors


def network(cfg: Config, device: str = "cpu") -> ActorCritic:
    return ActorCritic(
        env_spec(cfg, cfg.last_action_reward), torso=cfg.torso, hidden=cfg.hidden, activation=cfg.activation,
        core=cfg.core, core_size=cfg.core_size, normalise_obs=cfg.normalise_obs, precision=cfg.precision, device=device,
    )  # fmt: skip


def agent(cfg: Config, seed: int = 0) -> ActorCriticAgent:
    return ActorCriticAgent(network(cfg), seed, ("policy",))


def trajectory_spec(cfg: Config) -> Spec:
    env = env_spec(cfg, cfg.last_action_reward)
    with torch.device("meta"):  # shapes only
        nets = network(cfg)
    state = {k: tuple(v.shape[1:]) for k, v in nets.initial_state(1).items()}
    return unroll_spec(env, cfg.unroll, cfg.envs, {"policy": ((nets.dist.params_size,), "float32")}, state)


def make_actor(cfg: Config, ctx: Context, trajectories: Writer, params: ParamsReader) -> Actor:
    env = make(cfg.env, cfg.envs, ctx.seed, cfg.env_options(cfg.last_action_reward))
    return Actor(ctx, env, agent(cfg, ctx.seed), trajectories, params, trajectory_spec(cfg))


def make_learner(cfg: Config, ctx: Context, trajectories: Reader, params: ParamsWriter) -> LearnerRole:
    torch.manual_seed(ctx.seed)
    device = cfg.learner_device()
    nets = network(cfg, device).to(device)
    if cfg.optimiser == "adam":
        optimiser: torch.optim.Optimizer = Adam(nets.parameters(), eps=cfg.optimiser_eps)
    else:
        optimiser = RMSProp(nets.parameters(), cfg.learning_rate, decay=0.99, eps=cfg.optimiser_eps)
    updates = cfg.steps / (cfg.unroll * (cfg.batch or cfg.envs))

    def learning_rate(update: int) -> float:
        return cfg.learning_rate * (linear(1.0, 0.0, update / updates) if cfg.anneal else 1.0)

    learner = SGDLearner(
        VTraceLoss(cfg, nets), optimiser, max_grad_norm=cfg.max_grad_norm, schedule=learning_rate, device=device,
        parts=max(1, cfg.envs // (cfg.batch or cfg.envs)),
        replay=TrajectoryReplay(cfg.replay, cfg.replay_ratio, ctx.seed, env_spec(cfg).stack) if cfg.replay else None,
    )  # fmt: skip
    return LearnerRole(ctx, learner, trajectories, params)


def program(cfg: Config) -> Program:
    count = messages_per_batch(cfg.batch, cfg.envs)
    p = Program("impala")
    capacity = max(cfg.queue, -(-count // cfg.num_actors()))
    spec = trajectory_spec(cfg)
    trajectories = p.channel(Channel("trajectories", "queue", spec, capacity))
    params = p.channel(Channel("params", "params", params_spec(lambda: network(cfg))))
    p.role(
        "actor", partial(make_actor, cfg), replicas=cfg.num_actors(), on_failure="restart",
        trajectories=trajectories.writer(), params=params.reader(),
    )  # fmt: skip
    p.role(
        "learner", partial(make_learner, cfg), threads=cfg.learner_threads or 1, device=cfg.learner_device(),
        memory=replay_nbytes(cfg.replay, cfg.batch or cfg.envs, spec, cfg.envs, env_spec(cfg).stack),
        trajectories=trajectories.reader(count), params=params.writer(),
    )  # fmt: skip
    return p
