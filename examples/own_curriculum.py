"""A curriculum: a corridor that grows longer whenever the agent reaches its end often enough."""

import collections
import sys

import gymnasium as gym
import numpy as np

import shoal

LONGEST = 32


class Corridor(gym.Env):
    """Walk right to the end for a reward of 1, with twice as many steps as it is long: nothing else is paid."""

    observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self):
        self.length, self.last = 2, collections.deque[bool](maxlen=20)  # successes of the last episodes

    def observe(self):
        return np.array([self.at / LONGEST, self.length / LONGEST], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if len(self.last) == 20 and np.mean(self.last) >= 0.8 and self.length < LONGEST:
            self.length *= 2
            self.last.clear()
        self.at = self.time = 0
        return self.observe(), {}

    def step(self, action):
        self.at, self.time = max(0, self.at + (1 if action else -1)), self.time + 1
        done, late = self.at == self.length, self.time == 2 * self.length
        if done or late:
            self.last.append(done)
        return self.observe(), float(done), done, late, {"corridor": self.length}  # a metric of the run


if __name__ == "__main__":
    run = shoal.train("recurrent-ppo", env=Corridor, steps=int(sys.argv[1]), seed=1)
    print(f"mean length of the corridor in the last 100 episodes: {run.metrics()['corridor'][-1]:.0f}")
