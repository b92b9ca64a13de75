"""Train and evaluate Stable-Baselines3 on one continuous task, for ``benchmarks/continuous.py``, in its own venv:

    $SHOAL_PEERS/sb3/bin/python benchmarks/peers/train_sb3.py ppo|td3|ddpg ENV STEPS SEED [UNTIL [SECONDS]]

ENV is a name of Gymnasium's, or of a task of the DeepMind Control Suite as EnvPool calls it (pip install envpool).
UNTIL: end once the mean return of 100 episodes reaches it. SECONDS: end after so many of training. torch has as many
threads as ``OMP_NUM_THREADS`` says, 1 without it. The last line printed is a JSON object.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecNormalize


class ControlSuite(gymnasium.Env[np.ndarray, np.ndarray]):
    """A task of the DeepMind Control Suite in EnvPool, its observations end to end, as an environment of Gymnasium."""

    def __init__(self, task: str, seed: int) -> None:
        import envpool

        self._pool = envpool.make(task, env_type="gymnasium", num_envs=1, seed=seed)
        size = sum(math.prod(space.shape) for space in self._pool.observation_space.values())
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        bounds = self._pool.action_space
        self.action_space = gymnasium.spaces.Box(bounds.low.astype(np.float32), bounds.high.astype(np.float32))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._flat(self._pool.reset()[0]), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = self._pool.step(np.asarray(action, np.float64)[None])
        return self._flat(obs), float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}

    @staticmethod
    def _flat(obs: dict[str, np.ndarray]) -> np.ndarray:
        return np.concatenate([np.ravel(obs[k]) for k in obs]).astype(np.float32)


class LearningCurve(BaseCallback):
    """(steps, seconds, mean return of the last 100 episodes), every thousand steps."""

    def __init__(self, until: float, seconds: float) -> None:
        super().__init__()
        self.until, self.limit = until, seconds
        self.began, self.rows = time.time(), list[tuple[int, float, float]]()

    def _on_training_start(self) -> None:
        self.began = time.time()

    def _on_step(self) -> bool:
        episodes, spent = self.model.ep_info_buffer, time.time() - self.began
        if episodes and self.num_timesteps % 1000 == 0:
            self.rows.append((self.num_timesteps, spent, float(np.mean([e["r"] for e in episodes]))))
            return self.rows[-1][2] < self.until and spent < self.limit
        return spent < self.limit


def main(name: str, task: str, steps: str, seed: str, until: str = "inf", seconds: str = "inf") -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if task in gymnasium.registry:
        env = make_vec_env(task, 1, seed=int(seed))
    else:
        env = make_vec_env(lambda: ControlSuite(task, int(seed)), 1, seed=int(seed))
    own: dict[str, Any]
    if name == "ppo":
        env = VecNormalize(env, gamma=0.99)
        own = dict(
            n_steps=2048, batch_size=64, n_epochs=10, learning_rate=lambda left: 3e-4 * left, gamma=0.99,
            gae_lambda=0.95, clip_range=0.2, ent_coef=0.0,
        )  # fmt: skip
    else:
        size = env.action_space.shape[0]
        own = dict(learning_starts=10_000, action_noise=NormalActionNoise(np.zeros(size), 0.1 * np.ones(size)))
    curve = LearningCurve(float(until), float(seconds))
    model = getattr(stable_baselines3, name.upper())("MlpPolicy", env, seed=int(seed), device="cpu", **own)
    model.learn(int(steps), callback=curve)
    spent = time.time() - curve.began
    if isinstance(env, VecNormalize):
        env.training, env.norm_reward = False, False
    evaluation, _ = evaluate_policy(model, env, 20, deterministic=True, return_episode_rewards=True)
    print(json.dumps({
        "steps": model.num_timesteps, "seconds": spent, "training_return": curve.rows[-1][2],
        "evaluation": evaluation, "curve": curve.rows,
    }))  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
