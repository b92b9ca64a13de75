"""Gorila: DQN by a parameter server; many actors, many learners that compute gradients only, sharded parameters.

Nair et al. 2015, "Massively Parallel Methods for Deep Reinforcement Learning"; the server is that of Dean et al. 2012.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from shoal.algos.algorithm import Algorithm
from shoal.algos.q_learning import QLearning, QNetwork
from shoal.api import Context, UsageError
from shoal.program import Program
from shoal.settings.ranges import Natural, NonNegative, Replicas
from shoal.systems import dqn
from shoal.systems.config import require_actions
from shoal.systems.replayed import progress
from shoal.systems.served import ParameterServer, ServerConfig
from shoal.systems.wiring import actor, replay, stream


@dataclass(frozen=True, kw_only=True)
class Config(dqn.Config, ServerConfig):
    """Gorila. Each learner has a replay of its own (``replay`` transitions), which its own actors fill. Periods are in
    updates of the server."""

    actors: Replicas = 2
    """Actor processes; actor i fills the replay of learner i modulo the learners."""
    max_lag: Natural = 100
    outliers: NonNegative = 4.0


PAPER: dict[str, Any] = {  # sections 4 and 5; the network and preprocessing are DQN's
    **dqn.PAPER, "actors": 100, "learners": 100, "shards": 31, "optimiser": "adagrad", "target_period": 60_000,
}  # fmt: skip
ATARI: dict[str, Any] = dqn.ATARI | {"prioritised": False}
CLASSIC: dict[str, Any] = dqn.CLASSIC
BOX2D: dict[str, Any] = dqn.BOX2D
PRESETS: dict[str, dict[str, Any]] = {"paper": PAPER, "atari": ATARI, "classic": CLASSIC, "box2d": BOX2D}
network, agent = dqn.network, dqn.agent


def program(cfg: Config) -> Program:
    """Actors -> replays -> learners -> gradients -> server -> parameters -> actors and learners."""
    require_actions("gorila", cfg.env_spec(), "discrete")
    if (actors := cfg.num_actors()) < cfg.learners:
        raise UsageError(f"each learner needs an actor: expected at least {cfg.learners} actors, found {actors}")

    def algorithm(nets: QNetwork, ctx: Context) -> Algorithm:
        return QLearning(cfg, nets, dqn.exponent(cfg))

    p = Program("gorila")
    device = cfg.learner_device()
    transitions = p.channel(replay("transitions", stream(cfg), cfg.table(), cfg.ratio()))
    server = ParameterServer(p, cfg, partial(network, cfg, device), partial(progress, cfg))
    p.role(
        "actor", actor(cfg, agent, transitions.spec), replicas=actors, on_failure="restart",
        transitions=transitions.writer(), params=server.params.reader(),
    )  # fmt: skip
    server.learners(algorithm, transitions, count=cfg.batch, device=device, threads=cfg.learner_threads or 1)
    server.server()
    return p
