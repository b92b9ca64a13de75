"""UNREAL: A3C whose workers also learn to control pixels, to predict rewards, and values from a replay of their own.

Jaderberg et al. 2017, "Reinforcement Learning with Unsupervised Auxiliary Tasks".
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.api import Context, UsageError
from shoal.learning.actor_critic import ActorCriticAgent
from shoal.nets.recurrent import Kind
from shoal.program import Program
from shoal.settings.ranges import Count
from shoal.settings.schedule import linear
from shoal.systems import a3c
from shoal.systems.unreal.auxiliary import AuxiliaryConfig, AuxiliaryLearner, AuxiliaryNetwork, AuxiliaryTasks
from shoal.systems.unreal.frame_replay import FrameReplay, frame_replay_nbytes
from shoal.topology.channels import trajectories
from shoal.topology.config import Preset, Presets
from shoal.words import counted


@dataclass(frozen=True, kw_only=True)
class Config(a3c.Config, AuxiliaryConfig):
    """UNREAL: each auxiliary task is a switch. With all of them off it is A3C."""

    env: str = "toy:catch"
    unroll: Count = 20
    """Agent steps of a segment, and of a sequence drawn from the replay (the paper's t_max)."""
    hidden: tuple[Count, ...] = ()
    """Units of each layer of the MLP that reads the last action and reward; none: they go to the core as they are."""
    core: Kind = "lstm"
    core_size: Count = 256
    last_action_reward: bool = True


# Section 4 and appendix; what the paper draws log-uniformly stands at the geometric mean of its range
LABYRINTH: Preset = dict(
    actors=32, envs=1, unroll=20, steps=25_000_000, learning_rate=linear(7e-4, 0.0), optimiser_eps=0.1,
    rmsprop_decay=0.99, max_grad_norm=40.0, entropy_cost=2.2e-3, value_cost=0.5, gamma=0.99, core="lstm", core_size=256,
    last_action_reward=True, hidden=(), torso="impala-shallow", activation="relu", precision="fp32",
    replay=2_000, pixel_control_cost=0.03, pixel_control_gamma=0.9, pixel_cell=4, reward_prediction_cost=1.0,
    value_replay_cost=1.0,
)  # fmt: skip
PAPER: Preset = dict(  # Atari: its weight of pixel control is drawn from 0.0001 to 0.01
    LABYRINTH, steps=62_500_000, pixel_control_cost=1e-3, reward_clip="unit", frame_stack=1,
)  # fmt: skip
MINIGRID: Preset = dict(  # where a reward comes once in thousands of steps, entropy must cost little to be outweighed
    actors=2, envs=4, unroll=20, steps=500_000, learning_rate=linear(7e-4, 0.0), optimiser_eps=1e-5, rmsprop_decay=0.99,
    max_grad_norm=40.0, entropy_cost=3e-4, gamma=0.99, core="lstm", core_size=128, torso="impala-shallow",
    pixel_control_cost=3e-3,
)  # fmt: skip
MINATAR: Preset = dict(  # A3C's, with what LABYRINTH adds; its boards are no screens, so that no pixels are controlled
    a3c.MINATAR, unroll=20, entropy_cost=2.2e-3, core="lstm", core_size=128, last_action_reward=True, hidden=(),
    replay=2_000, pixel_control=False, reward_prediction_cost=1.0, value_replay_cost=1.0,
)  # fmt: skip
NO_PIXELS: Preset = dict(  # what is left of UNREAL where nothing is a picture
    unroll=20, core="lstm", core_size=128, hidden=(64,), last_action_reward=True, replay=2_000, pixel_control=False,
)  # fmt: skip
STATES: Preset = {**a3c.STATES, **NO_PIXELS}
VECTOR: Preset = {**a3c.VECTOR, **NO_PIXELS}
PRESETS: Presets = {
    "paper": PAPER, "labyrinth": LABYRINTH, "minigrid": MINIGRID, "minatar": MINATAR, "states": STATES,
    "vector": VECTOR, "vector_continuous": VECTOR, "picture": MINIGRID,
}  # fmt: skip


def network(cfg: Config, device: str = "cpu") -> AuxiliaryNetwork:
    """Policy and value on one network, with the heads of the auxiliary tasks."""
    made = AuxiliaryNetwork.of(cfg, cfg.env_spec(), device, tasks=cfg, normalise_reward=cfg.reward_discount())
    assert isinstance(made, AuxiliaryNetwork)
    return made


def agent(cfg: Config, seed: int = 0, ctx: Context | None = None) -> ActorCriticAgent:
    """Samples from the policy."""
    return ActorCriticAgent(network(cfg), seed)


def program(cfg: Config) -> Program:
    """Workers, each with a replay of its own, and the parameters that they share."""
    kept = cfg.replay // cfg.envs  # steps of each environment
    if cfg.auxiliary and kept <= cfg.unroll:
        raise UsageError(
            f"replay ({counted(cfg.replay, 'step')}) must hold more than a segment ({cfg.unroll}) of each of envs "
            f"({cfg.envs})"
        )
    env = cfg.env_spec()

    def learn(nets: AuxiliaryNetwork, ctx: Context) -> AuxiliaryLearner:
        tasks = AuxiliaryTasks(cfg, nets, env, cfg.gamma)
        algorithm = a3c.AdvantageActorCritic(cfg, nets)
        return AuxiliaryLearner(algorithm, cfg.max_grad_norm, tasks, FrameReplay(kept, ctx.seed), cfg.unroll)

    held = frame_replay_nbytes(kept, trajectories(cfg, network, {})) if cfg.auxiliary else 0
    return a3c.workers("unreal", cfg, network, agent, learn, memory=held)
