"""Roles that most systems use, and the topology of most systems: actors and a learner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

import torch
from torch import nn

from shoal.api import (
    Agent,
    Context,
    Field,
    Learner,
    ParamsReader,
    ParamsWriter,
    PartsWriter,
    Reader,
    Reducer,
    Role,
    Spec,
    UsageError,
    Writer,
)
from shoal.envs import make
from shoal.learning.algorithm import Algorithm
from shoal.learning.data_parallel import Team
from shoal.learning.learner import Past, SGDLearner
from shoal.learning.optimiser import OptimiserConfig, make_optimiser
from shoal.learning.ppo_learner import PPOLearner
from shoal.learning.synchronised_learner import SynchronisedLearner, gradient_spec
from shoal.program import Channel, Program
from shoal.roles.actor import VERSION, ActorRole
from shoal.roles.collector import Collector
from shoal.roles.inference import LIVES, ServedActorRole, answer_spec, question_spec
from shoal.roles.inference_server import InferenceRole, Questions
from shoal.roles.learner import LearnerRole
from shoal.roles.synchronised import SynchronisedRole
from shoal.topology.channels import Network, parameters, queue, shapes
from shoal.topology.config import SystemConfig
from shoal.topology.replay_shards import add_shards, part_of
from shoal.types import Values

Nets = TypeVar("Nets", bound=nn.Module)


def actor(cfg: SystemConfig, agent: Callable[..., Agent], spec: Spec) -> Callable[..., ActorRole]:
    """Return a function that makes an actor: ``agent(cfg, seed, ctx)`` in ``cfg.envs`` environments. The actor reads
    ``params`` and writes items of ``spec`` to its one other port."""

    def make_actor(ctx: Context, params: ParamsReader, **ports: Any) -> ActorRole:
        (writer,) = ports.values()
        envs = make(cfg.env, cfg.envs, cfg)
        return ActorRole(ctx, envs, agent(cfg, ctx.seed, ctx), writer, params, spec)

    return make_actor


def served_actors(
    p: Program,
    cfg: SystemConfig,
    agent: Callable[..., Agent],
    sent: Channel,
    params: Channel,
    actor_role: str = "actor",
    lockstep: bool = False,
) -> None:
    """Add the actors, which write ``sent``, and the role ``inference``, which reads ``params`` and chooses actions for
    all of them as ``agent`` does, on the learner's device. lockstep: whether actors wait for new parameters."""
    device, groups = cfg.learner_device(), cfg.env_groups()
    spec, env, actors, envs = sent.spec, cfg.env_spec(), cfg.num_actors(), cfg.envs // groups
    questions = p.channel(queue("observations", question_spec(env, envs), LIVES * groups))
    answer = answer_spec(env, spec, actors, groups)
    answers = p.channel(Channel("answers", "queue", answer, LIVES * groups, divided=1))

    def make_actor(ctx: Context, observations: Writer, answers: Reader, **ports: Any) -> ServedActorRole:
        (writer,) = ports.values()
        made = [make(cfg.env, envs, cfg) for _ in range(groups)]
        return ServedActorRole(ctx, made, observations, answers, writer, spec, lockstep)

    def make_server(ctx: Context, observations: Questions, answers: PartsWriter, params: ParamsReader) -> InferenceRole:
        def acting(whose: Context) -> Agent:
            return agent(replace(cfg, total_envs=0, envs=envs), whose.seed, whose)

        return InferenceRole(
            ctx, acting, observations, answers, params, answer, actor_role, groups, device, cfg.precision
        )

    out: Values = {sent.name: sent.writer()}
    p.role(
        actor_role, make_actor, replicas=actors, on_failure="restart", observations=questions.writer(),
        answers=answers.reader(), **out,
    )  # fmt: skip
    p.role(
        "inference", make_server, on_failure="restart", device=device, observations=questions.reader(),
        answers=answers.writer(), params=params.reader(),
    )  # fmt: skip


def collector(
    ctx: Context, cfg: SystemConfig, agent: Callable[..., Agent], spec: Spec
) -> Callable[[ParamsReader], Collector]:
    """Return a function that makes the collector of a role that also learns, from a reader of its parameters:
    ``agent(cfg, seed, ctx)`` in ``cfg.envs`` environments, with trajectories of ``spec``."""
    return lambda own: Collector(ctx, make(cfg.env, cfg.envs, cfg), agent(cfg, ctx.seed, ctx), own, spec)


def team(ctx: Context, members: int) -> Team | None:
    """Return a team of ``members`` processes that share a gradient, or None if ``members`` is 1 or the runtime has
    none."""
    return ctx.team(members) if ctx.team is not None and members > 1 else None


def require_parts(cfg: SystemConfig, algorithm: Algorithm) -> None:
    """Raise UsageError if ``cfg`` asks for several processes to share the gradient of an algorithm that does not
    support it."""
    if cfg.learner_processes > 1 and not algorithm.adds_up:
        raise UsageError(
            f"learner_processes ({cfg.learner_processes}) share the gradient of a loss whose parts add up to it; "
            f"{type(algorithm).__name__} does not say so by adds_up = True"
        )


def begin(ctx: Context, nets: Nets) -> Nets:
    """Load the run's initial parameters (``--init-from``), if any, into ``nets`` and return it. A role that learns
    calls this before it copies the parameters or makes an optimiser."""
    if ctx.initial is not None:
        ctx.initial(nets)
    return nets


def learner(
    cfg: SystemConfig, network: Network, learn: Callable[[Any, Context], Learner]
) -> Callable[..., LearnerRole]:
    """Return a function that makes the learner ``learn(nets, ctx)`` of ``network(cfg, device)``. It reads its one other
    port and writes ``params``."""

    def make_learner(ctx: Context, params: ParamsWriter, **ports: Any) -> LearnerRole:
        (reader,) = ports.values()
        torch.manual_seed(ctx.seed)
        device = cfg.learner_device()
        return LearnerRole(ctx, learn(begin(ctx, network(cfg, device).to(device)), ctx), reader, params)

    return make_learner


def synchronised(
    cfg: SystemConfig, network: Network, learn: Callable[[Any, Context], SynchronisedLearner]
) -> Callable[..., SynchronisedRole]:
    """Return a function that makes one of several learners, as ``learner`` does; ``gradients`` is the channel on which
    they average gradients."""

    def make_learner(
        ctx: Context, params: ParamsWriter | None, gradients: Reducer, initial: ParamsReader, **ports: Any
    ) -> SynchronisedRole:
        (reader,) = ports.values()
        torch.manual_seed(ctx.seed)
        device = cfg.learner_device()
        made = learn(begin(ctx, network(cfg, device).to(device)), ctx)
        load = made.algorithm.nets.load_state_dict
        return SynchronisedRole(ctx, made, reader, params, gradients=gradients, initial=initial, load=load)

    return make_learner


def actors_and_learner(
    name: str, cfg: SystemConfig, sent: Channel, network: Network, agent: Callable[..., Agent],
    learn: Callable[[Any, Context], Learner], *, count: int = 1, lockstep: bool = False, memory: int = 0,
    actor_role: str = "actor", lag: int = 0, learners: int = 1,
) -> Program:  # fmt: skip
    """Build the topology of most systems: actors -> ``sent`` -> learner -> parameters -> actors.

    count: items of ``sent`` in a batch; with ``lockstep``, actors wait for new parameters and a batch is one item of
    each. memory: bytes that the learner needs beside its channels. lag: see ``parameters``. learners: number of
    learners, among which the actors are divided; if there are several, ``learn`` makes a ``SynchronisedLearner``.
    """
    if learners > cfg.num_actors():
        raise UsageError(f"learners ({learners}) must be no more than actors ({cfg.num_actors()})")
    shards: int = getattr(cfg, "replay_shards", 1)
    if shards > cfg.num_actors():
        raise UsageError(f"replay_shards ({shards}) must be no more than actors ({cfg.num_actors()})")
    p, sent = Program(name), part_of(sent, shards) if shards > 1 else sent
    if cfg.acts_by_server() and sent.kind == "queue":
        sent = replace(sent, spec={**sent.spec, VERSION: Field((cfg.unroll, cfg.env_groups()), "int64")})
    p.channel(sent)
    params = p.channel(parameters("params", lambda: network(cfg), lag))
    out: Values = {sent.name: sent.writer()}
    into: Values = {sent.name: sent.reader(count, each=lockstep)}
    if cfg.acts_by_server():
        served_actors(p, cfg, agent, sent, params, actor_role, lockstep)
    else:
        p.role(
            actor_role, actor(cfg, agent, sent.spec), replicas=cfg.num_actors(), on_failure="restart",
            params=params.reader(lockstep=lockstep), **out,
        )  # fmt: skip
    made: Callable[..., Role] = learner(cfg, network, learn)
    if shards > 1:
        made, into = add_shards(p, sent, shards, count, made)
    if learners > 1:
        spec = gradient_spec(shapes(lambda: network(cfg)))
        into["gradients"] = p.channel(Channel("gradients", "reduce", spec, mean=True)).member()
        into["initial"] = params.reader()
        made = synchronised(cfg, network, cast(Callable[[Any, Context], SynchronisedLearner], learn))
    p.role(
        "learner", made, replicas=learners, threads=cfg.learner_threads or 1, device=cfg.learner_device(),
        memory=memory, params=params.writer(first=learners > 1), **into,
    )  # fmt: skip
    return p


def trajectory_learner(
    cfg: OptimiserConfig, algorithm: Algorithm, progress: Callable[[int], float], device: str, *, learners: int = 1,
    parts: int = 1, replay: Past | None = None,
) -> SGDLearner:  # fmt: skip
    """Return the learner that minimises ``algorithm`` on trajectories with the settings of ``cfg``: a single one, or
    one of several ``learners`` that follow the mean of their gradients. progress, parts, replay: see ``SGDLearner``."""
    kind = SGDLearner if learners == 1 else SynchronisedLearner
    return kind(
        algorithm, make_optimiser(cfg, algorithm.nets), max_grad_norm=cfg.max_grad_norm, progress=progress,
        device=device, parts=parts, replay=replay,
    )  # fmt: skip


def minibatch_learner(cfg: SystemConfig, algorithm: Algorithm, ctx: Context, members: int) -> PPOLearner:
    """Return the learner that makes several passes of minibatches over each batch of trajectories with ``algorithm``.
    ``members`` processes share each gradient. Raises UsageError if ``cfg`` asks for several and the loss is not a sum
    over parts of a batch."""
    require_parts(cfg, algorithm)
    return PPOLearner(algorithm, cfg.steps, ctx.seed, team(ctx, members))
