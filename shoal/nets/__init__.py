"""Networks: torsos, encoder, recurrent core, heads, action distributions, normalisers, precision."""

from shoal.nets.distributions import ActionDistribution
from shoal.nets.encoder import Encoder
from shoal.nets.heads import DuelingQHead, PolicyHead, QHead, ValueHead, policy_and_value
from shoal.nets.init import orthogonal
from shoal.nets.live import LiveTensors
from shoal.nets.normaliser import RewardScaler, RunningNorm
from shoal.nets.perceptron import Perceptron
from shoal.nets.precision import autocast
from shoal.nets.recurrent import RecurrentCore
from shoal.nets.rounded import inferring, rounded
from shoal.nets.torsos import MLP, ImpalaResNet, NatureCNN

__all__ = [
    "MLP",
    "ActionDistribution",
    "DuelingQHead",
    "Encoder",
    "ImpalaResNet",
    "LiveTensors",
    "NatureCNN",
    "Perceptron",
    "PolicyHead",
    "QHead",
    "RecurrentCore",
    "RewardScaler",
    "RunningNorm",
    "ValueHead",
    "autocast",
    "inferring",
    "orthogonal",
    "policy_and_value",
    "rounded",
]
