"""Train and evaluate Stable-Baselines3 on one task, for ``benchmarks/continuous.py``, ``benchmarks/table.py`` and
``benchmarks/own_systems.py``, in its own venv:

    $SHOAL_PEERS/sb3/bin/python benchmarks/peers/train_sb3.py ppo|td3|ddpg|sac|dqn|qrdqn ENV STEPS SEED
        [UNTIL [SECONDS [EPISODES [greedy|sampled [VALUES]]]]]

ENV is a name of Gymnasium's, one of MinAtar's games (``MinAtar/...``), or a task of the DeepMind Control Suite as
EnvPool calls it (pip install envpool). UNTIL: end once the mean return of 100 episodes reaches it. SECONDS: end after
so many of training. EPISODES of the evaluation, in which actions are the policy's best or are sampled. VALUES: a
JSON object of the constructor's arguments for a task of continuous actions, in place of the zoo's (``action_noise``:
the standard deviation of Gaussian noise). torch has as many threads as ``OMP_NUM_THREADS`` says, 1 without it. The
last line printed is a JSON object.
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
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
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


class MinAtarNetwork(BaseFeaturesExtractor):
    """Young and Tian's network (2019), as Shoal's torso ``minatar``: 16 3x3 filters and 128 units, relu after both."""

    def __init__(self, space: gymnasium.spaces.Box) -> None:
        super().__init__(space, 128)
        h, w, c = space.shape
        self.conv = torch.nn.Conv2d(c, 16, 3)
        self.hidden = torch.nn.Linear(16 * (h - 2) * (w - 2), 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        planes = x.reshape(len(x), *self._observation_space.shape).permute(0, 3, 1, 2)
        return torch.relu(self.hidden(torch.relu(self.conv(planes)).flatten(1)))


class Numbers(gymnasium.ObservationWrapper):
    """Booleans as floats: Stable-Baselines3 takes no Box of booleans."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, env.observation_space.shape, np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation.astype(np.float32)


def minatar(name: str, task: str, seed: int, steps: int) -> Any:
    """A model on MinAtar, with the values of Shoal's presets ``minatar`` and their sources (gymnax-blines' of PPO,
    Obando-Ceron and Castro's of DQN and QR-DQN)."""
    import minatar.gym
    import sb3_contrib

    if task not in gymnasium.registry:
        minatar.gym.register_envs()
    envs = 64 if name == "ppo" else 8
    env = make_vec_env(lambda: Numbers(gymnasium.make(task)), envs, seed=seed)
    shape: dict[str, Any] = {"features_extractor_class": MinAtarNetwork, "net_arch": []}
    common = dict(seed=seed, device="cpu", gamma=0.99)
    if name == "ppo":
        return stable_baselines3.PPO(
            "MlpPolicy", env, n_steps=128, batch_size=1024, n_epochs=4, learning_rate=5e-4, gae_lambda=0.95,
            clip_range=0.2, ent_coef=0.01, vf_coef=0.5, max_grad_norm=0.5, policy_kwargs=shape, **common,
        )  # fmt: skip
    shape |= {"optimizer_class": torch.optim.Adam, "optimizer_kwargs": {"eps": 3.125e-4}}
    kind, rate = (stable_baselines3.DQN, 2.5e-4) if name == "dqn" else (sb3_contrib.QRDQN, 1e-4)
    if name == "qrdqn":
        shape["n_quantiles"] = 51
    return kind(
        "MlpPolicy", env, learning_rate=rate, buffer_size=100_000, learning_starts=1_000, batch_size=32, train_freq=1,
        gradient_steps=2, target_update_interval=1_000, exploration_fraction=min(1.0, 100_000 / steps),
        exploration_final_eps=0.1, policy_kwargs=shape, max_grad_norm=float("inf") if name == "dqn" else None, **common,
    )  # fmt: skip


class LearningCurve(BaseCallback):
    """(steps, seconds, mean return of the last 100 episodes), every thousand steps."""

    def __init__(self, until: float, seconds: float) -> None:
        super().__init__()
        self.until, self.limit = until, seconds
        self.began, self.rows = time.time(), list[tuple[int, float, float]]()
        self.told = 0

    def _on_training_start(self) -> None:
        self.began = time.time()

    def _on_step(self) -> bool:
        episodes, spent = self.model.ep_info_buffer, time.time() - self.began
        if episodes and self.num_timesteps // 1000 > self.told:
            self.told = self.num_timesteps // 1000
            self.rows.append((self.num_timesteps, spent, float(np.mean([e["r"] for e in episodes]))))
            return self.rows[-1][2] < self.until and spent < self.limit
        return spent < self.limit


def main(
    name: str, task: str, steps: str, seed: str, until: str = "inf", seconds: str = "inf", episodes: str = "20",
    way: str = "greedy", values: str = "null",
) -> None:  # fmt: skip
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if task.startswith("MinAtar/"):
        model = minatar(name, task, int(seed), int(steps))
        env = model.get_env()
    else:
        model, env = continuous(name, task, int(seed), json.loads(values))
    curve = LearningCurve(float(until), float(seconds))
    model.learn(int(steps), callback=curve)
    spent = time.time() - curve.began
    if isinstance(env, VecNormalize):
        env.training, env.norm_reward = False, False
    evaluation, _ = evaluate_policy(
        model, env, int(episodes), deterministic=way == "greedy", return_episode_rewards=True
    )
    print(json.dumps({
        "steps": model.num_timesteps, "updates": model._n_updates, "seconds": spent,
        "training_return": curve.rows[-1][2] if curve.rows else None,
        "evaluation": [float(x) for x in evaluation], "curve": curve.rows,
    }))  # fmt: skip


def continuous(name: str, task: str, seed: int, values: dict[str, Any] | None = None) -> tuple[Any, Any]:
    """A model on a task of continuous actions, with ``values`` or the zoo's for MuJoCo, and its environments."""
    if task in gymnasium.registry:
        env = make_vec_env(task, 1, seed=seed)
    else:
        env = make_vec_env(lambda: ControlSuite(task, seed), 1, seed=seed)
    own: dict[str, Any]
    if values is not None:
        own = values
        if "action_noise" in own:
            size = env.action_space.shape[0]
            own["action_noise"] = NormalActionNoise(np.zeros(size), own["action_noise"] * np.ones(size))
    elif name == "ppo":
        env = VecNormalize(env, gamma=0.99)
        own = dict(
            n_steps=2048, batch_size=64, n_epochs=10, learning_rate=lambda left: 3e-4 * left, gamma=0.99,
            gae_lambda=0.95, clip_range=0.2, ent_coef=0.0,
        )  # fmt: skip
    elif name == "sac":
        own = dict(learning_starts=10_000)
    else:
        size = env.action_space.shape[0]
        own = dict(learning_starts=10_000, action_noise=NormalActionNoise(np.zeros(size), 0.1 * np.ones(size)))
    return getattr(stable_baselines3, name.upper())("MlpPolicy", env, seed=seed, device="cpu", **own), env


if __name__ == "__main__":
    main(*sys.argv[1:])
