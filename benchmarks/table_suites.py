"""What ``benchmarks/table.py`` runs: the rows and the tasks of its two suites, with the figures that scores are
measured by, and the order that the papers claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Task:
    """``best``: the best published mean return that was found, which counts as 1; None: none was. ``source``: of it."""

    env: str
    best: float | None
    source: str
    verified: bool = True

    @property
    def name(self) -> str:
        return self.env.removeprefix("MinAtar/").rpartition("-v")[0]


@dataclass(frozen=True)
class Row:
    """A system of Shoal with ``fields`` on top of its preset, or what a ``peer`` calls its own. ``greedy``: how its
    policy is evaluated."""

    name: str
    system: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    greedy: bool = True
    peer: str = ""


@dataclass(frozen=True)
class Claim:
    """``better`` scores higher than ``worse``, says ``paper``."""

    better: str
    worse: str
    paper: str


@dataclass(frozen=True)
class Suite:
    """``preset`` of all systems; ``frames`` and ``minutes``: what the two columns are equal in."""

    title: str
    preset: str
    frames: int
    minutes: float
    episodes: int
    tasks: tuple[Task, ...]
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...] = ()

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def task(self, env: str) -> Task:
        return next(task for task in self.tasks if task.env == env)


GYMNAX = "PPO, table of environments in gymnax's README (it says R: {:g})"
ZOO = "rl-baselines3-zoo, benchmark.md (commit 0088472), {}"
PLAIN = dict(double=False, dueling=False, n_step=1, prioritised=False, noisy=False)  # Rainbow's parts, turned off
MINATAR = Suite(
    "MinAtar",
    "minatar",
    1_000_000,
    5.0,
    100,
    (
        Task("MinAtar/Asterix-v1", 15, GYMNAX.format(15)),
        Task("MinAtar/Breakout-v1", 28, GYMNAX.format(28)),
        Task("MinAtar/Freeway-v1", 58, GYMNAX.format(58)),
        Task("MinAtar/Seaquest-v1", None, "no published figure was found", verified=False),
        Task("MinAtar/SpaceInvaders-v1", 131, GYMNAX.format(131)),
    ),
    (
        Row("DQN", "dqn"),
        Row("Prioritised dueling DQN", "rainbow", {**PLAIN, "returns": "mean", "double": True, "dueling": True,
                                                   "prioritised": True}),
        Row("C51", "rainbow", {**PLAIN, "returns": "categorical"}),
        Row("QR-DQN", "rainbow", {**PLAIN, "returns": "quantile"}),
        Row("Rainbow", "rainbow"),
        Row("Gorila", "gorila"),
        Row("Ape-X DQN", "apex-dqn"),
        Row("R2D2", "r2d2"),
        Row("A3C", "a3c", greedy=False),
        Row("Asynchronous n-step Q", "async-nstep-q"),
        Row("UNREAL", "unreal", greedy=False),
        Row("IMPALA", "impala", greedy=False),
        Row("Recurrent PPO", "recurrent-ppo", greedy=False),
        Row("DD-PPO", "dd-ppo", greedy=False),
        Row("ES", "es"),
        Row("Stable-Baselines3 PPO", "ppo", greedy=False, peer="sb3"),
        Row("Stable-Baselines3 DQN", "dqn", peer="sb3"),
        Row("Stable-Baselines3 QR-DQN", "qrdqn", peer="sb3"),
    ),
    (
        Claim("Gorila", "DQN", "Nair et al. 2015, section 6"),
        Claim("Prioritised dueling DQN", "DQN", "Wang et al. 2016, section 4.2"),
        Claim("C51", "DQN", "Bellemare et al. 2017, section 5"),
        Claim("QR-DQN", "C51", "Dabney et al. 2018, section 5.2"),
        Claim("Rainbow", "C51", "Hessel et al. 2018, figure 1"),
        Claim("Rainbow", "Prioritised dueling DQN", "Hessel et al. 2018, figure 1"),
        Claim("Ape-X DQN", "Rainbow", "Horgan et al. 2018, table 1"),
        Claim("R2D2", "Ape-X DQN", "Kapturowski et al. 2019, table 1"),
        Claim("A3C", "Asynchronous n-step Q", "Mnih et al. 2016, figure 1"),
        Claim("UNREAL", "A3C", "Jaderberg et al. 2017, section 4.2"),
        Claim("IMPALA", "A3C", "Espeholt et al. 2018, table 4"),
    ),
)  # fmt: skip
CONTINUOUS = Suite(
    "Continuous control",
    "auto",
    300_000,
    10.0,
    20,
    (
        Task("Pendulum-v1", -151.855, ZOO.format("td3")),
        Task("LunarLanderContinuous-v3", 277.956, ZOO.format("tqc, of v2")),
        Task("BipedalWalker-v3", 329.808, ZOO.format("tqc")),
        Task("HalfCheetah-v5", 12089.939, ZOO.format("tqc, of v3")),
        Task("Hopper-v5", 3754.199, ZOO.format("tqc, of v3")),
        Task("Walker2d-v5", 4933.148, ZOO.format("trpo, of v3")),
    ),
    (
        Row("D4PG", "d4pg"),
        Row("Ape-X DPG", "apex-dpg"),
        Row("QT-Opt", "qt-opt"),
        Row("IMPALA", "impala"),
        Row("Recurrent PPO", "recurrent-ppo"),
        Row("DD-PPO", "dd-ppo"),
        Row("ES", "es"),
        Row("Stable-Baselines3 TD3", "td3", peer="sb3"),
        Row("Stable-Baselines3 SAC", "sac", peer="sb3"),
        Row("Stable-Baselines3 PPO", "ppo", peer="sb3"),
    ),
    (Claim("D4PG", "Ape-X DPG", "Barth-Maron et al. 2018, section 4"),),
)
SUITES = {"minatar": MINATAR, "continuous": CONTINUOUS}
