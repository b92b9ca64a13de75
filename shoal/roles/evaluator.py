"""Plays whole episodes with an agent."""

from __future__ import annotations

import numpy as np

from shoal.api import Agent, EnvBatch, EnvironmentFailed


class Episodes:
    """``episodes`` whole episodes, one vector step at a time. Every environment plays a number of episodes fixed
    beforehand: taking the first that end would favour short ones.

    returns: per environment, the raw return of each episode that counts; all of them once ``done``.
    """

    def __init__(self, env: EnvBatch, agent: Agent, episodes: int, seed: int, greedy: bool = True) -> None:
        self.env, self.agent, self.greedy = env, agent, greedy
        num = env.num_envs
        self.quota = [episodes // num + (i < episodes % num) for i in range(num)]
        self.returns: list[list[float]] = [[] for _ in range(num)]
        self._obs, self._first = env.reset(seed), np.ones(num, bool)
        self._state = agent.initial_state(num)

    @property
    def done(self) -> bool:
        return all(len(r) >= n for r, n in zip(self.returns, self.quota, strict=True))

    def step(self) -> None:
        """Act once in every environment."""
        act = self.agent.act(self._obs, self._first, self._state, self.greedy)
        step = self.env.step(act.action)
        ended = step.terminated | step.truncated
        rows = np.flatnonzero(ended)
        if len(rows) != len(step.episodes):
            raise EnvironmentFailed(
                f"{self.env.spec.id} ended {len(rows)} episodes but reported {len(step.episodes)} returns"
            )
        for row, episode in zip(rows, step.episodes, strict=True):
            if len(self.returns[row]) < self.quota[row]:
                self.returns[row].append(float(episode.ret))
        self._first = ended if self.env.spec.autoreset == "same_step" else ~step.valid
        self._obs, self._state = step.obs, act.state

    def play(self) -> list[float]:
        """Step until done; the raw returns."""
        while not self.done:
            self.step()
        return self.flat()

    def flat(self) -> list[float]:
        """The returns of all environments in one list."""
        return [r for returns in self.returns for r in returns]
