"""One file or folder per system: its config, its loss and its agent, as its paper has them, and ``program(cfg)``."""

from __future__ import annotations

import ast
import contextlib
import importlib
import sys
import types
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from shoal import own_code
from shoal.errors import UsageError
from shoal.settings.nearest import nearest, split_words
from shoal.settings.other_names import ALIASES, ELSEWHERE, instead
from shoal.types import Values

if TYPE_CHECKING:  # a name is refused before torch is imported
    from shoal.api import Agent
    from shoal.program import Program
    from shoal.topology.config import SystemConfig

SystemName = Literal[
    "dqn", "apex-dqn", "r2d2", "r2d3", "rainbow", "apex-dpg", "d4pg", "qt-opt", "impala", "recurrent-ppo", "es",
    "dd-ppo", "a3c", "async-q", "async-sarsa", "async-nstep-q", "gorila", "downpour", "unreal", "ppo",
]  # fmt: skip
SYSTEMS: dict[str, str] = {
    "dqn": "shoal.systems.dqn",
    "apex-dqn": "shoal.systems.apex_dqn",
    "r2d2": "shoal.systems.r2d2",
    "r2d3": "shoal.systems.r2d3",
    "rainbow": "shoal.systems.rainbow",
    "apex-dpg": "shoal.systems.apex_dpg",
    "d4pg": "shoal.systems.d4pg",
    "qt-opt": "shoal.systems.qt_opt",
    "impala": "shoal.systems.impala",
    "recurrent-ppo": "shoal.systems.recurrent_ppo",
    "es": "shoal.systems.es",
    "dd-ppo": "shoal.systems.dd_ppo",
    "a3c": "shoal.systems.a3c",
    "async-q": "shoal.systems.async_q",
    "async-sarsa": "shoal.systems.async_sarsa",
    "async-nstep-q": "shoal.systems.async_nstep_q",
    "gorila": "shoal.systems.gorila",
    "downpour": "shoal.systems.downpour",
    "unreal": "shoal.systems.unreal",
}


class System(Protocol):
    """A system's module, or package. ``PRESETS`` maps a preset's name to the fields it sets."""

    Config: type[SystemConfig]
    PRESETS: dict[str, Values]

    def program(self, cfg: Any) -> Program: ...
    def agent(self, cfg: Any, seed: int = 0) -> Agent: ...


def load(name: str) -> System:
    """The system called ``name``: one of ``SYSTEMS``, a module of the user's own, or a path to its ``.py`` file. Raises
    UsageError with the nearest valid name, or if that module fails or is no system."""
    name = ALIASES.get(name, name)
    require(name)
    if name in SYSTEMS:
        return cast("System", importlib.import_module(SYSTEMS[name]))
    if name.endswith(".py"):
        path = Path(name)
        module = own_code.by_path(path, path.stem, f"system '{name}'")
    else:
        module = own_code.by_name(name, f"system '{name}'")
    for needed in ("Config", "PRESETS", "program", "agent"):
        if not hasattr(module, needed):
            raise UsageError(f"'{name}' is not a system: it lacks '{needed}' (see docs/tutorials/own-system.md)")
    return cast("System", module)


def is_known(name: str) -> bool:
    """Return whether a name, in any letters, is that of a system of Shoal's own."""
    return name.lower() in SYSTEMS or name.lower() in ALIASES


def taken_for(what: str, name: str) -> str:
    """Return the end of a sentence about a name, given for a run or a policy (``what``), that is that of a system or
    of another library's file; else ""."""
    if name.endswith((".zip", ".pth", ".pkl", ".ckpt", ".h5")):
        return " (models of other libraries are not read here)"
    where = "a directory: `shoal runs` lists them" if what == "run" else "a file, or in the directory of its run"
    return f" (this is a system, and a {what} is {where})" if is_known(name) else ""


def require(name: str) -> None:
    """Raise UsageError, with the nearest valid name, unless there is a system, a module or a file of this name. Imports
    neither it nor torch."""
    name = ALIASES.get(name, name)
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise UsageError(f"no such system file: '{name}'")
    elif name not in SYSTEMS and not _is_module(name):
        meant = _meant(name)
        if (serves := ELSEWHERE.get(meant, "")) and serves not in SYSTEMS:
            raise UsageError(f"there is no system '{name}': {serves} (`shoal systems` lists all)")
        near = serves or ALIASES.get(meant, meant)
        hint = f"; did you mean '{near}'?" if near else ""
        raise UsageError(f"unknown system '{name}'{hint} (`shoal systems` lists all)")


def _meant(name: str) -> str:
    """Return the name of a system, here or elsewhere, that a wrong one stands for: itself in small letters, a slip of
    it, or one of its words (``ppo_atari``, ``MaskablePPO``); "" if there is none."""
    known = (*SYSTEMS, *ALIASES, *ELSEWHERE)
    words = split_words(name)
    for whole in (name.lower(), "-".join(words)):
        if whole in known:
            return whole
    runs = [words[i:j] for i in range(len(words)) for j in range(i + 1, len(words) + 1)]
    held = [joined for run in runs if (joined := "-".join(run)) in known]
    return max(held, key=len, default="") or nearest(name, known) or ""


def exists(name: str) -> bool:
    """Return whether there is a system, a module or a file of this name; see ``require``."""
    try:
        require(name)
    except UsageError:
        return False
    return True


def name_of(config: SystemConfig) -> str:
    """Return the name of the system that ``config`` is a configuration of: one of ``SYSTEMS``, a module or a ``.py``
    file. UsageError where several have its class, or none."""
    cls = type(config)
    places = {name: module for name, module in SYSTEMS.items() if f"{cls.__module__}.".startswith(f"{module}.")}
    found = [name for name, module in places.items() if getattr(sys.modules.get(module), "Config", None) is cls]
    module = sys.modules.get(cls.__module__)
    if not found and getattr(module, "Config", None) is cls and cls.__module__ != "__main__":
        file = str(getattr(module, "__file__", ""))
        found = [cls.__module__ if _is_module(cls.__module__) else file]
    if len(found) != 1:
        several = f"several systems ({', '.join(found)}): give a name" if found else "no system"
        raise UsageError(f"'{cls.__module__}.{cls.__qualname__}' is the Config of {several}")
    return found[0]


def described() -> dict[str, str]:
    """Return every system with what it is in one sentence, without importing it."""
    return {name: _first_sentence(module) for name, module in SYSTEMS.items()}


def _first_sentence(module: str) -> str:
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    first, dot, _ = paragraph.partition(". ")
    return first + dot.rstrip()


class _Systems(types.ModuleType):
    """This module: ``shoal.systems()`` lists what it holds."""

    def __call__(self, *asked: str) -> dict[str, str]:
        """Return every system by its name, with what it is in one sentence. Raises UsageError if any is ``asked`` for:
        a single one is a name of ``shoal.train``, or an attribute."""
        if asked:
            raise UsageError(f"shoal.systems() lists all and takes no argument{_as_given(asked[0])}")
        return described()

    def __getitem__(self, name: str) -> types.ModuleType:
        """Raise UsageError that says how a system is had."""
        raise UsageError(f"shoal.systems is no dictionary, and shoal.systems() is one{_as_given(name)}")

    if not TYPE_CHECKING:  # which sees the files

        def __getattr__(self, name: str) -> types.ModuleType:
            """Return the module of a system, which is imported when it is first asked for."""
            system = name.replace("_", "-")
            if (module := SYSTEMS.get(ALIASES.get(system, system))) is None:
                raise AttributeError(f"module 'shoal.systems' has no attribute '{name}'{_system_meant(name)}")
            return importlib.import_module(module)


def _as_given(name: object) -> str:
    """Return how the system of this name is given, as the end of a sentence, or ""."""
    system = ALIASES.get(str(name), str(name)).replace("_", "-")
    attribute = system.replace("-", "_")
    return f": shoal.train('{system}', ...) trains it, and shoal.systems.{attribute} is its module" * (
        system in SYSTEMS
    )


def _system_meant(name: str) -> str:
    """Return the attribute that a wrong one stands for as the end of a sentence, or ""."""
    meant = "" if name.startswith("_") else _meant(name)
    meant = ALIASES.get(meant, meant)
    return f"; did you mean '{meant.replace('-', '_')}'?" if meant in SYSTEMS else instead(ELSEWHERE, meant)


sys.modules[__name__].__class__ = _Systems


def _is_module(name: str) -> bool:
    """Return whether Python, or the working directory, has a module or package of this name, or of its first part."""
    first = name.partition(".")[0]
    with contextlib.suppress(ValueError):  # of one that was made by hand
        return first.isidentifier() and own_code.find(first) is not None
    return False
