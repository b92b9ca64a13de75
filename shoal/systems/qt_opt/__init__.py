"""QT-Opt: Q-learning of continuous actions without a policy network. The best action is found by the cross-entropy
method, for acting and for labels; Bellman updaters label what is in the replay, and the learners see labels only.

Kalashnikov et al. 2018, "QT-Opt: Scalable Deep Reinforcement Learning for Vision-Based Robotic Manipulation".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import torch

from shoal.api import (
    UNIT,
    Context,
    Field,
    ParamsReader,
    ParamsWriter,
    Reader,
    Spec,
    UsageError,
    Writer,
    observations,
    spec_nbytes,
)
from shoal.demonstrations.episodes import Demonstrations
from shoal.demonstrations.streams import fill, read_for, stream_fields
from shoal.machine import cores
from shoal.nets.cem_network import CEMNetwork, Search
from shoal.program import Channel, Program
from shoal.replay import ItemSpec, Ratio, TableSpec
from shoal.roles.updater import LabelledGradientRole, LabelledLearnerRole, TargetServerRole, UpdaterRole
from shoal.settings.ranges import Count, Envs, Fraction, NonNegative, OnlyWith, Parts, Positive, Repeats, Replicas
from shoal.settings.schedule import Scheduled, at, linear
from shoal.systems.qt_opt.rule import (
    STEP,
    Averages,
    Bellman,
    CEMAgent,
    CEMConfig,
    LabelledLearner,
    LabelledQ,
    LabelledValue,
    Offline,
)
from shoal.topology.channels import parameters, replay, stream
from shoal.topology.config import Preset, Presets, require_box
from shoal.topology.parameter_server import ParameterServer, ServerConfig
from shoal.topology.replay_shards import add_servers, require_actors
from shoal.topology.replayed import SamplingConfig, descent, progress
from shoal.topology.roles import actor, begin
from shoal.words import counted

RISING = linear(0.01, 0.5)  # of a run that begins with what others did
OF_SERVER = ("shards", "n_fetch", "n_push", "pieces", "max_lag", "outliers")  # settings of the parameter server


@dataclass(frozen=True, kw_only=True)
class Config(CEMConfig, SamplingConfig, ServerConfig):
    """QT-Opt. With several learners, periods are in updates of the parameter server."""

    fixed_at_start: ClassVar[tuple[str, ...]] = ("demonstrations", "activation")
    only_with: ClassVar[OnlyWith] = {
        "online_share": ("demonstrations",), "label_uses": ("samples_per_insert",), "activation": ("hidden",),
    }  # fmt: skip
    hidden_heads: ClassVar[bool] = True

    env: str = "Pendulum-v1"
    actors: Replicas = 0
    """Actor processes; 0: one fewer than there are cores, at least one."""
    envs: Envs = 4
    unroll: Count = 16
    steps: Count = 200_000
    hidden: tuple[Count, ...] = (256, 256)
    """Units of each layer of the network, whose first the action joins."""
    activation: Literal["relu", "tanh"] = "relu"
    """Activation after each hidden layer."""
    n_step: Repeats = 1
    samples_per_insert: NonNegative = 64.0
    learners: Parts = 1
    """Learner processes. 1: the learner updates the parameters itself; more (the paper's training workers): each sends
    gradients to a parameter server, which also keeps the target networks."""
    shards: Parts = 1
    updaters: Replicas = 0
    """Processes that label transitions (Bellman updaters), updater i for learner i modulo the learners; 0: one for each
    learner."""
    label_uses: Positive = 1.0
    """Times that a label is learned from, on average; a higher number makes fewer labels, each of which is older."""
    labels: Count = 2_048
    """Labelled transitions between the updaters and the learner, of which the newest overwrite the oldest."""
    replay_servers: Replicas = 0
    """Processes that hold the replay for all updaters; 0: each updater holds a part, which its own actors fill."""
    demonstrations: str = ""
    """Recorded transitions: a Minari data set's ID or directory, or `module:function` that returns episodes; empty:
    none."""
    online_share: Scheduled[Fraction] = RISING
    """With `demonstrations`, the share of each batch that is of this run's own actors."""

    def idle(self) -> dict[str, str]:
        """Return the idle settings, those of the search among them."""
        out = super().idle()
        if self.cem_iterations == 1:
            out |= {"cem_floor": "cem_iterations is 1"}
        if not self.served():
            out |= dict.fromkeys(OF_SERVER, "learners is 1")
        return out

    def served(self) -> bool:
        """Return whether a parameter server moves the parameters, for several learners."""
        return self.learners > 1

    def num_updaters(self) -> int:
        """Return how many processes label transitions."""
        return self.updaters or self.learners

    def num_actors(self) -> int:
        return self.actors or self.sharing(max(self.num_updaters(), cores() - 1))

    def gradient_processes(self) -> int:
        """Return how many processes share a gradient: of several learners, each makes its own."""
        return 1 if self.served() else super().gradient_processes()

    def progress(self, update: int) -> float:
        """Return the share done of the updates, each of which may be made of several batches of a server's learners."""
        return super().progress(update) * (self.n_push * self.pieces if self.served() else 1)

    def search(self) -> Search:
        """Return how the cross-entropy method looks for an action."""
        return Search(self.cem_samples, self.cem_elites, self.cem_iterations, self.cem_floor)


PAPER: Preset = dict(  # sections 4 and 5, appendices; the tensor2robot code where the paper gives no number
    actors=7, updaters=1_000, learners=10, replay_servers=7, envs=1, unroll=20, gamma=0.9, n_step=1,
    loss="cross-entropy", cem_samples=64, cem_elites=6, cem_iterations=2, optimiser="sgd", learning_rate=1e-4,
    momentum=0.9, weight_decay=7e-5, max_grad_norm=None, batch=32, polyak=0.9999, target_lag=6_000,
    samples_per_insert=0.0, replay=1_000_000, labels=100_000, hidden=(64, 64), online_share=linear(0.01, 0.5),
)  # fmt: skip
CLASSIC: Preset = dict(
    steps=20_000, total_envs=2, unroll=8, hidden=(128, 128), batch=128, samples_per_insert=128.0, label_uses=4.0,
    polyak=0.99, target_lag=100,
)  # fmt: skip
VECTOR_CONTINUOUS: Preset = {**CLASSIC, "steps": 50_000, "novelty": 0.5, "novelty_steps": 12_000}
PRESETS: Presets = {"paper": PAPER, "classic": CLASSIC, "vector_continuous": VECTOR_CONTINUOUS}


def network(cfg: Config, device: str = "cpu") -> CEMNetwork:
    """The value of an observation and an action."""
    return CEMNetwork(
        cfg.env_spec(), cfg.search(), bounded=cfg.loss == "cross-entropy", torso=cfg.torso, hidden=cfg.hidden,
        activation=cfg.activation, precision=cfg.precision, device=device,
    )  # fmt: skip


def agent(cfg: Config, seed: int = 0, ctx: Context | None = None) -> CEMAgent:
    """The cross-entropy method, which explores alike in every actor."""
    return CEMAgent(network(cfg), cfg.epsilon, cfg.noise, seed)


def labelled(cfg: Config, sent: Spec) -> Spec:
    """Return what an updater sends: observations and actions [B, ...], labels, and when these were made."""
    found = cfg.table().batch(sent, cfg.batch)
    labels = {"target": Field((cfg.batch,), axis=0), STEP: Field((cfg.batch,), "int64", 0)}
    return {**observations(found), "action": found["action"], **labels}


def online(cfg: Config, sent: Spec) -> Channel:
    """The replay of the actors' transitions, in as many equal parts as there are readers of it."""
    parts = cfg.replay_servers or cfg.num_updaters()
    require_actors(cfg.num_actors(), parts, "replay server" if cfg.replay_servers else "updater")
    taken = cfg.batch * (cfg.num_updaters() if cfg.replay_servers else 1)
    each = cfg.samples_per_insert / cfg.label_uses or None  # labels made of each transition
    ratio = Ratio(-(-cfg.min_replay // parts), each, slack=2 * max(cfg.unroll * cfg.envs * (each or 0.0), taken))
    return replay("transitions", sent, replace(cfg.table(), capacity=-(-cfg.replay // parts)), ratio)


def offline_table(cfg: Config, found: Demonstrations) -> TableSpec:
    """The replay that holds all of the demonstrations."""
    return replace(cfg.table(), capacity=sum(length + 1 for length in found.lengths))


def offline(cfg: Config, found: Demonstrations, ctx: Context) -> Offline:
    """The replay of demonstrations, filled, and the share of a batch that comes from it at each update."""
    fields = stream_fields(stream(cfg))
    table = fill(offline_table(cfg, found).build(fields, 1, ctx.seed), found, cfg.env, cfg, fields)
    return Offline(table, lambda step: 1.0 - at(cfg.online_share, progress(cfg, ctx, step)), ctx.seed)


def labels_channel(cfg: Config, sent: Spec) -> Channel:
    """The labelled transitions that wait to be learned from, in as many equal parts as there are learners."""
    capacity = max(-(-cfg.labels // cfg.learners), cfg.batch)
    uses = cfg.label_uses if cfg.samples_per_insert else None
    ratio = Ratio(cfg.batch, uses, slack=2 * cfg.batch * max(cfg.label_uses, 1.0))
    return replay("labels", labelled(cfg, sent), ItemSpec(capacity), ratio)


def check(cfg: Config) -> None:
    """UsageError for settings that clash."""
    require_box(cfg)
    if not 2 <= cfg.cem_elites <= cfg.cem_samples:
        raise UsageError(f"cem_elites ({cfg.cem_elites}) must be from 2 to cem_samples ({cfg.cem_samples})")
    if cfg.num_updaters() < cfg.learners:
        raise UsageError(
            f"each learner needs an updater: expected at least {cfg.learners} updaters, found {cfg.updaters}"
        )
    if cfg.learners > 1 and cfg.learner_processes > 1:
        raise UsageError(
            f"learner_processes ({cfg.learner_processes}) share the gradient of one learner, and there are "
            f"{counted(cfg.learners, 'learner')}: expected one of the two to be 1"
        )


def program(cfg: Config) -> Program:
    """Actors -> replay -> updaters -> labels -> learner -> target networks -> updaters (of one the actors, too). Of
    several learners: labels -> learners -> gradients -> server -> target networks, and parameters -> learners."""
    check(cfg)
    device = cfg.learner_device()
    found = read_for(cfg.demonstrations, cfg.env, cfg) if cfg.demonstrations else None
    p = Program("qt-opt", policy="params")
    transitions = p.channel(online(cfg, stream(cfg)))
    labels = p.channel(labels_channel(cfg, transitions.spec))
    divided = UNIT if cfg.served() else 0
    params = p.channel(parameters("params", partial(network, cfg), divided=divided))
    lagged = p.channel(parameters("lagged", partial(network, cfg), divided=divided))
    p.role(
        "actor", actor(cfg, agent, transitions.spec), replicas=cfg.num_actors(), on_failure="restart",
        transitions=transitions.writer(), params=params.reader(),
    )  # fmt: skip
    batches, count = transitions, cfg.batch
    if cfg.replay_servers:
        batches, count = add_servers(p, transitions, cfg.replay_servers, cfg.batch, cfg.num_updaters()), 1

    def make_updater(
        ctx: Context, transitions: Reader, labels: Writer, params: ParamsReader, lagged: ParamsReader
    ) -> UpdaterRole:
        others = offline(cfg, found, ctx) if found is not None else None
        bellman = Bellman(network(cfg, device).to(device), ctx.seed, others)
        return UpdaterRole(ctx, bellman, transitions, labels, params, lagged)

    p.role(
        "updater", make_updater, replicas=cfg.num_updaters(), on_failure="restore", device=device,
        memory=0 if found is None else offline_table(cfg, found).nbytes(stream_fields(transitions.spec)),
        transitions=batches.reader(count), labels=labels.writer(), params=params.reader(), lagged=lagged.reader(),
    )  # fmt: skip
    add = add_learners if cfg.served() else add_learner
    add(p, cfg, labels, params, lagged)
    return p


def add_learner(p: Program, cfg: Config, labels: Channel, params: Channel, lagged: Channel) -> None:
    """Add the one learner, which keeps the target networks itself."""
    device = cfg.learner_device()

    def make(ctx: Context, labels: Reader, params: ParamsWriter, lagged: ParamsWriter) -> LabelledLearnerRole:
        torch.manual_seed(ctx.seed)
        q = LabelledQ(cfg, begin(ctx, network(cfg, device).to(device)))
        learner = descent(cfg, ctx, q, LabelledLearner)
        return LabelledLearnerRole(ctx, learner, labels, params, lagged)

    p.role(
        "learner", make, threads=cfg.learner_threads or 1, device=device,
        memory=14 * spec_nbytes(params.spec),  # the averages of the past, and the moment's
        labels=labels.reader(cfg.batch), params=params.writer(), lagged=lagged.writer(),
    )  # fmt: skip


def add_learners(p: Program, cfg: Config, labels: Channel, params: Channel, lagged: Channel) -> None:
    """Add several learners and their parameter server, which keeps the target networks (section 4.3)."""
    device = cfg.learner_device()
    server = ParameterServer(p, cfg, partial(network, cfg, device), partial(progress, cfg), name="online")
    server.learners(
        lambda nets, ctx: LabelledValue(cfg, nets), labels, count=cfg.batch, device=device,
        threads=cfg.learner_threads or 1, role=LabelledGradientRole,
    )  # fmt: skip
    server.server(
        partial(TargetServerRole, targets=partial(Averages, cfg)), memory=14 * spec_nbytes(params.spec) // cfg.shards,
        average=params.writer(), lagged=lagged.writer(),
    )  # fmt: skip
