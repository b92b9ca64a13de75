"""Heads of UNREAL's auxiliary tasks (Jaderberg et al. 2017). Always float32."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.nets.precision import full
from shoal.ops import dueling

CHANNELS = 32  # channels of the map before deconvolution
UNITS = 128  # units of the hidden layer of the reward prediction


class PixelControlHead(nn.Module):
    """Pixel control head: features [..., F] -> action values [..., actions, rows, columns] for changing each cell of
    the screen.

    A fully connected layer makes a map of 32 channels (9 x 9 for a grid of 20 x 20). Two deconvolutions with 4 x 4
    kernels and stride 2, one for the value and one for the advantages, are combined as in a dueling network.
    """

    def __init__(self, features: int, actions: int, grid: tuple[int, int]):
        super().__init__()
        self.map = (CHANNELS, *(side // 2 - 1 for side in grid))
        self.fc = nn.Linear(features, CHANNELS * self.map[1] * self.map[2])
        self.value = nn.ConvTranspose2d(CHANNELS, 1, 4, 2)
        self.advantage = nn.ConvTranspose2d(CHANNELS, actions, 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        with full(x.device):
            y = torch.relu(self.fc(x.float())).view(-1, *self.map)
            q = dueling(self.value(y), self.advantage(y), dim=-3)
            return q.view(*x.shape[:-1], *q.shape[1:])


class RewardPredictionHead(nn.Sequential):
    """Reward prediction head: concatenated features of some frames [N, F] -> logits [N, 3] of ``ops.reward_class``."""

    def __init__(self, features: int):
        super().__init__(nn.Linear(features, UNITS), nn.ReLU(), nn.Linear(UNITS, 3))
