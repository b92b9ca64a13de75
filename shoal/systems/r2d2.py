"""R2D2: Ape-X with an LSTM. Actors send streams with their recurrent states; a prioritised replay keeps overlapping
sequences; the learner burns the stored state in before it learns.

Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from shoal.algos.recurrent_q import RecurrentQAgent, RecurrentQConfig, RecurrentQLearning, RecurrentQNetwork
from shoal.algos.sgd import SGDLearner
from shoal.api import Context, Spec, UsageError
from shoal.program import Program
from shoal.replay import Ratio, SequenceSpec
from shoal.settings.ranges import Count, Natural, NonNegative, Positive, Replicas
from shoal.settings.schedule import linear
from shoal.systems.config import Preset, Presets, require_actions
from shoal.systems.exploration import LadderConfig, ladder
from shoal.systems.replayed import ReplayConfig, descent
from shoal.systems.wiring import Q_VALUES, actors_and_learner, replay, stream


@dataclass(frozen=True, kw_only=True)
class Config(RecurrentQConfig, ReplayConfig, LadderConfig):
    """R2D2. The replay holds sequences; the ladder of epsilons spans all environments of all actors."""

    items_are_steps: ClassVar[bool] = False  # a short episode is a sequence too
    shares_gradient: ClassVar[bool] = False
    leaves_core: ClassVar[bool] = True

    actors: Replicas = 0
    """Actor processes; 0: one less than the cores, at least one."""
    unroll: Count = 20
    last_action_reward: bool = True
    sequence: Count = 80
    """Steps of each sequence that are learned from (m in the paper)."""
    overlap: Natural = 40
    """Steps that a sequence shares with the one before it."""
    staleness: bool = True
    """Measure by ΔQ how stale stored states are; the replay then keeps three states of each sequence."""
    sampler: Literal["proportional", "rank"] = "proportional"
    """How a prioritised replay is sampled: in proportion to the priorities, or by their rank."""
    priority_exponent: NonNegative = 0.9
    importance_exponent: float = 0.6
    optimiser_eps: Positive = 1e-3
    max_grad_norm: float | None = 40.0
    batch: Count = 64
    """Sequences in each update."""
    samples_per_insert: NonNegative = 4.0
    """Steps learned from per environment step; 0: acting and learning never wait for each other."""
    replay: Count = 5_000
    """Capacity of the replay (sequences)."""
    min_replay: Count = 100
    """Sequences in the replay before the first update."""
    target_period: Count = 400

    def stride(self) -> int:
        """Steps between the starts of two sequences."""
        if self.overlap >= self.sequence:
            raise UsageError(f"overlap ({self.overlap} steps) must be less than sequence ({self.sequence} steps)")
        return self.sequence - self.overlap

    def progress(self, update: int) -> float:
        return super().progress(update * self.sequence)

    def ratio(self) -> Ratio:
        """In sequences, each of which brings ``stride`` new steps."""
        if not self.samples_per_insert:
            return Ratio(self.min_replay)
        each = self.samples_per_insert * self.stride() / self.sequence
        message = each * self.sequences().items_per_insert(sent(self))
        return Ratio(self.min_replay, each, slack=2 * max(message, self.batch))

    def sequences(self) -> SequenceSpec:
        """The replay table."""
        env = self.env_spec()
        return SequenceSpec(
            capacity=self.replay, length=self.sequence, stride=self.stride(), burn_in=self.burn_in, n_step=self.n_step,
            gamma=self.gamma, eta=self.priority_mix, rescale=self.rescale, stack=env.stack, pad=env.pad,
            sampler=self.sampler if self.prioritised else "uniform", alpha=self.priority_exponent,
            probes=self.staleness and self.core != "none",
        )  # fmt: skip


PAPER: Preset = dict(  # section 2.3 and table 2; 10 G frames of Atari
    actors=256, envs=1, unroll=40, steps=2_500_000_000, core_size=512, hidden=(), sequence=80, overlap=40, burn_in=40,
    n_step=5, gamma=0.997, batch=64, learning_rate=1e-4, optimiser_eps=1e-3, max_grad_norm=40.0, target_period=2_500,
    replay=100_000, min_replay=625, samples_per_insert=0.0, full_action_space=True, torso="nature", precision="fp32",
)  # fmt: skip
CLASSIC: Preset = dict(
    steps=500_000, total_envs=16, hidden=(64,), core_size=64, dueling=False, sequence=20, overlap=10, burn_in=10,
    gamma=0.99, batch=32, samples_per_insert=16.0, replay=10_000, target_period=200,
    learning_rate=linear(1e-3, 0.0), optimiser_eps=1e-5, max_grad_norm=10.0,
)  # fmt: skip
VECTOR: Preset = {**CLASSIC, "novelty": 0.5, "novelty_steps": 15_000}
STATES: Preset = {**CLASSIC, "episode_bound": 500}
PRESETS: Presets = {"paper": PAPER, "classic": CLASSIC, "states": STATES, "vector": VECTOR}


def network(cfg: Config, device: str = "cpu") -> RecurrentQNetwork:
    """Action values of observations and a recurrent state."""
    env = cfg.env_spec()
    require_actions(cfg.system(), env, "discrete")
    return RecurrentQNetwork(
        env, torso=cfg.torso, hidden=cfg.hidden, dueling=cfg.dueling, core=cfg.core, core_size=cfg.core_size,
        burn_in=cfg.burn_in, stored_state=cfg.start_state == "stored", precision=cfg.precision, device=device,
    )  # fmt: skip


def agent(cfg: Config, seed: int = 0, ctx: Context | None = None) -> RecurrentQAgent:
    """Explores as its place on the ladder of epsilons says."""
    return RecurrentQAgent(network(cfg), cfg.eval_epsilon if ctx is None else ladder(cfg, ctx), seed)


def sent(cfg: Config) -> Spec:
    """What actors send: steps, with values for the first priorities and, where they are used, recurrent states."""
    return stream(cfg, Q_VALUES, network if cfg.start_state == "stored" or cfg.staleness else None)


def learn(cfg: Config, nets: RecurrentQNetwork, ctx: Context) -> SGDLearner:
    """The learner."""
    return descent(cfg, ctx, RecurrentQLearning(cfg, nets, cfg.importance_exponent))


def program(cfg: Config) -> Program:
    """Actors, one replay of sequences, one learner."""
    sequences = replay("sequences", sent(cfg), cfg.sequences(), cfg.ratio())
    return actors_and_learner(
        "r2d2", cfg, sequences, network, agent, lambda nets, ctx: learn(cfg, nets, ctx), count=cfg.batch
    )
