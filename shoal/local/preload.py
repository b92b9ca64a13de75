"""What the process that replicas are forked from loads before the first of them starts, so that they share it: modules,
those of all systems (0.1 s of each of hundreds of actors otherwise), and numba's machinery with the one kernel that
every replica with images calls (60 MB and 0.1 s each otherwise)."""

import gc
import importlib

import cloudpickle  # noqa: F401
import gymnasium  # noqa: F401

import shoal.local.apart
import shoal.local.child
import shoal.systems.config  # noqa: F401
from shoal.fast import pixels
from shoal.systems import SYSTEMS

for system in SYSTEMS.values():
    importlib.import_module(system)
pixels.preload()
gc.collect()
gc.freeze()  # else each replica's first full collection looks at all of this, and gets a copy of its pages
