"""Source locations of a user's environment for error messages."""

from __future__ import annotations

import inspect
from types import CodeType

from shoal.own_code import is_theirs


def defined_at(env: object, method: str) -> str:
    """Return ``FILE, line N`` of the definition of ``method`` in the environment below all wrappers, or "" if it is not
    the user's Python code."""
    function = inspect.unwrap(getattr(type(getattr(env, "unwrapped", env)), method, None) or defined_at)
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or not is_theirs(code.co_filename):
        return ""
    return f"{code.co_filename}, line {code.co_firstlineno}"
