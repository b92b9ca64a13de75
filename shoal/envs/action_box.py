"""The box of actions in the agents' units: [-1, 1] along every bounded dimension, whatever the environment's units."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces as gs

UNBOUNDED = float(np.finfo(np.float32).max)  # bounds of at least this size mean none, as many packages use it that way


class ActionBox:
    """Converts between the units of agents and those of a Box of floats: ``environment = middle + half * agent``.

    A dimension with both bounds becomes [-1, 1], one of length 0 becomes [0, 0]. A dimension with one bound keeps its
    unit, and 0 lies one unit inside: [-1, inf) or (-inf, 1]. A dimension without bounds is unchanged. ``low`` and
    ``high`` ``[A]``: the bounds in the agents' units. ``middle`` and ``half`` ``[A]``: float64.
    """

    def __init__(self, space: gs.Box):
        bottom, top = (np.asarray(side, np.float64).ravel() for side in (space.low, space.high))
        below, above = bottom > -UNBOUNDED, top < UNBOUNDED
        both = below & above
        some_low, some_high = np.where(below, bottom, 0.0), np.where(above, top, 0.0)
        self.half = np.where(both, some_high / 2 - some_low / 2, 1.0)
        self.middle = np.where(
            both, some_low + self.half, np.where(below, some_low + 1, np.where(above, some_high - 1, 0.0))
        )
        unit = np.where(self.half > 0, 1.0, 0.0)
        self.low, self.high = np.where(below, -unit, -np.inf), np.where(above, unit, np.inf)
        # the units are equal, as for every box [-1, 1]
        self.same = bool((self.middle == 0).all() and (self.half == 1).all())
        self._space = space
        precise = np.result_type(space.dtype or np.float32, np.float32)
        arrays = (self.low, self.high, self.middle, self.half)
        self._low, self._high, self._middle, self._half = (side.astype(precise).reshape(space.shape) for side in arrays)

    def to_environment(self, actions: np.ndarray) -> np.ndarray:
        """Clip agents' actions ``[N, A]`` to their bounds and return them in the environment's units ``[N, *shape]``,
        within its bounds after rounding too."""
        inside = np.clip(actions.reshape(len(actions), *self._space.shape), self._low, self._high)
        if not self.same:
            inside = np.clip(self._middle + self._half * inside, self._space.low, self._space.high)
        out: np.ndarray = inside.astype(self._space.dtype, copy=False)
        return out

    def to_agent(self, actions: np.ndarray) -> np.ndarray:
        """Return actions ``[N, *shape]`` in the environment's units, which may lie outside of its bounds, in the
        agents' units, float32 ``[N, A]``."""
        flat = np.asarray(actions, np.float64).reshape(len(actions), -1)
        return ((flat - self.middle) / np.where(self.half > 0, self.half, 1.0)).astype(np.float32)
