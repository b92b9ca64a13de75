"""Settings files of other libraries that lie in the working directory, which may be that of somebody else's run."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from pathlib import Path

from shoal.paths import staying


def ignore_matplotlibrc() -> None:
    """Import matplotlib from another directory if the working directory has a ``matplotlibrc``.

    matplotlib reads that file at its import, whoever imports it (an environment may), and no variable prevents it. Some
    versions evaluate an expression of it that can call anything.
    """
    if "matplotlib" not in sys.modules and os.path.lexists("matplotlibrc"):
        with staying(), contextlib.suppress(Exception):  # whoever needs it finds out
            os.chdir(Path(__file__).parent)
            importlib.import_module("matplotlib")
