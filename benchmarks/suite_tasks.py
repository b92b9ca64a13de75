"""The tasks of ``benchmarks/suite.py``: which systems meet them, and what score counts as learned, with its source."""

from __future__ import annotations

from dataclasses import dataclass

VALUES = ("dqn", "apex-dqn", "rainbow", "r2d2", "gorila")
WORKERS = ("async-q", "async-sarsa", "async-nstep-q")
POLICIES = ("recurrent-ppo", "dd-ppo", "impala", "a3c")
BOXES = ("apex-dpg", "d4pg")
GYM = "reward_threshold of Gymnasium's registration"
MINIGRID = "by its reward, 1 - 0.9 n / limit: the goal in {} of {} steps"
CLIFF = "the safe way that Sarsa finds in Sutton and Barto 2018, example 6.6; the shortest is -13"
ZOO = "rl-baselines3-zoo, benchmark.md (commit 0088472), {}"


@dataclass(frozen=True)
class Task:
    """``mark``: the mean return of an evaluation that counts as learned; ``source``: who says so. ``chosen``: systems
    whose preset was chosen here, of which this task shows nothing. ``episodes``: of an evaluation."""

    env: str
    mark: float
    source: str
    systems: tuple[str, ...]
    chosen: tuple[str, ...] = ()
    episodes: int = 100


DISCRETE = (*POLICIES, *VALUES)
ANY = (*DISCRETE, *WORKERS, "downpour")
TASKS: dict[str, tuple[Task, ...]] = {
    "toy_text": (
        Task("FrozenLake-v1", 0.70, GYM, ANY, chosen=("a3c",), episodes=500),
        Task("Taxi-v4", 7.5, "value iteration: 7.9", ANY, chosen=VALUES),
        Task("FrozenLake8x8-v1", 0.85, GYM, DISCRETE, chosen=("recurrent-ppo", "impala", "a3c"), episodes=500),
        Task("CliffWalking-v1", -17.0, CLIFF, ANY, chosen=("recurrent-ppo", "dqn"), episodes=20),
    ),
    "classic": (
        Task("CartPole-v1", 475, GYM, (*DISCRETE, *WORKERS, "es"), chosen=(*DISCRETE, *WORKERS, "es")),
        Task("Acrobot-v1", -100, GYM, (*DISCRETE, *WORKERS, "es")),
        Task("Pendulum-v1", -200, ZOO.format("ppo: -172, ars: -213"), (*POLICIES, *BOXES), chosen=BOXES),
        Task("MountainCar-v0", -110, GYM, (*DISCRETE, *WORKERS), chosen=("a3c", "dd-ppo")),
        Task("MountainCarContinuous-v0", 90, GYM, (*POLICIES, *BOXES), chosen=("apex-dpg",)),
    ),
    "box2d": (
        Task("LunarLander-v3", 200, GYM, (*DISCRETE, *WORKERS), chosen=DISCRETE),
        Task("LunarLanderContinuous-v3", 200, GYM, ("recurrent-ppo", "impala", "es", *BOXES)),
        Task("BipedalWalker-v3", 213, ZOO.format("ppo: 213"), ("recurrent-ppo", "impala", *BOXES)),
    ),
    "mujoco": (
        Task("InvertedPendulum-v5", 950, GYM, ("recurrent-ppo", "impala", "es", *BOXES)),
        Task("Reacher-v5", -3.75, GYM, ("recurrent-ppo", "impala", *BOXES)),
        Task("Swimmer-v5", 281, ZOO.format("ppo: 282"), ("recurrent-ppo", "impala", "es")),
        Task("Hopper-v5", 2410, ZOO.format("ppo: 2410"), ("recurrent-ppo", "impala", *BOXES)),
        Task("HalfCheetah-v5", 3041, ZOO.format("a2c: 3041"), BOXES, chosen=BOXES),
    ),
    "minigrid": tuple(
        Task(f"MiniGrid-{name}-v0", mark, MINIGRID.format(*steps), DISCRETE)
        for name, mark, steps in (
            ("Empty-8x8", 0.9, (28, 256)), ("DoorKey-5x5", 0.9, (27, 250)), ("LavaGapS5", 0.9, (11, 100)),
            ("FourRooms", 0.5, (55, 100)),
        )
    ),
}  # fmt: skip
