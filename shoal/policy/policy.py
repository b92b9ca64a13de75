"""A trained policy: one observation in, one action out; and its evaluation over whole episodes."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np
import torch

from shoal.api import Agent, Arrays, EnvBatch, EnvSpec, Tensors, UsageError
from shoal.envs import Codec, EnvOptions, held_out, make
from shoal.roles.evaluator import Episodes, Returns


class Policy:
    """Acts as a trained agent. The recurrent state, if any, is kept inside; call ``reset`` at each episode's
    start. ``act`` takes an observation as the user's own environment gives it (for Atari: the preprocessed
    stack ``[4, 84, 84]``) and returns an action that this environment takes."""

    def __init__(self, system: Any, cfg: Any, params: Tensors, version: int = 0, seed: int = 0):
        self.system, self.cfg, self.params, self.version, self.seed = system, cfg, params, version, seed
        self._remembers = remembers(cfg)
        self.spec: EnvSpec = cfg.env_spec()
        self.codec = Codec(cfg.env, evaluation_options(cfg))
        self.agent: Agent = self.fresh_agent(seed)
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
        return self.codec.decode(self._last_action)

    def evaluate(self, episodes: int = 10, seed: int = 0, greedy: bool = True, envs: int = 8) -> Returns:
        """Raw returns of ``episodes`` whole episodes, played in up to ``envs`` environments together; ``.info`` of the
        list holds the means of the numbers that the environment gave at their ends (``success``)."""
        if episodes < 1:
            raise UsageError(f"expected at least 1 episode, found {episodes}")
        if envs < 1:
            raise UsageError(f"expected at least 1 environment, found {envs}")
        env = evaluation_envs(self.cfg, min(envs, episodes), seed)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # batches this small gain little by more, and wait long where others use the cores
        try:
            return Episodes(env, self.fresh_agent(seed), episodes, seed, greedy).play()
        finally:
            torch.set_num_threads(threads)
            env.close()

    def fresh_agent(self, seed: int) -> Agent:
        """Another agent with these parameters and a generator of its own."""
        agent = self.system.agent(self.cfg, seed)
        agent.load(self.params, self.version)
        return agent  # type: ignore[no-any-return]

    def _encode(self, obs: Any, reward: float) -> Arrays:
        out = self.codec.encode(obs)
        if self._remembers:
            like = self.spec.observations["obs/last_action"]
            last = self._last_action
            out["obs/last_action"] = np.zeros((1, *like.shape), like.dtype)
            if last is not None:
                out["obs/last_action"][:] = last.reshape(like.shape)
            out["obs/last_reward"] = np.array([[0.0 if last is None else reward]], np.float32)
        return out


def evaluation_options(cfg: Any) -> EnvOptions:
    """The environment of an evaluation: as in training, but a lost life does not end an episode, and scenes are those
    kept for validation, where an environment has some."""
    env_kwargs = {**held_out(cfg.env), **cfg.env_kwargs}
    return cast(EnvOptions, dataclasses.replace(cfg, life_loss=False, env_kwargs=env_kwargs))


def evaluation_envs(cfg: Any, num: int, seed: int) -> EnvBatch:
    """``num`` environments for an evaluation."""
    return make(cfg.env, num, seed, evaluation_options(cfg))


def remembers(cfg: Any) -> bool:
    """Does the policy see its last action and reward?"""
    return bool(getattr(cfg, "last_action_reward", False))
