"""The networks of an algorithm."""

from __future__ import annotations

from torch import nn

from shoal.learning.algorithm import Algorithm


def networks_beside(algorithm: Algorithm) -> list[nn.Module]:
    """Return the networks that an algorithm keeps beside ``nets``, such as target networks: its attributes, and what
    lists, tuples and dicts among them hold."""
    found: list[object] = []
    for value in vars(algorithm).values():
        found += value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
    return [network for network in found if isinstance(network, nn.Module) and network is not algorithm.nets]
