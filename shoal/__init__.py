"""Shoal: distributed deep reinforcement learning in PyTorch. Names load on first use, so importing is quick."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError("Shoal runs on Linux and macOS; on Windows it runs in WSL (the Windows Subsystem for Linux)")

if TYPE_CHECKING:
    from shoal.api import Field, ShoalError, UsageError, WiringError
    from shoal.policy import Policy
    from shoal.program import Channel, Program
    from shoal.records.metric_files import read_curve
    from shoal.replay import Ratio
    from shoal.run import Evaluation, Run, evaluate, launch, load, pbt, resume, train
    from shoal.run.population.hyperparameters import Choice, Interval
    from shoal.runtime.launch import Stop
    from shoal.settings.schedule import linear
    from shoal.systems import _Systems

    systems: _Systems  # a folder of modules that is called, too

__version__ = "0.1.0"
__all__ = [
    "Channel", "Choice", "Evaluation", "Field", "Interval", "Policy", "Program", "Ratio", "Run", "ShoalError",
    "Stop", "UsageError", "WiringError", "evaluate", "launch", "linear", "load", "pbt", "read_curve", "resume",
    "systems", "train",
]  # fmt: skip
_HOME = {
    "Channel": "shoal.program", "Program": "shoal.program", "Policy": "shoal.policy", "Ratio": "shoal.replay",
    "Run": "shoal.run", "launch": "shoal.run", "load": "shoal.run", "pbt": "shoal.run", "resume": "shoal.run",
    "train": "shoal.run", "Evaluation": "shoal.run", "evaluate": "shoal.run", "Stop": "shoal.runtime.launch",
    "linear": "shoal.settings.schedule", "read_curve": "shoal.records.metric_files",
    "Choice": "shoal.run.population.hyperparameters", "Interval": "shoal.run.population.hyperparameters",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'shoal' has no attribute '{name}'{_elsewhere(name)}")
    if "shoal.api" not in sys.modules:
        from shoal.dependencies import unsuitable

        if told := unsuitable():
            raise ImportError(told)
    if name == "systems":
        return importlib.import_module("shoal.systems")
    return getattr(importlib.import_module(_HOME.get(name, "shoal.api")), name)


def _elsewhere(name: str) -> str:
    """Return what does here what other libraries do by ``name``, where that is known: a system written as its class
    (``PPO``, ``PPOConfig``), or a function; else nothing."""
    if name.startswith("_"):
        return ""
    from shoal.settings.other_names import ALIASES, ELSEWHERE, instead
    from shoal.settings.other_python_names import OF_SHOAL

    if not name[:1].isupper() or name in OF_SHOAL:
        return instead(OF_SHOAL, name)
    from shoal.systems import SYSTEMS

    asked = name.removesuffix("Config").lower().replace("_", "-")
    system = ALIASES.get(asked, asked)
    return f": shoal.train('{system}', env=...) trains it" if system in SYSTEMS else instead(ELSEWHERE, asked)


class _OtherNames:
    """Answers the import of a module or name that other libraries have (``from shoal import PPO``)."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        package, _, name = fullname.partition(".")
        if package == __name__ and (told := _elsewhere(name)):
            raise ImportError(f"cannot import '{name}' from shoal{told}")


sys.meta_path.append(_OtherNames())  # the last, asked for what no other has found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
