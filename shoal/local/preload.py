"""What the process that replicas are forked from loads before the first of them starts, so that they share it: modules,
those of all systems (0.1 s of each of hundreds of actors otherwise), and numba's machinery with the one kernel that
every replica with images calls (60 MB and 0.1 s each otherwise)."""

import atexit
import gc
import importlib
import os
import shutil
import sys

import cloudpickle  # noqa: F401
import gymnasium  # noqa: F401

from shoal.fast import pixels
from shoal.local.processes import FOLDER
from shoal.systems import SYSTEMS


def tidy() -> None:
    """Remove the folder of the socket by which replicas are asked for, as the command does unless it was killed. Not
    after an exception: the command lives, and may start another such process."""
    if not hasattr(sys, "last_value"):
        shutil.rmtree(os.environ[FOLDER], ignore_errors=True)


if os.environ.get(FOLDER):
    atexit.register(tidy)  # replicas, which are forked from here, leave by _exit
for system in SYSTEMS.values():
    importlib.import_module(system)
pixels.preload()
gc.collect()
gc.freeze()  # else each replica's first full collection looks at all of this, and gets a copy of its pages
