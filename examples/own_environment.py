"""An environment of your own: a Gymnasium class in this file, trained with IMPALA. Usage: own_environment.py [STEPS]"""

import sys

import gymnasium as gym
import numpy as np

import shoal


class Thermostat(gym.Env):
    """Keep a room at 20 degrees: heat, wait or cool; the outside pulls. Return: the steps within one degree."""

    observation_space = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, minutes: int = 50):
        self.minutes = minutes

    def observe(self):
        return np.array([self.room - 20.0, self.outside - 20.0], np.float32).clip(-10, 10) / 5

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.room = 0, self.np_random.uniform(14, 26)
        self.outside = self.np_random.uniform(12, 28)
        return self.observe(), {}

    def step(self, action):
        self.time += 1
        self.room += 0.8 * (int(action) - 1) + 0.05 * (self.outside - self.room) + self.np_random.normal(0, 0.1)
        reward = float(abs(self.room - 20.0) < 1.0)
        return self.observe(), reward, False, self.time == self.minutes, {}  # a time limit truncates


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    run = shoal.train(
        "impala",
        env=f"{__file__}:Thermostat",
        actors=2,
        envs=8,
        gamma=0.9,
        learning_rate="linear(3e-3, 0)",
        steps=steps,
    )
    policy = run.policy()
    print("return of 20 episodes:", np.mean(policy.evaluate(20)))
    room = Thermostat()
    obs, _ = room.reset(seed=1)
    for _ in range(5):
        action = policy.act(obs)
        print(f"{5 * obs[0]:+.1f} degrees off: {('cool', 'wait', 'heat')[action]}")
        obs, *_ = room.step(action)
