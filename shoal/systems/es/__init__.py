"""Evolution strategies: workers play episodes with perturbed parameters and send returns, never gradients.

Salimans et al. 2017, "Evolution Strategies as a Scalable Alternative to Reinforcement Learning"; the preset ``ars`` is
Mania et al. 2018, "Simple random search of static linear policies is competitive for reinforcement learning".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch

from shoal.api import Arrays, Constant, Context, Field, ParamsReader, ParamsWriter, Reader, UsageError, Writer
from shoal.envs import make
from shoal.machine import cores
from shoal.nets.evolution_policy import EvolutionPolicy
from shoal.program import Channel, Program
from shoal.roles.evaluator import MAX_STEPS
from shoal.roles.evolution import EvolutionMaster, EvolutionWorker, results_spec
from shoal.roles.random_observations import random_observations
from shoal.settings.ranges import Count, Envs, Natural, Positive
from shoal.systems.es.evolution import TASK, EvolutionAgent, EvolutionConfig, EvolutionLearner, statistics
from shoal.systems.es.perturbed import population
from shoal.topology.channels import parameters, queue, shapes
from shoal.topology.config import Preset, Presets, SystemConfig, require_actions
from shoal.topology.roles import begin


@dataclass(frozen=True, kw_only=True)
class Config(SystemConfig, EvolutionConfig):
    """Evolution strategies. A generation is ``pairs`` pairs of perturbed policies, two episodes a pair."""

    fixed_at_start: ClassVar[tuple[str, ...]] = ("noise_seed", "noise_table")
    for_more_updates: ClassVar[str] = "fewer pairs"
    whole_episodes: ClassVar[bool] = True

    envs: Envs = 16
    """Environments per worker, each with a network of its own."""
    pairs: Count = 64
    """Antithetic pairs of a generation: a multiple of `block`."""
    block: Natural = 0
    """Pairs of a block, the unit of work, which a worker's environments share; 0: as many as `envs`."""
    noise_std: Positive = 0.05
    """Standard deviation σ of the perturbations."""
    noise_table: Count = 2**24
    """Numbers in the noise table that all workers of a machine share (4 bytes each)."""
    noise_seed: Natural = 123
    """Seed of the noise table."""
    survival_bonus: float = 0.0
    """Survival bonus taken off each step's reward: what the environment pays for not falling (ARS, section 4.1)."""
    evaluate_every: Natural = 10
    """Generations between two evaluations of the unperturbed policy, an episode in each environment; 0: none."""

    def blocks(self) -> int:
        """Blocks of a generation."""
        return self.pairs // self.block_pairs()

    def block_pairs(self) -> int:
        """Pairs of a block."""
        return self.block or self.envs

    def num_actors(self) -> int:
        """Workers: no more than there are blocks."""
        return self.actors or min(cores(), max(1, self.blocks()))


PAPER: Preset = dict(  # section 4.1 (MuJoCo: 64-64 tanh) and the authors' configurations/humanoid.json
    pairs=5_000, envs=10, noise_std=0.02, noise_table=250_000_000, learning_rate=0.01, weight_decay=0.005,
    action_noise=0.01, cap=2.0, cap_start=1_000, steps=1_000_000_000, precision="fp32",
)  # fmt: skip
ARS: Preset = dict(  # Mania et al. 2018: V2, the authors' defaults; V2-t: top below pairs; V1: normalise_obs=false
    hidden=(), pairs=8, envs=8, cap=0.0, shaping="spread", optimiser="sgd", learning_rate=0.02, noise_std=0.03,
    weight_decay=0.0, steps=1_000_000,
)  # fmt: skip
CLASSIC: Preset = dict(pairs=64, envs=32, steps=1_000_000, noise_std=0.1, learning_rate=0.05)
BOX2D: Preset = dict(pairs=64, envs=16, steps=3_000_000, noise_std=0.1, learning_rate=0.03, hidden=(32, 32))
MUJOCO: Preset = dict(  # ARS V2-t, as for HalfCheetah in Mania et al. 2018, table 9
    hidden=(), pairs=32, envs=16, top=4, shaping="spread", optimiser="sgd", learning_rate=0.02, noise_std=0.03,
    weight_decay=0.0, steps=3_000_000,
)  # fmt: skip
MINATAR: Preset = dict(  # as PAPER, section 4.2 (Atari: virtual batch normalisation), in a population for a short run
    pairs=64, envs=16, steps=1_000_000, torso="minatar", noise_std=0.02, learning_rate=0.01, weight_decay=0.005,
    virtual_batch_norm=True,
)  # fmt: skip
VECTOR: Preset = {**CLASSIC, "steps": 2_000_000, "episode_bound": 1_000}
PRESETS: Presets = {
    "paper": PAPER, "ars": ARS, "classic": CLASSIC, "box2d": BOX2D, "mujoco": MUJOCO, "minatar": MINATAR,
    "states": VECTOR, "vector": VECTOR, "vector_continuous": VECTOR,
}  # fmt: skip


def network(cfg: Config) -> EvolutionPolicy:
    """The policy."""
    return EvolutionPolicy(
        cfg.env_spec(), torso=cfg.torso, hidden=cfg.hidden, activation=cfg.activation, normalise_obs=cfg.normalise_obs,
        virtual_batch_norm=cfg.virtual_batch_norm, reference=cfg.reference, bins=cfg.action_bins,
        action_noise=cfg.action_noise,
    )  # fmt: skip


def agent(cfg: Config, seed: int = 0, ctx: Context | None = None) -> EvolutionAgent:
    """Acts with the unperturbed policy."""
    return EvolutionAgent(network(cfg), seed)


def worker(cfg: Config, ctx: Context, results: Writer, params: ParamsReader, noise: Constant) -> EvolutionWorker:
    """Plays every ``replicas``-th block."""
    policy, total = network(cfg), cfg.blocks()
    return EvolutionWorker(
        ctx, make(cfg.env, cfg.envs, cfg), population(policy, cfg.envs), results, params, noise,
        size=policy.size, pairs=cfg.block_pairs(), blocks=range(ctx.index, total, ctx.replicas), total=total,
        noise_std=cfg.noise_std, action_noise=cfg.action_noise, evaluate_every=cfg.evaluate_every,
        bonus=cfg.survival_bonus, limit=max(MAX_STEPS, cfg.max_episode_steps or 0),
    )  # fmt: skip


def learner(cfg: Config, ctx: Context, results: Reader, params: ParamsWriter, noise: Constant) -> EvolutionMaster:
    """Sets the tasks; plays nothing but what virtual batch normalisation refers to."""
    torch.manual_seed(ctx.seed)
    policy = network(cfg)
    if policy.referring:
        envs = make(cfg.env, min(16, cfg.reference), cfg)
        policy.set_reference(random_observations(envs, cfg.reference, ctx.seed))
    begin(ctx, policy)
    learns = EvolutionLearner(cfg, policy, torch.from_numpy(noise.arrays["noise"]), ctx.seed, cfg.steps)
    return EvolutionMaster(ctx, learns, cfg.blocks(), results, params)


def fill_noise(seed: int, arrays: Arrays) -> None:
    """Independent standard normals, the same on every machine."""
    np.random.Generator(np.random.Philox(seed)).standard_normal(dtype=np.float32, out=arrays["noise"])


def check(cfg: Config, size: int) -> None:
    """UsageError for settings that clash; ``size``: parameters of the policy."""
    cfg.require_cpu()
    require_actions(cfg.system(), cfg.env_spec(), "discrete", "multi_discrete", "continuous")
    if cfg.life_loss:
        raise UsageError("es scores policies by whole games: it takes no life_loss, which ends episodes at a lost life")
    if cfg.total_envs:
        raise UsageError("es has no total_envs: a generation is its pairs, for any number of workers")
    if cfg.unroll != Config.unroll:
        raise UsageError("es has no unroll: a worker plays whole episodes")
    if cfg.precision == "bf16":
        raise UsageError("es computes in fp32: precision bf16 is for systems that learn by gradients")
    if cfg.pairs % cfg.block_pairs():
        named = f"block ({cfg.block})" if cfg.block else f"envs ({cfg.envs}), or block must be given"
        raise UsageError(f"pairs ({cfg.pairs}) must be a multiple of {named}")
    if cfg.num_actors() > cfg.blocks():
        raise UsageError(f"actors ({cfg.actors}) must be at most the blocks of a generation: {cfg.blocks()}")
    if cfg.top > cfg.pairs:
        raise UsageError(f"top ({cfg.top}) must be at most pairs ({cfg.pairs})")
    if size > cfg.noise_table:
        raise UsageError(f"noise_table ({cfg.noise_table}) must be at least the policy's {size} parameters")


def program(cfg: Config) -> Program:
    """A learner that sets tasks, and workers that play them."""
    policy = shapes(lambda: network(cfg))
    check(cfg, policy.size)
    share = -(-cfg.blocks() // cfg.num_actors())  # blocks of a worker
    task = {TASK + name: Field((), "int64", axis=0) for name in ("seed", "cap")}
    p = Program("es")
    table = {"noise": Field((cfg.noise_table,))}
    noise = p.channel(Channel("noise", "constant", table, fill=partial(fill_noise, cfg.noise_seed)))
    results = p.channel(queue("results", results_spec(cfg.block_pairs(), statistics(policy)), capacity=2 * share))
    params = p.channel(Channel("params", "params", {**parameters("params", lambda: network(cfg)).spec, **task}))
    p.role(  # first, so that its seed, and with it every task, is the same with any number of workers
        "learner", partial(learner, cfg), threads=cfg.learner_threads or 1,
        results=results.reader(), params=params.writer(), noise=noise.reader(),
    )  # fmt: skip
    p.role(
        "worker", partial(worker, cfg), replicas=cfg.num_actors(), on_failure="restart",
        results=results.writer(), params=params.reader(lockstep=share), noise=noise.reader(),
    )  # fmt: skip
    return p
