"""DQN: one actor, a replay, a learner; double, dueling, n-step and prioritised replay as switches.

Mnih et al. 2015, "Human-level control through deep reinforcement learning"; van Hasselt et al. 2016;
Wang et al. 2016; Schaul et al. 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from shoal.algos.q_learning import QAgent, QLearning, QNetwork, SharedQLearner
from shoal.algos.sgd import SGDLearner
from shoal.api import Channel, Context, ParamsReader, ParamsWriter, Ratio, Reader, Spec, Writer, spec_nbytes
from shoal.envs import make
from shoal.ops import Adam, RMSProp, linear
from shoal.program import Program
from shoal.replay import TableSpec
from shoal.roles.actor import Actor, unroll_spec
from shoal.roles.learner import LearnerRole
from shoal.settings.ranges import Count, Fraction, Natural, NonNegative, Positive
from shoal.systems.common import CommonConfig, env_spec, params_spec, require_actions, sharing


@dataclass(frozen=True, kw_only=True)
class Config(CommonConfig):
    """DQN's own fields; periods are in learner updates unless they say otherwise."""

    actors: Natural = 1
    """Actor processes (the paper's system has one)."""
    envs: Count = 8
    unroll: Count = 8
    steps: Count = 200_000
    hidden: tuple[Count, ...] = (128, 128)
    double: bool = True
    """Select the next action by the online network (double Q-learning)."""
    dueling: bool = False
    """Separate value and advantage streams."""
    n_step: Count = 3
    """Steps of reward before the bootstrap (agent steps)."""
    prioritised: bool = False
    """Sample in proportion to the TD error."""
    sampler: Literal["proportional", "rank", "greedy"] = "proportional"
    """How prioritised replay samples."""
    priority_exponent: NonNegative = 0.6
    """alpha of prioritised replay."""
    importance_exponent: Fraction = 0.4
    """beta of prioritised replay at the start; it rises linearly to 1 at the run's end."""
    gamma: Fraction = 0.99
    """Discount per agent step."""
    learning_rate: NonNegative = 1e-3
    """Of the optimiser, at the start."""
    anneal: bool = False
    """Learning rate falls linearly to 0 at the last update of `steps` (the papers keep it constant)."""
    optimiser: Literal["adam", "rmsprop"] = "adam"
    """rmsprop: centred, epsilon inside the root, as in the paper."""
    optimiser_eps: NonNegative = 1e-5
    """Epsilon of the optimiser."""
    max_grad_norm: Positive | None = 10.0
    """Global gradient norm; none: no clipping."""
    td_clip: Positive | None = 1.0
    """Clip of the TD error's gradient; none: squared error."""
    reduction: Literal["mean", "sum"] = "mean"
    """Of the loss over the batch (the paper's code sums)."""
    batch: Count = 128
    """Transitions per update."""
    samples_per_insert: NonNegative = 8.0
    """Transitions learned from per environment step; 0: acting and learning never wait for each other."""
    replay: Count = 100_000
    """Capacity (transitions)."""
    min_replay: Count = 1_000
    """Transitions before the first update."""
    target_period: Count = 100
    """Updates between copies into the target network."""
    epsilon_start: Fraction = 1.0
    """Exploration at the start: probability of a random action."""
    epsilon_end: Fraction = 0.02
    """Exploration after `epsilon_steps`."""
    epsilon_steps: Natural = 10_000
    """Annealing time of epsilon (agent steps over all actors)."""
    learner_processes: Natural = 0
    """Processes that share each gradient; 0: one per core where batches of images are large enough."""


PAPER: dict[str, Any] = dict(  # Mnih et al. 2015, extended data table 1; periods converted to updates
    envs=1, unroll=4, steps=50_000_000, double=False, n_step=1, learning_rate=2.5e-4, optimiser="rmsprop",
    optimiser_eps=0.01, max_grad_norm=None, reduction="sum", batch=32, samples_per_insert=8.0, replay=1_000_000,
    min_replay=50_000, target_period=2_500, epsilon_end=0.1, epsilon_steps=1_000_000, reward_clip="sign",
    life_loss=True, torso="nature", precision="fp32",
)  # fmt: skip
ATARI: dict[str, Any] = dict(
    envs=16, unroll=16, steps=1_000_000, dueling=True, prioritised=True, learning_rate=2.5e-4, optimiser_eps=1.5e-4,
    batch=128, samples_per_insert=4.0, replay=200_000, min_replay=10_000, target_period=200,
    epsilon_end=0.1,  # the paper's; with 0.01 Pong is learned far more slowly (docs/results.md)
    epsilon_steps=100_000, reward_clip="sign", life_loss=True, torso="impala-shallow",
)  # fmt: skip
CLASSIC: dict[str, Any] = dict(
    steps=150_000, anneal=True, batch=64, samples_per_insert=16.0, target_period=200,
)  # fmt: skip
BOX2D: dict[str, Any] = dict(
    steps=500_000, learning_rate=5e-4, anneal=True, batch=128, samples_per_insert=32.0, target_period=250,
    hidden=(256, 256), reward_scale=0.1, epsilon_steps=50_000,
)  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {"paper": PAPER, "atari": ATARI, "classic": CLASSIC, "box2d": BOX2D}


def network(cfg: Config, device: str = "cpu") -> QNetwork:
    env = env_spec(cfg)
    require_actions("dqn", env, "discrete")
    return QNetwork(
        env, torso=cfg.torso, hidden=cfg.hidden, dueling=cfg.dueling, precision=cfg.precision, device=device
    )


def agent(cfg: Config, seed: int = 0, replicas: int = 1, taken: int = 0) -> QAgent:
    """Epsilon falls linearly over ``epsilon_steps`` of all ``replicas`` together; this one took ``taken`` before."""

    def epsilon(steps: int) -> float:
        return linear(cfg.epsilon_start, cfg.epsilon_end, steps * replicas / cfg.epsilon_steps)

    return QAgent(network(cfg), epsilon, seed, taken=taken)


def optimiser(cfg: Any, nets: torch.nn.Module) -> torch.optim.Optimizer:
    """Adam, or the paper's RMSProp (centred, decay 0.95)."""
    if cfg.optimiser == "adam":
        return Adam(nets.parameters(), cfg.learning_rate, eps=cfg.optimiser_eps)
    return RMSProp(nets.parameters(), cfg.learning_rate, decay=0.95, eps=cfg.optimiser_eps, centred=True)


def make_actor(cfg: Config, ctx: Context, transitions: Writer, params: ParamsReader) -> Actor:
    env = make(cfg.env, cfg.envs, ctx.seed, cfg.env_options())
    policy = agent(cfg, ctx.seed, ctx.replicas, ctx.counts.get("actions", 0))
    return Actor(ctx, env, policy, transitions, params, stream_spec(cfg))


def make_learner(cfg: Config, ctx: Context, transitions: Reader, params: ParamsWriter) -> LearnerRole:
    torch.manual_seed(ctx.seed)
    nets = network(cfg, cfg.learner_device()).to(cfg.learner_device())

    def beta(update: int) -> float:
        return linear(cfg.importance_exponent, 1.0, progress(cfg, update))

    algorithm = QLearning(
        nets, double=cfg.double, target_period=cfg.target_period, clip=cfg.td_clip, reduction=cfg.reduction,
        beta=beta if cfg.prioritised else None,
    )  # fmt: skip
    return LearnerRole(ctx, sgd(cfg, ctx, algorithm), transitions, params)


def progress(cfg: Config, update: int) -> float:
    """Share of the run's updates that are done; 0 where the ratio does not say how many there will be."""
    return update * cfg.batch / (cfg.steps * cfg.samples_per_insert) if cfg.samples_per_insert else 0.0


def sgd(cfg: Config, ctx: Context, algorithm: QLearning) -> SGDLearner:
    def learning_rate(update: int) -> float:
        return cfg.learning_rate * (linear(1.0, 0.0, progress(cfg, update)) if cfg.anneal else 1.0)

    rule: dict[str, Any] = dict(max_grad_norm=cfg.max_grad_norm, schedule=learning_rate)
    members = learner_processes(cfg)
    if ctx.team is not None and members > 1:
        return SharedQLearner(algorithm, optimiser(cfg, algorithm.nets), ctx.team(members), **rule)
    return SGDLearner(algorithm, optimiser(cfg, algorithm.nets), device=cfg.learner_device(), **rule)


def learner_processes(cfg: Config) -> int:
    """How many share a gradient. A share of fewer than 16 images, or of other rows, costs its process as much; where
    nobody waits for the learner, the cores are the actors'."""
    images = any(o.kind == "image" for o in env_spec(cfg).observations.values())
    return sharing(
        cfg.learner_processes, cfg.learner_device(), cfg.batch // 16 if images and cfg.samples_per_insert else 1
    )


def ratio(cfg: Config) -> Ratio:
    """Learning and acting wait for each other by at most two messages or two batches."""
    if not cfg.samples_per_insert:
        return Ratio(cfg.min_replay)
    message = cfg.unroll * cfg.envs * cfg.samples_per_insert
    return Ratio(cfg.min_replay, cfg.samples_per_insert, slack=2 * max(message, cfg.batch))


def stream_spec(cfg: Config) -> Spec:
    return unroll_spec(env_spec(cfg), cfg.unroll, cfg.envs, extras={}, stream=True)


def program(cfg: Config) -> Program:
    return wire("dqn", cfg, stream_spec(cfg), table_spec(cfg), make_actor, make_learner)


def table_spec(cfg: Config, **fields: Any) -> TableSpec:
    """The replay table; ``fields`` are what Ape-X adds."""
    env = env_spec(cfg)
    return TableSpec(
        capacity=cfg.replay, n_step=cfg.n_step, gamma=cfg.gamma, stack=env.stack, pad=env.pad,
        sampler=cfg.sampler if cfg.prioritised else "uniform", alpha=cfg.priority_exponent, **fields,
    )  # fmt: skip


def wire(name: str, cfg: Config, stream: Spec, table: TableSpec, actor: Any, learner: Any) -> Program:
    """Actors -> replay -> learner -> parameters -> actors: the topology of DQN and of Ape-X DQN."""
    p = Program(name)
    transitions = p.channel(Channel("transitions", "replay", stream, 2, ratio(cfg), table))
    parameters = params_spec(lambda: network(cfg))
    params = p.channel(Channel("params", "params", parameters))
    p.role(
        "actor", partial(actor, cfg), replicas=cfg.num_actors(), on_failure="restart",
        transitions=transitions.writer(), params=params.reader(),
    )  # fmt: skip
    members = learner_processes(cfg)
    copies = members + 4  # of the parameters: both networks, a gradient of each member, both averages of the optimiser
    p.role(
        "learner", partial(learner, cfg), threads=cfg.learner_threads or 1, device=cfg.learner_device(),
        memory=copies * spec_nbytes(parameters) if members > 1 else 0,
        transitions=transitions.reader(cfg.batch), params=params.writer(),
    )  # fmt: skip
    return p
