"""Environments by name: ``spec`` returns the specification of one, ``make`` builds a batch of them.

A name is a Gymnasium id (``CartPole-v1``, ``ALE/Pong-v5``, ``MiniGrid-MemoryS7-v0``), one of Shoal's own (``toy:...``,
``shoal/CartPoleNoVelocity-v1``), a factory of the user's, ``package.module:factory`` or ``path/to/file.py:factory``, or
an environment passed as a Python object (``from_callable``). The factory gets ``EnvOptions.env_kwargs`` and returns a
``gymnasium.Env``, or a ``gymnasium.vector.VectorEnv`` if it takes ``num_envs``.
"""

from __future__ import annotations

from ._make import Codec, autoreset_mode, known, make, one, plays, remember, spec
from .batch import sub_seeds
from .film import playable
from .from_callable import given, is_given, require_again
from .looks import known_as, look, looking
from .options import EnvOptions
from .registration import registration
from .registry import held_out
from .wrappers import training_reward

__all__ = [
    "Codec", "EnvOptions", "autoreset_mode", "given", "held_out", "is_given", "known", "known_as", "look",
    "looking", "make", "one", "playable", "plays", "registration", "remember", "require_again", "spec", "sub_seeds",
    "training_reward",
]  # fmt: skip
