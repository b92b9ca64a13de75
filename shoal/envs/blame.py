"""Where in somebody else's code an environment went wrong, as file and line."""

from __future__ import annotations

import inspect
import traceback
from pathlib import Path
from types import CodeType
from typing import Any

_OURS = Path(__file__).parents[1]


def raised_at(error: BaseException) -> str:
    """Return ``FILE, line N`` of the innermost line of ``error`` that is neither Shoal's nor Gymnasium's; "" if there
    is none."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if _is_theirs(f.filename)]
    return f"{theirs[-1].filename}, line {theirs[-1].lineno}" if theirs else ""


def defined_at(env: Any, method: str) -> str:
    """Return ``FILE, line N`` of where the environment under all wrappers defines ``method``; "" where that is no
    Python of somebody else's."""
    function = inspect.unwrap(getattr(type(getattr(env, "unwrapped", env)), method, None) or defined_at)
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or not _is_theirs(code.co_filename):
        return ""
    return f"{code.co_filename}, line {code.co_firstlineno}"


def _is_theirs(file: str) -> bool:
    path = Path(file)
    return path.is_file() and _OURS not in path.parents and "gymnasium" not in path.parts
