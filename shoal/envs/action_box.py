"""The box that agents act in: [-1, 1] along every bounded side of the environment's, whatever its units."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces as gs

UNBOUNDED = float(np.finfo(np.float32).max)  # a bound of this size or beyond is none: many packages write it for one


class ActionBox:
    """Scales between the units of agents and those of a Box of floats: ``environment = middle + half * agent``.

    A side with both bounds becomes [-1, 1]; one of length 0 becomes [0, 0]. A side with one bound keeps its unit, and
    0 lies one unit inside: [-1, inf) or (-inf, 1]. A side without bounds stays as it is. ``low`` and ``high``
    ``[A]``: the bounds in the agents' units. ``middle`` and ``half`` ``[A]``: float64.
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
        self.same = bool((self.middle == 0).all() and (self.half == 1).all())  # as for all boxes that are [-1, 1]
        self._space = space
        precise = np.result_type(space.dtype or np.float32, np.float32)
        arrays = (self.low, self.high, self.middle, self.half)
        self._low, self._high, self._middle, self._half = (side.astype(precise).reshape(space.shape) for side in arrays)

    def to_environment(self, actions: np.ndarray) -> np.ndarray:
        """Actions of agents ``[N, A]``, clipped to their bounds, in the environment's units ``[N, *shape]``: inside its
        bounds after rounding too."""
        inside = np.clip(actions.reshape(len(actions), *self._space.shape), self._low, self._high)
        if not self.same:
            inside = np.clip(self._middle + self._half * inside, self._space.low, self._space.high)
        out: np.ndarray = inside.astype(self._space.dtype, copy=False)
        return out

    def to_agent(self, actions: np.ndarray) -> np.ndarray:
        """The inverse, float32 ``[N, A]``: of actions ``[N, *shape]`` in the environment's units, which may lie outside
        of its bounds."""
        flat = np.asarray(actions, np.float64).reshape(len(actions), -1)
        return ((flat - self.middle) / np.where(self.half > 0, self.half, 1.0)).astype(np.float32)
