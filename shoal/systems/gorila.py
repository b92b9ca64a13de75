"""Gorila: DQN by a parameter server; many actors, many learners that compute gradients only, sharded parameters.

Nair et al. 2015, "Massively Parallel Methods for Deep Reinforcement Learning"; the server is that of Dean et al. 2012.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from shoal.api import Context, UsageError
from shoal.learning.algorithm import Algorithm
from shoal.nets.q_network import QNetwork
from shoal.program import Program
from shoal.settings.ranges import Natural, NonNegative, Replicas
from shoal.systems import dqn
from shoal.systems.dqn import QLearning
from shoal.topology.channels import replay
from shoal.topology.config import Preset, Presets
from shoal.topology.parameter_server import ParameterServer, ServerConfig
from shoal.topology.replay_shards import add_servers, require_actors
from shoal.topology.replayed import progress
from shoal.topology.roles import actor


@dataclass(frozen=True, kw_only=True)
class Config(dqn.Config, ServerConfig):
    """Gorila. Each learner has a replay of its own (``replay`` transitions), which its own actors fill. Periods are in
    updates of the server."""

    shares_gradient: ClassVar[bool] = False
    has_server: ClassVar[bool] = False
    actors: Replicas = 2
    """Actor processes; actor i fills the replay of learner i modulo the learners, or of server i modulo those."""
    replay_servers: Replicas = 0
    """Processes of a replay that all actors fill and all learners draw from (global replay), each with a table of
    `replay` transitions; 0: each learner has a replay of its own, which its own actors fill."""
    max_lag: Natural = 100
    outliers: NonNegative = 4.0

    def progress(self, update: int) -> float:
        """Return the share done of the server's updates, each of which may be made of several batches."""
        return super().progress(update) * self.n_push * self.pieces


PAPER: Preset = {  # sections 4 and 5; network, preprocessing and learning rate are DQN's
    **dqn.PAPER, "actors": 100, "learners": 100, "shards": 31, "optimiser": "adagrad", "optimiser_eps": 1e-8,
    "target_period": 60_000, "epsilon_steps": 4_000_000, "max_lag": 400,
}  # fmt: skip
ATARI: Preset = dqn.ATARI | {"envs": 16, "prioritised": False, "actor_priorities": False}
CLASSIC: Preset = dqn.CLASSIC | {"outliers": 0.0}  # near the end of CartPole, the rare falls are the outliers
BOX2D: Preset = dqn.BOX2D
STATES: Preset = dqn.STATES | {"outliers": 0.0}
VECTOR: Preset = dqn.VECTOR | {"outliers": 0.0, "novelty_steps": 9_000}
PICTURE: Preset = dqn.PICTURE | {"envs": 16, "outliers": 0.0}
MINATAR: Preset = dqn.MINATAR  # network, preprocessing and learning rate are DQN's, as in the paper
PRESETS: Presets = {
    "paper": PAPER, "atari": ATARI, "classic": CLASSIC, "box2d": BOX2D, "minatar": MINATAR,
    "states": STATES, "vector": VECTOR, "picture": PICTURE,
}  # fmt: skip
network, agent = dqn.network, dqn.agent


def program(cfg: Config) -> Program:
    """Actors -> replays -> learners -> gradients -> server -> parameters -> actors and learners."""
    check(cfg)

    def algorithm(nets: QNetwork, ctx: Context) -> Algorithm:
        return QLearning(cfg, nets, dqn.importance_exponent(cfg))

    p = Program(cfg.system())
    device, taken = cfg.learner_device(), cfg.batch * (cfg.learners if cfg.replay_servers else 1)
    ratio = replace(cfg.ratio(), slack=max(cfg.ratio().slack, 2 * taken))
    transitions = p.channel(replay("transitions", dqn.sent(cfg), dqn.table(cfg), ratio))
    server = ParameterServer(p, cfg, partial(network, cfg, device), partial(progress, cfg))
    p.role(
        "actor", actor(cfg, agent, transitions.spec), replicas=cfg.num_actors(), on_failure="restart",
        transitions=transitions.writer(), params=server.params.reader(),
    )  # fmt: skip
    batches, count = transitions, cfg.batch
    if cfg.replay_servers:
        batches, count = add_servers(p, transitions, cfg.replay_servers, cfg.batch, cfg.learners), 1
    server.learners(algorithm, batches, count=count, device=device, threads=cfg.learner_threads or 1)
    server.server()
    return p


def check(cfg: Config) -> None:
    """UsageError for settings that clash."""
    if cfg.replay_shards > 1:
        raise UsageError(
            f"replay_shards must be 1, found {cfg.replay_shards}: a replay of all learners has replay_servers"
        )
    whose = "replay server" if cfg.replay_servers else "learner"
    require_actors(cfg.num_actors(), cfg.replay_servers or cfg.learners, whose)
    if cfg.replay_servers and cfg.prioritised:
        raise UsageError("a replay of all learners (replay_servers) is uniform; expected prioritised to be off")
