"""A reward model: learned from which of two places a person prefers (Christiano et al. 2017, equation 1)."""

import sys

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import shoal


class Room(gym.Env):
    """Walk about in a square room. A person likes its middle; ``reward(place)`` is paid for being at a place."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def __init__(self, reward):
        self.reward = reward

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = self.np_random.uniform(-1, 1, 2).astype(np.float32), 0
        return self.place, {}

    def step(self, action):
        self.time += 1
        move = np.array([(0.1, 0), (-0.1, 0), (0, 0.1), (0, -0.1)][int(action)], np.float32)
        self.place = np.clip(self.place + move, -1, 1)
        return self.place, self.reward(self.place), False, self.time == 30, {}


def liked(place):
    """What the person feels, and never says: only which of two places is better."""
    return -float(np.abs(place).sum())


def reward_model(answers, updates=400):
    """Return a network that explains ``answers`` to as many comparisons."""
    pairs = np.random.default_rng(0).uniform(-1, 1, (answers, 2, 2)).astype(np.float32)
    first = torch.tensor([float(liked(a) > liked(b)) for a, b in pairs])
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(updates):
        better = model(torch.tensor(pairs)).squeeze(-1)
        optimiser.zero_grad()
        binary_cross_entropy_with_logits(better[:, 0] - better[:, 1], first).backward()
        optimiser.step()
    return lambda place: float(model(torch.from_numpy(place)).detach())


if __name__ == "__main__":
    torch.manual_seed(0)
    model = reward_model(answers=300)
    run = shoal.train("recurrent-ppo", env=lambda: Room(model), steps=int(sys.argv[1]), seed=1)
    found = shoal.evaluate(run.policy(), lambda: Room(liked), episodes=50)
    print(f"what the person feels in an episode: {sum(found) / 50:.1f}")
