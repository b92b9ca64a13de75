"""Evolution strategies: workers play episodes with perturbed parameters and send returns, never gradients.

Salimans et al. 2017, "Evolution Strategies as a Scalable Alternative to Reinforcement Learning"; the preset ``ars`` is
Mania et al. 2018, "Simple random search of static linear policies is competitive for reinforcement learning".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from shoal.algos.evolution import TASK, EvolutionAgent, EvolutionLearner, EvolutionPolicy, population, statistics
from shoal.api import (
    Arrays,
    Channel,
    Constant,
    Context,
    Field,
    ParamsReader,
    ParamsWriter,
    Reader,
    UsageError,
    Writer,
)
from shoal.envs import make
from shoal.program import Program
from shoal.roles.evolution import EvolutionMaster, EvolutionWorker, random_observations, results_spec
from shoal.settings.ranges import Count, Fraction, Natural, NonNegative, Positive
from shoal.systems.common import CommonConfig, cores, env_spec, params_spec


@dataclass(frozen=True, kw_only=True)
class Config(CommonConfig):
    """Evolution strategies' own fields. A generation is ``pairs`` pairs of perturbed policies, two episodes a pair."""

    envs: Count = 16
    """Environments per worker, each with a network of its own: a block of pairs, the unit of work."""
    pairs: Count = 64
    """Antithetic pairs of a generation: a multiple of `envs`."""
    noise_std: Positive = 0.05
    """Sigma: standard deviation of the perturbations."""
    noise_table: Count = 2**24
    """Numbers in the table of noise that all workers of a machine share (4 bytes each)."""
    noise_seed: int = 123
    """Of the table."""
    learning_rate: Positive = 0.02
    """Step size."""
    optimiser: Literal["adam", "sgd"] = "adam"
    """adam: beta 0.9 and 0.999; sgd: with `momentum`."""
    momentum: Fraction = 0.0
    """Of sgd: share of the average of earlier directions."""
    weight_decay: NonNegative = 0.005
    """Lambda: times the parameters, added to the descent direction."""
    shaping: Literal["ranks", "spread"] = "ranks"
    """Of returns: centred ranks (ES), or divided by the standard deviation of those kept (ARS)."""
    top: Natural = 0
    """With `shaping=spread`: pairs that are kept, the best by their better half; 0: all."""
    normalise_obs: bool = True
    """Normalise vector observations by running statistics."""
    virtual_batch_norm: bool = True
    """Normalise the layers of image torsos by the statistics of reference observations."""
    reference: Count = 128
    """Reference observations, from random play before the start."""
    cap: NonNegative = 2.0
    """Longest episode of a generation, in mean lengths of the one before; 0: no limit."""
    cap_start: Count = 50
    """The limit's least value, and its first (agent steps)."""
    action_noise: NonNegative = 0.0
    """Standard deviation of the noise on continuous actions."""
    action_bins: Natural = 0
    """Values that each dimension of a continuous action may take; 0: all."""
    survival_bonus: float = 0.0
    """Taken off each step's reward: what the environment pays for not falling (ARS, section 4.1)."""
    evaluate_every: Natural = 10
    """Generations between two evaluations of the unperturbed policy, an episode in each environment; 0: none."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Of the MLP."""

    def blocks(self) -> int:
        """Blocks of a generation."""
        return self.pairs // self.envs

    def num_actors(self) -> int:
        return self.actors or min(cores(), max(1, self.blocks()))


PAPER: dict[str, Any] = dict(  # section 4.1 (MuJoCo: 64-64 tanh) and the authors' configurations/humanoid.json
    pairs=5_000, envs=10, noise_std=0.02, noise_table=250_000_000, learning_rate=0.01, weight_decay=0.005,
    action_noise=0.01, cap=2.0, cap_start=1_000, steps=5_000_000, precision="fp32",
)  # fmt: skip
ARS: dict[str, Any] = dict(  # Mania et al. 2018: V2-t, the defaults of the authors' code; V1: normalise_obs=false
    hidden=(), pairs=8, envs=8, top=4, shaping="spread", optimiser="sgd", learning_rate=0.02, noise_std=0.03,
    weight_decay=0.0, steps=1_000_000,
)  # fmt: skip
CLASSIC: dict[str, Any] = dict(pairs=64, envs=32, steps=1_000_000, noise_std=0.1, learning_rate=0.05)
BOX2D: dict[str, Any] = dict(pairs=64, envs=16, steps=10_000_000, noise_std=0.1, learning_rate=0.03, hidden=(32, 32))
MUJOCO: dict[str, Any] = dict(  # ARS V2-t, as for HalfCheetah in Mania et al. 2018, table 9
    hidden=(), pairs=32, envs=16, top=4, shaping="spread", optimiser="sgd", learning_rate=0.02, noise_std=0.03,
    weight_decay=0.0, steps=20_000_000,
)  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "paper": PAPER, "ars": ARS, "classic": CLASSIC, "box2d": BOX2D, "mujoco": MUJOCO,
}  # fmt: skip


def network(cfg: Config) -> EvolutionPolicy:
    return EvolutionPolicy(
        env_spec(cfg), torso=cfg.torso, hidden=cfg.hidden, activation=cfg.activation, normalise_obs=cfg.normalise_obs,
        virtual_batch_norm=cfg.virtual_batch_norm, reference=cfg.reference, bins=cfg.action_bins,
        action_noise=cfg.action_noise,
    )  # fmt: skip


def agent(cfg: Config, seed: int = 0) -> EvolutionAgent:
    return EvolutionAgent(network(cfg), seed)


def make_worker(cfg: Config, ctx: Context, results: Writer, params: ParamsReader, noise: Constant) -> EvolutionWorker:
    policy, total = network(cfg), cfg.blocks()
    return EvolutionWorker(
        ctx, make(cfg.env, cfg.envs, ctx.seed, cfg.env_options()), population(policy, cfg.envs), results, params, noise,
        size=policy.size, blocks=range(ctx.index, total, ctx.replicas), total=total, noise_std=cfg.noise_std,
        action_noise=cfg.action_noise, evaluate_every=cfg.evaluate_every, bonus=cfg.survival_bonus,
    )  # fmt: skip


def make_learner(cfg: Config, ctx: Context, results: Reader, params: ParamsWriter, noise: Constant) -> EvolutionMaster:
    torch.manual_seed(ctx.seed)
    policy = network(cfg)
    if policy.referring:
        env = make(cfg.env, min(16, cfg.reference), ctx.seed, cfg.env_options())
        policy.set_reference(random_observations(env, cfg.reference, ctx.seed))
    learner = EvolutionLearner(
        policy, torch.from_numpy(noise.arrays["noise"]), ctx.seed, learning_rate=cfg.learning_rate,
        momentum=None if cfg.optimiser == "adam" else cfg.momentum, weight_decay=cfg.weight_decay,
        shaping=cfg.shaping, top=cfg.top, cap=cfg.cap, cap_start=cfg.cap_start,
    )  # fmt: skip
    return EvolutionMaster(ctx, learner, cfg.blocks(), results, params)


def fill_noise(seed: int, arrays: Arrays) -> None:
    """Independent standard normals, the same on every machine."""
    np.random.Generator(np.random.Philox(seed)).standard_normal(dtype=np.float32, out=arrays["noise"])


def check(cfg: Config, size: int) -> None:
    """UsageError for settings that clash; ``size``: parameters of the policy."""
    if cfg.pairs % cfg.envs:
        raise UsageError(f"pairs ({cfg.pairs}) must be a multiple of envs ({cfg.envs})")
    if cfg.num_actors() > cfg.blocks():
        raise UsageError(
            f"actors ({cfg.actors}) must be at most the blocks of a generation: pairs / envs ({cfg.blocks()})"
        )
    if cfg.top > cfg.pairs:
        raise UsageError(f"top ({cfg.top}) must be at most pairs ({cfg.pairs})")
    if size > cfg.noise_table:
        raise UsageError(f"noise_table ({cfg.noise_table}) must be at least the policy's {size} parameters")


def program(cfg: Config) -> Program:
    with torch.device("meta"):  # shapes only
        policy = network(cfg)
    check(cfg, policy.size)
    own = params_spec(lambda: network(cfg))
    task = {TASK + name: Field((), "int64", axis=0) for name in ("seed", "cap")}
    p = Program("es")
    share = -(-cfg.blocks() // cfg.num_actors())
    noise = p.channel(
        Channel("noise", "constant", {"noise": Field((cfg.noise_table,))}, fill=partial(fill_noise, cfg.noise_seed))
    )
    results = p.channel(Channel("results", "queue", results_spec(cfg.envs, statistics(policy)), capacity=2 * share))
    params = p.channel(Channel("params", "params", {**own, **task}))
    p.role(  # first, so that its seed, and with it every task, is the same with any number of workers
        "learner", partial(make_learner, cfg), threads=cfg.learner_threads or 1,
        results=results.reader(), params=params.writer(), noise=noise.reader(),
    )  # fmt: skip
    p.role(
        "worker", partial(make_worker, cfg), replicas=cfg.num_actors(), on_failure="restart",
        results=results.writer(), params=params.reader(lockstep=share), noise=noise.reader(),
    )  # fmt: skip
    return p
