"""DD-PPO: ranks that collect and learn, each by itself, along one common gradient; no server, nothing stale.

Wijmans et al. 2020, "DD-PPO: Learning Near-Perfect PointGoal Navigators from 2.5 Billion Frames".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from shoal.algos.decentralised import DecentralisedConfig, RankLearner, gradient_spec, moments_spec
from shoal.api import Context, Field, UsageError, spec_nbytes
from shoal.program import Channel, Program
from shoal.roles.rank import PROGRESS, RankRole
from shoal.settings.ranges import Count, Envs, Fraction, Positive, Replicas
from shoal.settings.schedule import linear
from shoal.systems import recurrent_ppo
from shoal.systems.config import Preset, Presets
from shoal.systems.recurrent_ppo import EXTRAS, agent, network
from shoal.systems.wiring import begin, collector, parameters, shapes, trajectories


@dataclass(frozen=True, kw_only=True)
class Config(DecentralisedConfig, recurrent_ppo.Config):
    """DD-PPO. One update learns from ``actors`` rollouts of ``envs`` trajectories of at most ``unroll`` steps."""

    actors: Replicas = 0
    """Ranks: processes with environments and a learner of their own; 0: one per core."""
    envs: Envs = 8
    """Environments of each rank."""
    unroll: Count = 128
    sync_frac: Positive = 0.6
    """Share of the ranks that have ended their rollout at which the others end theirs early; above 1: never."""
    min_fraction: Fraction = 0.25
    """Share of its rollout that a rank collects in any case."""

    def sharing(self, most: int) -> int:
        ranks = super().sharing(most)
        if not self.total_envs or self.core == "none":
            return ranks
        whole = [n for n in range(1, ranks + 1) if self.total_envs % (n * self.minibatches) == 0]
        return max(whole, default=ranks)  # minibatches of whole trajectories


PAPER: Preset = dict(  # appendix, and habitat-baselines' ddppo_pointnav.yaml
    envs=4, unroll=128, epochs=2, minibatches=2, clip=0.2, learning_rate=2.5e-4, optimiser_eps=1e-5,
    max_grad_norm=0.2, value_cost=0.5, entropy_cost=0.01, gamma=0.99, gae_lambda=0.95, normalise_advantage=False,
    torso="resnet50", hidden=(32,), activation="relu", core="lstm", core_size=512, core_layers=2,
    last_action_reward=True, steps=2_500_000_000, sync_frac=0.6, min_fraction=0.25,
)  # fmt: skip
ATARI: Preset = dict(
    total_envs=16, unroll=64, steps=1_500_000, epochs=4, minibatches=8, learning_rate=linear(2e-3, 0.0), clip=0.1,
    entropy_cost=0.01, reward_clip="sign", torso="impala-shallow", activation="relu",
)  # fmt: skip
CLASSIC: Preset = dict(
    actors=2, envs=16, unroll=32, epochs=3, minibatches=4, steps=300_000,
    learning_rate=linear(2e-3, 0.0), gamma=0.98, normalise_reward=True,
)  # fmt: skip
STATES: Preset = {  # a bonus for novelty ends with the episode, and so teaches to stay away from holes
    **CLASSIC, "steps": 1_000_000, "gamma": 0.995, "entropy_cost": linear(0.02, 0.0), "episode_bound": 500,
}  # fmt: skip
VECTOR: Preset = {**CLASSIC, "steps": 1_000_000, "normalise_obs": True, "novelty": 0.5, "novelty_steps": 15_000}
PRESETS: Presets = {
    "paper": PAPER, "atari": ATARI, "classic": CLASSIC, "pointgoal": recurrent_ppo.POINTGOAL,
    "classic_continuous": VECTOR, "states": STATES, "vector": VECTOR, "vector_continuous": VECTOR,
}  # fmt: skip


def program(cfg: Config) -> Program:
    """Ranks joined by two reductions and a board."""
    if cfg.core != "none" and cfg.envs % cfg.minibatches:
        raise UsageError(
            f"with a recurrent core, minibatches ({cfg.minibatches}) must divide a rank's envs ({cfg.envs})"
        )
    shortest = cfg.min_fraction if cfg.sync_frac <= 1.0 else 1.0  # above 1, nobody is cut short
    if cfg.minibatches > shortest * cfg.envs * cfg.unroll:
        raise UsageError(
            f"minibatches ({cfg.minibatches}) must be no more than the steps of the shortest rollout "
            f"({cfg.envs} envs x {cfg.unroll} x min_fraction {shortest:g})"
        )
    if cfg.learner_processes > 1:
        raise UsageError(
            f"learner_processes is {cfg.learner_processes}, but in dd-ppo ranks share gradients: set actors"
        )
    nets = shapes(lambda: network(cfg))
    device, ranks = cfg.learner_device(), cfg.num_actors()
    spec = trajectories(cfg, network, EXTRAS)
    p = Program("dd-ppo")
    moments = p.channel(Channel("moments", "reduce", moments_spec(nets)))
    gradients = p.channel(Channel("gradients", "reduce", gradient_spec(nets), mean=True))
    progress = p.channel(Channel("progress", "board", {PROGRESS: Field((), "int64")}))
    params = p.channel(parameters("params", lambda: network(cfg)))

    def make_rank(ctx: Context, **ports: Any) -> RankRole:
        torch.manual_seed(ctx.seed)
        nets = begin(ctx, network(cfg, device).to(device))
        learner = RankLearner(cfg, nets, cfg.steps, ctx.seed, ctx.replicas)

        return RankRole(
            ctx, collector(ctx, cfg, agent, spec), learner, sync_frac=cfg.sync_frac, min_fraction=cfg.min_fraction,
            load=nets.load_state_dict, **ports,
        )  # fmt: skip

    p.role(
        "rank", make_rank, replicas=ranks, threads=cfg.learner_threads or 1, device=device,
        memory=2 * spec_nbytes(spec) + 4 * spec_nbytes(params.spec), moments=moments.member(),
        gradients=gradients.member(), progress=progress.member(), params=params.writer(first=True),
        initial=params.reader(),
    )  # fmt: skip
    return p
