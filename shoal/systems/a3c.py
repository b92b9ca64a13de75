"""A3C: workers that act and learn by themselves on parameters they share in memory, without a lock.

Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shoal import fast
from shoal.api import Batch, Context, Update, spec_nbytes
from shoal.fast import actor_critic as compiled
from shoal.learning.actor_critic import ActorCriticAgent, ActorCriticConfig, boundaries
from shoal.learning.algorithm import Algorithm
from shoal.learning.segment_learner import SegmentLearner
from shoal.nets.actor_critic import ActorCritic, PolicyValue
from shoal.ops import check
from shoal.ops.returns import lambda_returns
from shoal.ops.value import discrete_policy
from shoal.program import Program
from shoal.roles.worker import WorkerRole
from shoal.settings.schedule import linear
from shoal.topology.asynchronous import WorkerConfig, shared_parameters
from shoal.topology.channels import trajectories
from shoal.topology.config import Preset, Presets
from shoal.topology.roles import begin, collector
from shoal.types import State, Values


@dataclass(frozen=True, kw_only=True)
class Config(WorkerConfig, ActorCriticConfig):  # in this order, for the defaults of the first win
    """A3C."""

    value_cost: float = 1.0
    """Weight of the value loss, which is half the squared error."""
    normalise_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return, which the workers share."""

    def reward_discount(self) -> float | None:
        """Return the discount of the returns that rewards are divided by the deviation of; None: they are not."""
        return self.gamma if self.normalise_reward else None


PAPER: Preset = dict(  # section 4 and supplementary section 8; learning rate: authors, in muupan/async-rl
    actors=16, envs=1, unroll=5, steps=80_000_000, learning_rate=linear(7e-4, 0.0), optimiser_eps=0.1,
    rmsprop_decay=0.99, max_grad_norm=40.0, entropy_cost=0.01, value_cost=0.5, gamma=0.99, reward_clip="unit",
    torso="impala-shallow", activation="relu", core_size=256, precision="fp32",
)  # fmt: skip
CLASSIC: Preset = dict(
    actors=2, envs=4, unroll=16, steps=500_000, learning_rate=linear(2e-3, 0.0), optimiser_eps=1e-2, gamma=0.98,
    max_grad_norm=40.0, entropy_cost=0.01, value_cost=0.25, reward_scale=0.1,
)  # fmt: skip
VECTOR: Preset = {  # of any environment: rewards of any size, vectors of any scale; chosen on MountainCar
    **CLASSIC, "steps": 1_000_000, "gamma": 0.99, "entropy_cost": linear(0.01, 0.0), "reward_scale": 1.0,
    "normalise_obs": True, "normalise_reward": True, "novelty": 0.5, "novelty_steps": 60_000,
}  # fmt: skip
# A rare reward that is scaled down counts for less than entropy: chosen on FrozenLake-v1. Discount as PPO's: what is
# best by 0.99 reaches the goal of FrozenLake8x8 in 86 % of episodes, what is best by 0.995 in 89 % (value iteration)
STATES: Preset = {
    **CLASSIC, "steps": 1_000_000, "gamma": 0.995, "entropy_cost": linear(0.02, 0.0), "reward_scale": 1.0,
    "normalise_reward": True, "episode_bound": 500,
}  # fmt: skip
# As PAPER, with 16 environments of 2 workers, and Young and Tian's network (2019). Epsilon chosen on Breakout: beside
# the root of the paper's, 0.32, most averages of this network's gradients are small (medians of layers: 0.001 to 0.08)
MINATAR: Preset = dict(
    actors=2, envs=8, unroll=5, steps=1_000_000, torso="minatar", learning_rate=linear(7e-4, 0.0), optimiser_eps=1e-4,
    rmsprop_decay=0.99, max_grad_norm=40.0, entropy_cost=0.01, value_cost=0.5, gamma=0.99,
)  # fmt: skip
PRESETS: Presets = {
    "paper": PAPER, "classic": CLASSIC, "minatar": MINATAR, "classic_continuous": VECTOR, "states": STATES,
    "vector": VECTOR, "vector_continuous": VECTOR,
}  # fmt: skip


def actor_critic_loss(
    log_prob: Tensor, entropy: Tensor, value: Tensor, reward: Tensor, discount: Tensor, next_value: Tensor, cut: Tensor,
    valid: Tensor, *, value_cost: float, entropy_cost: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``sum_t -log pi(a_t|s_t) (G_t - V(s_t)) + c_v (G_t - V(s_t))^2 / 2 - c_e H(s_t)`` over the valid steps of
    segments; no gradient flows through the advantage, nor through the returns ``G`` (``lambda_returns``, lambda = 1).

    Args: log_prob of the action taken, entropy: float ``[T, B]``; value: ``[T + 1, B]``; reward, discount, next_value:
    float ``[T, B]``; cut, valid: bool ``[T, B]``; the conventions are those of ``lambda_returns``.
    Returns: the loss, and ``[3]`` (detached): policy loss, value loss (half the squared error) and entropy, means over
    the valid steps (0 if there are none).
    Source: Mnih et al. (2016), section 4 and algorithm S3.
    """
    returns = lambda_returns(reward, discount, next_value, cut, 1.0)
    check.same_shape("actor_critic_loss", returns=returns, log_prob=log_prob, entropy=entropy, valid=valid)
    mask = valid.float()
    error = returns - value[:-1]
    policy_loss = -(error.detach() * log_prob * mask).sum()
    value_loss = 0.5 * (error.square() * mask).sum()
    entropies = (entropy * mask).sum()
    loss = policy_loss + value_cost * value_loss - entropy_cost * entropies
    sums = torch.stack((policy_loss, value_loss, entropies)).detach()
    return loss, sums / mask.sum().clamp(min=1.0)


def discrete_actor_critic_loss(
    outputs: Tensor, action: Tensor, reward: Tensor, discount: Tensor, next_value: Tensor, cut: Tensor, valid: Tensor,
    *, value_cost: float, entropy_cost: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``actor_critic_loss`` of a policy of ``A`` discrete actions; on a CPU by its compiled twin,
    ``fast.actor_critic.actor_critic_loss``.

    Args: outputs: float ``[(T + 1) B, A + 1]``, logits and, in the last column, the value; action: int64 ``[T, B]``;
    the others as ``actor_critic_loss`` has them.
    Returns: as ``actor_critic_loss``; the loss is differentiable by ``outputs`` alone.
    Raises: IndexError for an action that is none.
    """
    check.time_major(
        "discrete_actor_critic_loss", cut, action=action, reward=reward, discount=discount, next_value=next_value,
        valid=valid,
    )  # fmt: skip
    length, batch = action.shape
    check.shape("discrete_actor_critic_loss", "outputs", outputs, ((length + 1) * batch, outputs.shape[-1]))
    if fast.ENABLED and outputs.device.type == "cpu":
        rest = (action, reward, discount, next_value, cut, valid, value_cost, entropy_cost)
        return compiled.actor_critic_loss(outputs, *rest)
    logits = outputs[: length * batch, :-1]
    log_prob, entropy = discrete_policy("discrete_actor_critic_loss", logits, action.flatten())
    return actor_critic_loss(
        log_prob.view(length, batch), entropy.view(length, batch),
        outputs[:, -1].view(length + 1, batch), reward, discount, next_value, cut, valid, value_cost=value_cost,
        entropy_cost=entropy_cost,
    )  # fmt: skip


class AdvantageActorCritic(Algorithm):
    """The n-step loss (section 4, algorithm S3): sums, not means, over the segment; no gradient flows through the
    advantage."""

    cfg: ActorCriticConfig

    def __init__(self, cfg: ActorCriticConfig, nets: ActorCritic) -> None:
        super().__init__(nets)
        self.cfg = cfg

    def loss(self, outputs: PolicyValue, batch: Batch) -> tuple[Tensor, Update]:
        cfg, items, value = self.cfg, batch.items, outputs.value  # [T + 1, B]
        given = (items["reward"], *boundaries(items, value.detach(), cfg.gamma), items["valid"])
        costs: Values = {"value_cost": cfg.value_cost, "entropy_cost": cfg.entropy_cost}
        if outputs.dist.kind == "discrete":
            loss, means = discrete_actor_critic_loss(outputs.joined, items["action"], *given, **costs)
        else:
            loss, means = actor_critic_loss(*outputs.evaluate(items["action"]), value, *given, **costs)
        return loss, Update(dict(zip(("policy_loss", "value_loss", "entropy"), means.tolist(), strict=True)))

    def prepare(self, batch: Batch) -> Batch:
        items = batch.items
        return batch._replace(items={**items, "reward": self.nets.scaled(items["reward"])})

    def state_dict(self) -> State:
        return {"carried": None if self.nets.rewards is None else self.nets.rewards.carried}

    def load_state_dict(self, state: State) -> None:
        if self.nets.rewards is not None:
            self.nets.rewards.carried = state.get("carried")


def network(cfg: Config, device: str = "cpu") -> ActorCritic:
    """Policy and value on one network."""
    return ActorCritic.of(cfg, cfg.env_spec(), device, normalise_reward=cfg.reward_discount())


def agent(cfg: Config, seed: int = 0, ctx: Context | None = None) -> ActorCriticAgent:
    """Samples from the policy."""
    return ActorCriticAgent(network(cfg), seed)


def program(cfg: Config) -> Program:
    """Workers and the parameters that they share."""

    def learn(nets: ActorCritic, ctx: Context) -> SegmentLearner:
        return SegmentLearner(AdvantageActorCritic(cfg, nets), cfg.max_grad_norm)

    return workers("a3c", cfg, network, agent, learn)


def workers(
    name: str, cfg: Config, network: Callable[..., ActorCritic], agent: Callable[..., ActorCriticAgent],
    learn: Callable[[Any, Context], SegmentLearner], memory: int = 0,
) -> Program:  # fmt: skip
    """The program of workers that learn as ``learn(nets, ctx)`` does, of ``network(cfg)``, and act as
    ``agent(cfg, seed, ctx)`` does; memory: bytes that each holds beside the channel."""
    cfg.require_cpu()
    p = Program(name)
    params = p.channel(shared_parameters(name, cfg, lambda: network(cfg)))
    spec = trajectories(cfg, network, {})

    def make_worker(ctx: Context, params: Any) -> WorkerRole:
        torch.manual_seed(ctx.seed)
        learner = learn(begin(ctx, network(cfg)), ctx)

        def learning_rate(steps: int) -> float:
            return learner.at(cfg.learning_rate, steps / cfg.steps)

        return WorkerRole(ctx, collector(ctx, cfg, agent, spec), learner, learning_rate, params)

    p.role(
        "worker", make_worker, replicas=cfg.num_actors(), on_failure="restart", threads=cfg.learner_threads or 1,
        memory=memory + spec_nbytes(spec), params=params.member(),
    )  # fmt: skip
    return p
