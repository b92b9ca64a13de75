"""Aliases of Gymnasium's types. Observations, actions and infos depend on the environment and are not typed further."""

from __future__ import annotations

from typing import Any, TypeAlias

import gymnasium as gym
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from shoal.types import Values

Space: TypeAlias = spaces.Space[Any]
Env: TypeAlias = gym.Env[Any, Any]
Vector: TypeAlias = VectorEnv[Any, Any, Any]
Nested: TypeAlias = Any  # arrays, or dicts and tuples of them, as a space prescribes
Info: TypeAlias = Values
