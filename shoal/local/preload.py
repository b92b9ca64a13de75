"""What the process that replicas are forked from loads before the first of them starts, so that they share it: modules,
and numba's machinery with the one kernel that every replica with images calls (60 MB and 0.1 s each otherwise)."""

import cloudpickle  # noqa: F401
import gymnasium  # noqa: F401

import shoal.local.apart
import shoal.local.child
import shoal.systems.config  # noqa: F401
from shoal.fast import pixels

pixels.preload()
