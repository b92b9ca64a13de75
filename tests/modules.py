"""Modules of systems, with the networks, losses and settings that only some systems have."""

from __future__ import annotations

import importlib
from types import ModuleType

from shoal.systems import SYSTEMS


def module_of(system: str) -> ModuleType:
    """Return the module of a system of Shoal's own: what ``shoal.systems.load`` returns, by its whole type."""
    return importlib.import_module(SYSTEMS[system])
