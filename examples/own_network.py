"""A network of your own: a torso with residual blocks, trained with recurrent PPO. Usage: own_network.py [STEPS]"""

import sys

import numpy as np
import torch
from torch import nn

import shoal


class Residual(nn.Module):
    """Vectors [N, F], a linear layer, then blocks that add to what they are given."""

    def __init__(self, inputs: int, features: int = 64, blocks: int = 2):
        super().__init__()
        self.features = features  # how wide the output is: the heads ask for it
        self.first = nn.Linear(inputs, features)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(features), nn.Linear(features, features), nn.Tanh()) for _ in range(blocks)
        )

    def forward(self, obs):
        x = torch.cat([leaf.flatten(1) for leaf in obs.values()], 1)  # {name: [N, ...]} -> [N, inputs]
        y = torch.tanh(self.first(x))
        for block in self.blocks:
            y = y + block(y)
        return y


def torso(observations):
    """What ``torso="own_network:torso"`` names: from the environment's observations to a module."""
    return Residual(sum(int(np.prod(leaf.shape)) for leaf in observations.values()))


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    run = shoal.train("recurrent-ppo", env="CartPole-v1", torso="own_network:torso", actors=2, steps=steps)
    print("return of 20 episodes:", np.mean(run.policy().evaluate(20)))
