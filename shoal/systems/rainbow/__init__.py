"""Rainbow and what it combines: distributions of returns (C51, QR-DQN) and noisy networks as switches on top of DQN's.

Hessel et al. 2018, "Rainbow: Combining Improvements in Deep Reinforcement Learning"; Bellemare et al. 2017; Dabney et
al. 2018; Fortunato et al. 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor

from shoal import transfer
from shoal.api import MASK, Arrays, Batch, Context, Learner, Tensors, Update, UsageError, observations
from shoal.learning.off_policy import QLearningConfig
from shoal.nets.batched_agent import Draws
from shoal.nets.q_network import NOISE, QNetwork, ReturnNetwork
from shoal.ops import forbid, loss_with_gradient
from shoal.ops.noise import scale_noise
from shoal.program import Program
from shoal.settings.ranges import Finite, NonNegative, OnlyWith, Parts
from shoal.settings.schedule import linear
from shoal.systems import dqn
from shoal.systems.dqn import QAgent, QLearning
from shoal.systems.rainbow.returns import Categorical, Mean, Quantiles, Returns
from shoal.topology.config import Preset, Presets, require_actions
from shoal.topology.replayed import RISING, descent, replay_program
from shoal.types import State, Values


@dataclass(frozen=True, kw_only=True)
class ReturnsConfig(QLearningConfig):
    """The settings of descriptions of returns, and of noisy networks."""

    fixed_at_start: ClassVar[tuple[str, ...]] = ("returns", "v_min", "v_max")
    only_with: ClassVar[OnlyWith] = {
        "atoms": ("returns", "categorical", "quantile"), "v_min": ("returns", "categorical"),
        "v_max": ("returns", "categorical"), "kappa": ("returns", "quantile"), "td_clip": ("returns", "mean"),
        "noisy_sigma": ("noisy",), "epsilon_start": ("noisy", False), "epsilon_end": ("noisy", False),
        "epsilon_steps": ("noisy", False), "epsilon_ladder": ("noisy", False),
    }  # fmt: skip

    returns: Literal["mean", "categorical", "quantile"] = "categorical"
    """What is learned of each action's return: its mean (DQN), probabilities of fixed values (C51) or quantiles
    (QR-DQN)."""
    atoms: Parts = 51
    """Values (categorical) or quantiles that describe a distribution."""
    v_min: Finite = -10.0
    """Lowest value of a categorical distribution (discounted return, of processed rewards)."""
    v_max: Finite = 10.0
    """Highest value of a categorical distribution (discounted return, of processed rewards)."""
    kappa: NonNegative = 1.0
    """Threshold of the quantile Huber loss; 0: the plain quantile loss."""
    noisy: bool = True
    """Explore by noisy linear layers after the torso, instead of random actions (epsilon is 0)."""
    noisy_sigma: NonNegative = 0.5
    """Initial noise of noisy layers (σ0 in the paper): the deviation of a weight times the square root of the layer's
    inputs."""
    streams: Parts = 512
    """Units of the hidden layer of each dueling stream, and of the noisy layer that follows convolutions."""


@dataclass(frozen=True, kw_only=True)
class Config(dqn.Config, ReturnsConfig):
    """Rainbow: every switch on. With all of them off it is DQN."""

    dueling: bool = True
    """Separate value and advantage streams."""
    prioritised: bool = True
    """Sample in proportion to priorities: the TD error (mean), the divergence from the target (categorical) or the
    loss (quantile)."""


OFF: Preset = dict(
    double=False, dueling=False, n_step=1, prioritised=False, returns="mean", noisy=False,
)  # fmt: skip
DQN: Preset = {**OFF, **dqn.PAPER}
# van Hasselt et al. 2016, appendix, the tuned variant: target network every 30,000 agent steps
DOUBLE: Preset = {**DQN, "double": True, "target_period": 7_500, "epsilon_end": 0.01, "eval_epsilon": 0.001}
DUELING: Preset = {**DOUBLE, "dueling": True, "max_grad_norm": 10.0}  # Wang et al. 2016, section 4.2
PRIORITISED: Preset = dict(  # Schaul et al. 2016, appendix B.2: a quarter of the learning rate
    DOUBLE, prioritised=True, learning_rate=6.25e-5, optimiser_eps=0.01 / 16, priority_exponent=0.6,
    importance_exponent=linear(0.4, 1.0),
)  # fmt: skip
RANK: Preset = dict(
    PRIORITISED, sampler="rank", priority_exponent=0.7, importance_exponent=linear(0.5, 1.0),
)  # fmt: skip
NOISY: Preset = {**DQN, "noisy": True, "noisy_sigma": 0.5}  # Fortunato et al. 2018, section 3.2
C51: Preset = dict(  # Bellemare et al. 2017, section 5
    DQN, returns="categorical", atoms=51, v_min=-10.0, v_max=10.0, optimiser="adam", learning_rate=2.5e-4,
    optimiser_eps=0.01 / 32, reduction="mean", epsilon_end=0.01, eval_epsilon=0.001,
)  # fmt: skip
QR_DQN: Preset = {  # Dabney et al. 2018, section 5.2: QR-DQN-1
    **C51, "returns": "quantile", "atoms": 200, "kappa": 1.0, "learning_rate": 5e-5,
}  # fmt: skip
RAINBOW: Preset = dict(  # Hessel et al. 2018, table 1; 80,000 and 32,000 frames: 20,000 and 8,000 agent steps
    C51, double=True, dueling=True, n_step=3, prioritised=True, noisy=True, noisy_sigma=0.5, learning_rate=6.25e-5,
    optimiser_eps=1.5e-4, max_grad_norm=10.0, priority_exponent=0.5, importance_exponent=linear(0.4, 1.0),
    min_replay=20_000, target_period=2_000,
)  # fmt: skip
ATARI: Preset = dict(
    dqn.ATARI, envs=16, epsilon_ladder=False, actor_priorities=False, importance_exponent=RISING, priority_exponent=0.5,
)  # fmt: skip
CLASSIC: Preset = dict(dqn.CLASSIC, streams=128, v_min=-100.0, v_max=100.0, atoms=101)
BOX2D: Preset = dict(dqn.BOX2D, streams=256, v_min=-50.0, v_max=50.0, atoms=101)
# As DQN's. Learning rate, atoms and their range: Obando-Ceron and Castro 2021, rainbow_asterix.gin and the like;
# priorities and n: Hessel et al. 2018, table 1; streams of 128 units: the hidden layer of Young and Tian 2019
MINATAR: Preset = dict(
    dqn.MINATAR, double=True, n_step=3, learning_rate=1e-4, streams=128, atoms=51, v_min=-100.0, v_max=100.0,
    priority_exponent=0.5, importance_exponent=RISING,
)  # fmt: skip
# Noise in layers hardly explores where each input is a code of its own. Chosen on FrozenLake and CliffWalking
STATES: Preset = dict(
    dqn.STATES,
    streams=128,
    returns="quantile",
    atoms=51,
    noisy=False,
    n_step=1,
)
VECTOR: Preset = dict(dqn.VECTOR, streams=128, returns="quantile", atoms=51)
PRESETS: Presets = {
    "paper": RAINBOW, "rainbow": RAINBOW, "dqn": DQN, "double": DOUBLE, "dueling": DUELING, "prioritised": PRIORITISED,
    "rank": RANK, "prioritised-dueling": {**PRIORITISED, "dueling": True, "max_grad_norm": 10.0}, "noisy": NOISY,
    "c51": C51, "qr-dqn": QR_DQN, "atari": ATARI, "classic": CLASSIC, "box2d": BOX2D, "minatar": MINATAR,
    "states": STATES, "vector": VECTOR,
}  # fmt: skip


def described(cfg: ReturnsConfig) -> Returns:
    """Return how ``cfg`` describes a return. Raises UsageError for a support without an extent."""
    if cfg.returns == "categorical":
        return Categorical(cfg.atoms, cfg.v_min, cfg.v_max)
    return Quantiles(cfg.atoms, cfg.kappa) if cfg.returns == "quantile" else Mean(cfg.td_clip)


class DistributionalQLearning(QLearning):
    """The loss, as ``QLearning``'s of ``ReturnNetwork``. Each update draws noise anew, and separately for the network
    that learns, for the selection of the next action and for the target network; rows of a batch share it."""

    nets: ReturnNetwork
    target: ReturnNetwork
    adds_up = True
    capturable = True

    def __init__(
        self, cfg: ReturnsConfig, nets: ReturnNetwork, beta: float | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(cfg, nets, beta)
        self.rng = np.random.default_rng(seed)

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch with weights, as ``OffPolicy`` has them, and noise."""
        batch = super().prepare(batch)
        count, device = self.nets.head.normals, batch.items["reward"].device
        if count:
            drawn = transfer.send(
                scale_noise(torch.from_numpy(self.rng.standard_normal((3, count), np.float32))), device
            )
            batch.items.update(zip((NOISE + "online", NOISE + "selector", NOISE + "target"), drawn, strict=True))
        return batch

    def select(self, items: Tensors, rows: Tensor) -> Tensors:
        """Rows that follow one another; the noise is of all rows."""
        noise = {k: v for k, v in items.items() if k.startswith(NOISE)}
        return {**super().select({k: v for k, v in items.items() if k not in noise}, rows), **noise}

    def loss(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Update]:
        """Weighted sum over the items of what ``returns.terms`` says; outputs: [B, A, atoms]."""
        items, returns = batch.items, cast(Returns, self.nets.returns)
        reward, discount = items["reward"], items["discount"]
        with torch.no_grad():
            next_obs = observations(items, "next/")
            target = self.target.describe(next_obs, items.get(NOISE + "target"))
            selector = self.nets.describe(next_obs, items.get(NOISE + "selector")) if self.cfg.double else target
            best = forbid(returns.mean(selector), next_obs.get(MASK)).argmax(-1)
            first = torch.arange(0, len(reward) * outputs.shape[1], outputs.shape[1], device=reward.device)
            after = target.flatten(0, 1).index_select(0, first + best)
        taken = first + items["action"]
        now = outputs.flatten(0, 1).index_select(0, taken)
        if isinstance(returns, Mean):
            returns.clip = self.cfg.td_clip  # of now, if it is a schedule
        terms = returns.terms(now, after, reward, discount)
        if terms.gradient is None:
            loss = terms.loss.dot(items["weight"])
        else:
            gradient = outputs.new_zeros(outputs.shape)
            gradient.flatten(0, 1).index_copy_(0, taken, terms.gradient * items["weight"].unsqueeze(-1))
            loss = loss_with_gradient(outputs, terms.loss.dot(items["weight"]), gradient)
        metrics = {}
        if self.reports():
            value = returns.mean(now.detach())
            error = (reward + discount * returns.mean(after) - value).abs()
            share = self.scalars[0]
            metrics = {"q_mean": value.sum() * share, "td_error": error.sum() * share}
            if terms.clipped is not None:
                metrics["clipped_mass"] = terms.clipped.sum() * share
        return loss, Update(metrics, terms.priority if self.cfg.prioritised else None)

    def state_dict(self) -> State:
        return {**super().state_dict(), "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.rng.bit_generator.state = state["rng"]


class NoisyQAgent(QAgent):
    """Explores by the noise of its network alone, drawn anew for each observation; greedy: by the mean weights."""

    nets: ReturnNetwork

    def __init__(self, nets: ReturnNetwork, seed: int) -> None:
        super().__init__(nets, lambda steps: 0.0, seed)

    def draw(self, obs: Arrays, first: np.ndarray) -> Draws:
        rows = len(first)
        normals = self.rng.standard_normal((rows, self.nets.head.normals), np.float32)
        return *super().draw(obs, first), normals

    def values(self, obs: Tensors, drawn: Draws) -> Tensor:
        if not drawn:
            return super().values(obs, drawn)
        return cast(Tensor, self.nets(obs, scale_noise(self.tensor(drawn[-1]))))


def network(cfg: Config, device: str = "cpu") -> QNetwork:
    """Values of observations [B, A], through distributions of returns if they are learned."""
    env = cfg.env_spec()
    require_actions(cfg.system(), env, "discrete")
    nets: Values = dict(
        torso=cfg.torso, hidden=cfg.hidden, dueling=cfg.dueling, streams=cfg.streams, precision=cfg.precision,
        device=device,
    )  # fmt: skip
    if cfg.returns == "mean" and not cfg.noisy:
        return QNetwork(env, **nets)
    if cfg.actor_priorities:
        raise UsageError("actor_priorities are TD errors of plain values: expected returns mean, and noisy off")
    return ReturnNetwork(env, described(cfg), sigma=cfg.noisy_sigma if cfg.noisy else None, **nets)


def agent(cfg: Config, seed: int = 0, ctx: Context | None = None) -> QAgent:
    """Noisy, or epsilon-greedy as DQN's; without an actor's ``ctx``, one for evaluation."""
    nets = network(cfg)
    if cfg.noisy:
        assert isinstance(nets, ReturnNetwork)
        return NoisyQAgent(nets, seed)
    return dqn.explorer(cfg, nets, seed, ctx)


def program(cfg: Config) -> Program:
    """One actor, a replay, a learner."""

    def learn(nets: QNetwork, ctx: Context) -> Learner:
        beta = dqn.importance_exponent(cfg)
        if isinstance(nets, ReturnNetwork):
            return descent(cfg, ctx, DistributionalQLearning(cfg, nets, beta, ctx.seed))
        return descent(cfg, ctx, QLearning(cfg, nets, beta))

    return replay_program("rainbow", cfg, dqn.sent(cfg), dqn.table(cfg), network, agent, learn)
