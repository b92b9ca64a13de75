"""A trained policy: one observation in, one action out; and its evaluation over whole episodes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from shoal.api import Agent, Arrays, EnvBatch, EnvironmentFailed, EnvSpec, Tensors, UsageError


class Policy:
    """Acts as a trained agent. The recurrent state, if any, is kept inside; call ``reset`` at each episode's
    start. ``act`` takes an observation as the user's own environment gives it (for Atari: the preprocessed
    stack ``[4, 84, 84]``) and returns an action that this environment takes."""

    def __init__(self, system: Any, cfg: Any, params: Tensors, version: int = 0, seed: int = 0):
        from shoal.systems.common import env_spec

        self.system, self.cfg, self.params, self.version, self.seed = system, cfg, params, version, seed
        self._remembers = bool(getattr(cfg, "last_action_reward", False))
        self.spec: EnvSpec = env_spec(cfg, self._remembers)
        self.agent: Agent = self._agent(seed)
        self.reset()

    def reset(self) -> None:
        """A new episode begins: the next observation is its first."""
        self._state = self.agent.initial_state(1)
        self._first = np.ones(1, bool)
        self._last_action: np.ndarray | None = None

    def act(self, obs: Any, greedy: bool = True, reward: float = 0.0) -> Any:
        """The action for one observation; ``greedy=False`` draws it from the policy's distribution. ``reward``:
        of the step before, clipped as in training; only a policy with ``last_action_reward`` looks at it."""
        batch = self._encode(obs, reward)
        act = self.agent.act(batch, self._first, self._state, greedy)
        self._state, self._first = act.state, np.zeros(1, bool)
        self._last_action = np.array(act.action)
        return self._decode(self._last_action)

    def evaluate(self, episodes: int = 10, seed: int = 0, greedy: bool = True, envs: int = 8) -> list[float]:
        """Raw returns of ``episodes`` whole episodes. Every environment plays a number of episodes fixed
        beforehand: taking the first that end would favour short ones."""
        from shoal.envs import make

        if episodes < 1:
            raise UsageError(f"expected at least 1 episode, found {episodes}")
        num = min(envs, episodes)
        quota = np.array([episodes // num + (i < episodes % num) for i in range(num)])
        options = dataclasses.replace(self.cfg, life_loss=False).env_options(self._remembers)
        env = make(self.cfg.env, num, seed, options)
        try:
            return self._evaluate(env, quota, seed, greedy)
        finally:
            env.close()

    def _evaluate(self, env: EnvBatch, quota: np.ndarray, seed: int, greedy: bool) -> list[float]:
        agent, returns = self._agent(seed), [list[float]() for _ in quota]
        obs, first = env.reset(seed), np.ones(env.num_envs, bool)
        state = agent.initial_state(env.num_envs)
        while any(len(r) < n for r, n in zip(returns, quota, strict=True)):
            act = agent.act(obs, first, state, greedy)
            step = env.step(act.action)
            ended = step.terminated | step.truncated
            rows = np.flatnonzero(ended)
            if len(rows) != len(step.episodes):
                raise EnvironmentFailed(
                    f"{self.cfg.env} ended {len(rows)} episodes but reported {len(step.episodes)} returns"
                )
            for row, episode in zip(rows, step.episodes, strict=True):
                if len(returns[row]) < quota[row]:
                    returns[row].append(float(episode.ret))
            first = ended if env.spec.autoreset == "same_step" else ~step.valid
            obs, state = step.obs, act.state
        return [r for rs in returns for r in rs]

    def _agent(self, seed: int) -> Agent:
        agent = self.system.agent(self.cfg, seed)
        agent.load(self.params, self.version)
        return agent  # type: ignore[no-any-return]

    def _encode(self, obs: Any, reward: float) -> Arrays:
        out = _flatten(obs, "obs")
        if self._remembers:
            like = self.spec.observations["obs/last_action"]
            last = self._last_action
            out["obs/last_action"] = np.zeros(like.shape, like.dtype) if last is None else last.reshape(like.shape)
            out["obs/last_reward"] = np.array([0.0 if last is None else reward], np.float32)
        missing = set(self.spec.observations) ^ set(out)
        if missing:
            raise UsageError(f"expected the observations {sorted(self.spec.observations)}, found {sorted(out)}")
        for name, leaf in self.spec.observations.items():
            array = out[name]
            if array.size != int(np.prod(leaf.shape)):
                raise UsageError(f"'{name}' should have shape {leaf.shape}, found {array.shape}")
            turned = array.ndim == 3 and array.shape != leaf.shape and array.shape[-1] == leaf.shape[0]
            if leaf.kind == "image" and turned:
                array = array.transpose(2, 0, 1)
            out[name] = array.reshape(1, *leaf.shape).astype(leaf.dtype, copy=False)
        return out

    def _decode(self, action: np.ndarray) -> Any:
        kind = self.spec.action.kind
        if kind == "discrete":
            return int(action[0])
        if kind == "continuous":
            return np.clip(action[0], self.spec.action.low, self.spec.action.high).astype(np.float32)
        return action[0]


def _flatten(obs: Any, name: str) -> Arrays:
    if isinstance(obs, dict):
        return {k: v for key, value in obs.items() for k, v in _flatten(value, f"{name}/{key}").items()}
    if isinstance(obs, tuple):
        return {k: v for i, value in enumerate(obs) for k, v in _flatten(value, f"{name}/{i}").items()}
    return {name: np.asarray(obs)}
