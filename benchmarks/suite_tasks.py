"""The tasks of ``benchmarks/suite.py``: which systems meet them, and what score counts as learned, with its source."""

from __future__ import annotations

from dataclasses import dataclass

VALUES = ("dqn", "apex-dqn", "rainbow", "r2d2", "gorila")
WORKERS = ("async-q", "async-sarsa", "async-nstep-q")
POLICIES = ("recurrent-ppo", "dd-ppo", "impala", "a3c")
BOXES = ("apex-dpg", "d4pg")
GYM = "reward_threshold of Gymnasium's registration"
ZOO = "rl-baselines3-zoo, benchmark.md (commit 0088472), {}"


@dataclass(frozen=True)
class Task:
    """``mark``: the mean return of an evaluation that counts as learned; ``source``: who says so. ``chosen``: systems
    whose preset was chosen here, of which this task shows nothing. ``episodes``: of an evaluation. ``fields``: settings
    without which the environment is another one."""

    env: str
    mark: float
    source: str
    systems: tuple[str, ...]
    chosen: tuple[str, ...] = ()
    episodes: int = 100


DISCRETE = (*POLICIES, *VALUES)
TASKS: dict[str, tuple[Task, ...]] = {
    "toy_text": (
        Task("FrozenLake-v1", 0.70, GYM, DISCRETE, episodes=500),
        Task("Taxi-v4", 7.5, "value iteration: 7.9", DISCRETE, chosen=VALUES),
        Task("FrozenLake8x8-v1", 0.80, "value iteration within 200 steps: 0.86", DISCRETE, episodes=500),
        Task("CliffWalking-v1", -13.0, "the shortest way (Sutton and Barto 2018, example 6.6)", DISCRETE, episodes=20),
    ),
    "classic": (
        Task("CartPole-v1", 475, GYM, (*DISCRETE, *WORKERS, "es"), chosen=(*DISCRETE, *WORKERS, "es")),
        Task("Acrobot-v1", -100, GYM, (*DISCRETE, *WORKERS, "es")),
        Task("Pendulum-v1", -200, ZOO.format("ppo: -172, ars: -213"), (*POLICIES, *BOXES), chosen=BOXES),
        Task("MountainCar-v0", -110, GYM, (*DISCRETE, *WORKERS)),
        Task("MountainCarContinuous-v0", 90, GYM, (*POLICIES, *BOXES)),
    ),
    "box2d": (
        Task("LunarLander-v3", 200, GYM, DISCRETE, chosen=DISCRETE),
        Task("LunarLanderContinuous-v3", 200, GYM, ("recurrent-ppo", "impala", "es", *BOXES)),
        Task("BipedalWalker-v3", 213, ZOO.format("ppo: 213"), ("recurrent-ppo", "impala", *BOXES)),
    ),
    "mujoco": (
        Task("InvertedPendulum-v5", 950, GYM, ("recurrent-ppo", "impala", "es", *BOXES)),
        Task("Reacher-v5", -6, "half way from Gymnasium's threshold (-3.75) to -8", ("recurrent-ppo", "impala", *BOXES)),
        Task("Swimmer-v5", 281, ZOO.format("ppo: 282"), ("recurrent-ppo", "impala", "es")),
        Task("Hopper-v5", 2410, ZOO.format("ppo: 2410"), ("recurrent-ppo", "impala", *BOXES)),
        Task("HalfCheetah-v5", 3041, ZOO.format("a2c: 3041"), BOXES, chosen=BOXES),
    ),
    "minigrid": tuple(
        Task(f"MiniGrid-{name}-v0", mark, "0.9 of the return of the shortest way, or the zoo's", DISCRETE)
        for name, mark in (("Empty-8x8", 0.85), ("DoorKey-5x5", 0.85), ("LavaGapS5", 0.8), ("FourRooms", 0.4))
    ),
    "minatar": tuple(
        Task(f"MinAtar/{game}-v1", mark, "Young and Tian 2019, figure 2, DQN after 5 M steps, about half", DISCRETE)
        for game, mark in (("Breakout", 5), ("Freeway", 25), ("SpaceInvaders", 20), ("Asterix", 8))
    ),
}  # fmt: skip
