"""DD-PPO: ranks that collect and learn, each by itself, along one common gradient; no server, nothing stale.

Wijmans et al. 2020, "DD-PPO: Learning Near-Perfect PointGoal Navigators from 2.5 Billion Frames".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from shoal import transfer
from shoal.api import Arrays, Batch, Context, Field, ShoalError, Spec, Tensors, Update, UsageError, spec_nbytes
from shoal.learning.differentiate import differentiate, to_device
from shoal.learning.ppo_learner import PPOLearner
from shoal.learning.synchronised_learner import MeanGradient
from shoal.nets import RunningNorm
from shoal.nets.actor_critic import ActorCritic
from shoal.program import Channel, Program
from shoal.roles.rank import PROGRESS, RankRole
from shoal.settings.ranges import Count, Envs, Fraction, Positive, Replicas
from shoal.settings.schedule import linear
from shoal.systems import recurrent_ppo
from shoal.systems.recurrent_ppo import EXTRAS, METRICS, PPO, PPOConfig, agent, network
from shoal.topology.channels import parameters, shapes, trajectories
from shoal.topology.config import Preset, Presets
from shoal.topology.roles import begin, collector
from shoal.types import State

KL = METRICS.index("kl")
_REWARDS = "rewards"


@dataclass(frozen=True, kw_only=True)
class DecentralisedConfig(PPOConfig):
    """The settings that PPO by ranks adds to PPO's."""

    normalise_advantage: bool = True
    """Normalise advantages by the moments of all ranks' rollouts; without it, they stay as they are."""
    check_every: int = 16
    """Updates between two comparisons of all ranks' parameters, which must be bitwise equal; 0: never."""


@dataclass(frozen=True, kw_only=True)
class Config(DecentralisedConfig, recurrent_ppo.Config):
    """DD-PPO. One update learns from ``actors`` rollouts of ``envs`` trajectories of at most ``unroll`` steps."""

    has_server: ClassVar[bool] = False  # a rank acts by the network that it learns with

    actors: Replicas = 0
    """Ranks: processes with environments and a learner of their own; 0: one per core."""
    envs: Envs = 8
    """Environments of each rank."""
    unroll: Count = 128
    sync_frac: Positive = 0.6
    """Share of the ranks whose finished rollouts make the other ranks end theirs early; above 1: never."""
    min_fraction: Fraction = 0.25
    """Smallest share of its rollout that a rank collects."""

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
# Chosen on MountainCar: with a discount of 0.98 and an entropy bonus that stays it ended at -124
VECTOR, VECTOR_CONTINUOUS = recurrent_ppo.VECTOR, recurrent_ppo.VECTOR_CONTINUOUS
PRESETS: Presets = {
    "paper": PAPER, "atari": ATARI, "classic": CLASSIC, "minatar": recurrent_ppo.MINATAR,
    "pointgoal": recurrent_ppo.POINTGOAL,
    "classic_continuous": VECTOR_CONTINUOUS, "states": STATES, "vector": VECTOR, "vector_continuous": VECTOR_CONTINUOUS,
    "picture": recurrent_ppo.PICTURE, "picture_continuous": recurrent_ppo.PICTURE_CONTINUOUS,
}  # fmt: skip


@dataclass
class _Pass:
    """A rank's place in learning from its rollout: plain data, so that it can be saved at any moment."""

    data: Tensors = field(default_factory=dict)  # what the loss reads: rows [N, ...] or trajectories [T, B, ...]
    rows: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))  # those that count
    order: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))  # of this epoch
    seen: Tensors = field(default_factory=dict)  # moments for the running statistics
    epoch: int = 0
    minibatch: int = 0
    kl: float = 0.0  # summed over this epoch's minibatches
    sums: Tensor = field(default_factory=lambda: torch.zeros(len(METRICS) + 2, dtype=torch.float64))
    taken: int = 0
    skipped: int = 0
    ratio_error: float = 0.0


class RankPPO(PPO):
    """PPO whose rewards are scaled by what all ranks have seen before."""

    returns = torch.zeros(0)
    """Discounted returns [T, B] of the last rollout, of which the statistics of rewards are; empty without any."""

    def rewards(self, items: Tensors, cut: Tensor) -> Tensor:
        """Scaled by the statistics of the rollouts before: those of this one are not complete before all are."""
        scaler = self.nets.rewards
        if scaler is None:
            return items["reward"]
        self.returns = scaler.returns(items["reward"], cut)
        scaled: Tensor = scaler.scale(items["reward"])
        return scaled


class RankLearner(PPOLearner):
    """One rank's learner. ``moments`` -> reduce (sum) -> ``begin``, then ``gradient`` -> reduce (mean) -> ``descend``
    until that says that the update is complete."""

    def __init__(self, cfg: DecentralisedConfig, nets: ActorCritic, total_steps: int, seed: int, ranks: int) -> None:
        super().__init__(RankPPO(cfg, nets), total_steps, seed)
        self.rules, self.ranks = cfg, ranks
        self.parameters = self.gradient_step.parameters
        self._mean = MeanGradient(self.parameters, self.device)
        self._pass = _Pass()
        self._scheduled: dict[str, float] = {}  # the settings that are schedules, in this update
        self._norms: dict[str, RunningNorm] = {k: cast(RunningNorm, n) for k, n in nets.norms.items()}
        if nets.rewards is not None:
            self._norms[_REWARDS] = nets.rewards.stats

    # ------------------------------------------------------------------------------ once per rollout
    def moments(self, items: Tensors) -> Arrays:
        """Take in a rollout; what ranks add up of it: ``moments_spec``."""
        self._scheduled = self._schedule(self.env_steps / self.total_steps)
        batch = to_device(Batch(items), self.device)
        data = dict(self.algorithm.prepare(batch).items)
        valid = data["valid"]
        sums = {"advantage": moments(data["advantage"], valid)}
        for name in self._norms:
            seen = self.algorithm.returns if name == _REWARDS else batch.items[name][:-1]
            sums[f"norm/{name}"] = moments(seen, valid)
        if self._checks():
            sums["digest"] = self._digest()
        here = transfer.Download(list(sums.values())).take()
        out: Arrays = {"digest": np.array(0), **{k: v.numpy() for k, v in zip(sums, here, strict=True)}}
        out["steps"] = np.array(int(transfer.on_host(valid).sum()))
        self._pass = _Pass(*self.algorithm.laid_out(data))
        return out

    def begin(self, sums: Tensors) -> int:
        """Go on with the sums over all ranks; the environment steps of all their rollouts."""
        if self._checks() and int(sums["digest"]) != self.ranks * int(self._digest()):
            raise ShoalError(f"the parameters of {self.ranks} ranks are not equal before update {self.step}")
        advantage = self._pass.data.pop("advantage")
        if self.rules.normalise_advantage:
            advantage = normalised(advantage, sums["advantage"])
        self._pass.data["normalised_advantage"] = advantage
        self._pass.seen = {name: sums[f"norm/{name}"].clone() for name in self._norms}
        steps = int(sums["steps"])
        self.env_steps += steps
        self._shuffle()
        return steps

    # ---------------------------------------------------------------------------- once per minibatch
    def gradient(self, out: Arrays) -> None:
        """Write this rank's gradient of the next minibatch, and its metrics, into an item of ``gradient_spec``."""
        now = self._pass
        rows = now.order.tensor_split(self.cfg.minibatches)[now.minibatch]
        items = self.algorithm.select(now.data, rows)
        counted = items["valid"]
        items["weight"] = counted / counted.sum().clamp(min=1)
        self.optimiser.zero_grad(set_to_none=True)
        loss, _, update = differentiate(self.algorithm, Batch(items))
        value, update = self._mean.write(out["gradient"], loss, update)
        metrics = [float(v) for v in update.metrics.values()]
        if not now.epoch and not now.minibatch:
            now.ratio_error = metrics[-1]
        out["metrics"][...] = [*metrics, value, 0.0]

    def descend(self, means: Tensors) -> bool:
        """Step along the mean gradient of all ranks; whether the update is complete."""
        now = self._pass
        metrics = means["metrics"].clone()
        norm = self.gradient_step.descend(float(metrics[len(METRICS)]), *self._mean.take(means["gradient"]))
        if norm is None:
            now.skipped += 1
        else:
            metrics[-1] = norm
            now.sums += metrics
            now.taken += 1
            now.kl += float(metrics[KL])
        now.minibatch += 1
        if now.minibatch < self.cfg.minibatches:
            return False
        now.epoch += 1
        mean_kl = now.kl / self.cfg.minibatches
        if now.epoch < self.cfg.epochs and not (self.cfg.target_kl is not None and mean_kl > self.cfg.target_kl):
            self._shuffle()
            return False
        # Statistics change only between rollouts: acting and training see the same normalisation.
        for name, seen in now.seen.items():
            self._norms[name].merge(*mean_variance(transfer.send(seen, self.device)))
        now.data = {}  # it may lie in the collector's memory, which the next rollout takes
        self.step += 1
        return True

    def report(self) -> Update:
        """The metrics of the update that is complete; means over ranks and minibatches."""
        now = self._pass
        out = {"minibatches": float(now.taken), "skipped_updates": now.skipped / (now.taken + now.skipped)}
        if now.taken:
            *means, _, norm = (now.sums / now.taken).tolist()
            out |= dict(zip(METRICS, means, strict=True))
            out |= {"grad_norm": norm, "ratio_error": now.ratio_error}
        return Update({**out, **self._scheduled})

    # ---------------------------------------------------------------------------------------- states
    def state_dict(self) -> State:
        return {**super().state_dict(), "pass": dict(vars(self._pass)), "fraction": self.algorithm.fraction}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._pass = _Pass(**state["pass"])
        self._pass.sums = self._pass.sums.clone()
        self._scheduled = self._schedule(state["fraction"])

    def _shuffle(self) -> None:
        now = self._pass
        now.order = now.rows[transfer.send(torch.randperm(len(now.rows), generator=self.rng), self.device)]
        now.minibatch, now.kl = 0, 0.0

    def _checks(self) -> bool:
        return bool(self.rules.check_every) and self.step % self.rules.check_every == 0

    def _digest(self) -> Tensor:
        """A number (int64 []) that two ranks share only if, but for 1 chance in 1e9, their parameters are equal."""
        with torch.no_grad():
            words = torch.cat([p.detach().flatten().view(torch.int32) for p in self.parameters]).long()
            places = torch.arange(1, len(words) + 1, device=words.device)
            return (words * (places * 2_654_435_761 % 1_000_003)).sum() % (1 << 40)


def moments_spec(nets: ActorCritic) -> Spec:
    """Return what ranks add up once per rollout: environment steps, moments (count, sum, sum of squares) of advantages
    and of whatever is normalised by running statistics, and a digest of the parameters."""
    norms = {k: tuple(cast(RunningNorm, n).shape) for k, n in nets.norms.items()}
    if nets.rewards is not None:
        norms[_REWARDS] = ()
    moments = {f"norm/{name}": Field((3, *shape), "float64", 0) for name, shape in norms.items()}
    counts = {"steps": Field((), "int64"), "digest": Field((), "int64")}
    return {**counts, "advantage": Field((3,), "float64", 0), **moments}


def gradient_spec(nets: ActorCritic) -> Spec:
    """Return what ranks average for each minibatch: the gradient of all parameters as one vector; metrics, the loss."""
    size = sum(p.numel() for p in nets.parameters())
    return {"gradient": Field((size,), axis=0), "metrics": Field((len(METRICS) + 2,), "float64", 0)}


def moments(x: Tensor, mask: Tensor) -> Tensor:
    """[3, ...] (float64): count, sum and sum of squares of the rows of ``x`` where ``mask``. They add up over ranks."""
    if x.device.type != "cpu":  # without knowing how many rows those are
        counted = mask.reshape(*mask.shape, *[1] * (x.ndim - mask.ndim))
        rows = torch.where(counted, x.double(), 0.0).flatten(0, mask.ndim - 1)
        count = mask.sum().double().expand(rows.shape[1:])
        return torch.stack((count, rows.sum(0), rows.square().sum(0)))
    rows = x[mask].double()
    count = torch.full(rows.shape[1:], float(len(rows)), dtype=torch.float64, device=rows.device)
    return torch.stack((count, rows.sum(0), rows.square().sum(0)))


def mean_variance(sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean, the population variance and the count (one number) that moments [3, ...] are of."""
    count = sums[0].clamp(min=1.0)
    mean = sums[1] / count
    return mean, (sums[2] / count - mean.square()).clamp(min=0.0), sums[0].flatten()[0]


def normalised(advantage: Tensor, sums: Tensor) -> Tensor:
    """``(A - mu) / sqrt(var + 1e-5)`` with the moments of all ranks (habitat-baselines, ``ddppo.py``); float32."""
    mean, variance, _ = mean_variance(transfer.send(sums, advantage.device))
    return ((advantage - mean) * (variance + 1e-5).rsqrt()).float()


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
