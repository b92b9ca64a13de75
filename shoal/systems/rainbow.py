"""Rainbow and what it combines: distributions of returns (C51, QR-DQN) and noisy networks as switches on top of DQN's.

Hessel et al. 2018, "Rainbow: Combining Improvements in Deep Reinforcement Learning"; Bellemare et al. 2017; Dabney et
al. 2018; Fortunato et al. 2018.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.algos.distributional import (
    DistributionalQLearning,
    NoisyQAgent,
    ReturnNetwork,
    ReturnsConfig,
    described,
)  # fmt: skip
from shoal.algos.q_learning import QAgent, QLearning, QNetwork
from shoal.algos.sgd import SGDLearner
from shoal.api import Context, UsageError
from shoal.program import Program
from shoal.settings.schedule import linear
from shoal.systems import dqn
from shoal.systems.config import Preset, Presets, require_actions
from shoal.systems.replayed import RISING, descent, replay_program
from shoal.types import Values


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
MINATAR: Preset = dict(  # an update every 4 steps, a target network every 1,000
    hidden=(256,), streams=128, learning_rate=1e-3, optimiser_eps=1e-5, batch=32, samples_per_insert=8.0,
    replay=100_000, min_replay=1_000, target_period=250, priority_exponent=0.5, v_min=-20.0, v_max=20.0, atoms=51,
    epsilon_end=0.01, epsilon_steps=20_000,
)  # fmt: skip
STATES: Preset = dict(dqn.STATES, streams=128, returns="quantile", atoms=51)  # whatever the range of returns
VECTOR: Preset = dict(dqn.VECTOR, streams=128, returns="quantile", atoms=51)
PRESETS: Presets = {
    "paper": RAINBOW, "rainbow": RAINBOW, "dqn": DQN, "double": DOUBLE, "dueling": DUELING, "prioritised": PRIORITISED,
    "rank": RANK, "prioritised-dueling": {**PRIORITISED, "dueling": True, "max_grad_norm": 10.0}, "noisy": NOISY,
    "c51": C51, "qr-dqn": QR_DQN, "atari": ATARI, "classic": CLASSIC, "box2d": BOX2D, "minatar": MINATAR,
    "states": STATES, "vector": VECTOR,
}  # fmt: skip


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

    def learn(nets: QNetwork, ctx: Context) -> SGDLearner:
        beta = dqn.importance_exponent(cfg)
        if isinstance(nets, ReturnNetwork):
            return descent(cfg, ctx, DistributionalQLearning(cfg, nets, beta, ctx.seed))
        return descent(cfg, ctx, QLearning(cfg, nets, beta))

    return replay_program("rainbow", cfg, dqn.sent(cfg), dqn.table(cfg), network, agent, learn)
