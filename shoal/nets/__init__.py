"""Neural networks: torsos, encoder, recurrent core, heads, action distributions, normalisers and precision."""

from shoal.nets.auxiliary import PixelControlHead, RewardPredictionHead
from shoal.nets.distributions import ActionDistribution
from shoal.nets.encoder import Encoder
from shoal.nets.heads import DuelingQHead, PolicyHead, QHead, ValueHead, policy_and_value
from shoal.nets.init import orthogonal
from shoal.nets.noisy import NoisyLinear, ReturnHead
from shoal.nets.normaliser import RewardScaler, RunningNorm, running_norms
from shoal.nets.popart import PopArt
from shoal.nets.precision import autocast
from shoal.nets.recurrent import RecurrentCore
from shoal.nets.torsos import MLP, ImpalaResNet, MinAtarCNN, NatureCNN

__all__ = [
    "MLP",
    "ActionDistribution",
    "DuelingQHead",
    "Encoder",
    "ImpalaResNet",
    "MinAtarCNN",
    "NatureCNN",
    "NoisyLinear",
    "PixelControlHead",
    "PolicyHead",
    "PopArt",
    "QHead",
    "RecurrentCore",
    "ReturnHead",
    "RewardPredictionHead",
    "RewardScaler",
    "RunningNorm",
    "ValueHead",
    "autocast",
    "orthogonal",
    "policy_and_value",
    "running_norms",
]
