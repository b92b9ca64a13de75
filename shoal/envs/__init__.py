"""Environments by name: ``spec`` says what one offers, ``make`` builds a batch of them.

A name is a Gymnasium id (``CartPole-v1``, ``ALE/Pong-v5``, ``MiniGrid-MemoryS7-v0``), one of Shoal's own (``toy:...``,
``shoal/CartPoleNoVelocity-v1``), or a factory of the user's: ``package.module:factory`` or ``path/to/file.py:factory``.
The factory gets ``EnvOptions.env_kwargs`` and returns a ``gymnasium.Env``, or a ``gymnasium.vector.VectorEnv`` if it
takes ``num_envs``.
"""

from __future__ import annotations

from ._make import Codec, make, spec
from .options import EnvOptions
from .registry import absolute, held_out
from .wrappers import training_reward

__all__ = ["Codec", "EnvOptions", "absolute", "held_out", "make", "spec", "training_reward"]
