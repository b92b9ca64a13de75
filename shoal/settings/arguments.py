"""What a function says of an argument that it does not have, for those who know another library's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from shoal.errors import UsageError
from shoal.words import counted, in_a_row

from .other_names import instead
from .other_python_names import OF_ARGUMENTS

P = ParamSpec("P")
R = TypeVar("R")


def explains_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Return ``function`` with a UsageError, in place of a TypeError, for a keyword that it does not have: the error
    names what serves instead, or the arguments that there are. Calls that succeed cost nothing more."""
    names = [name for name in inspect.signature(function).parameters if name != "self"]

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError:
            unknown = next((name for name in kwargs if name not in names), None)
            if unknown is None:
                raise
        told = instead(OF_ARGUMENTS, unknown) or f": it takes {', '.join(names)}"
        raise UsageError(f"{function.__name__} has no argument '{unknown}'{told}")

    return called


def needs_as_in(example: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator for a function of ``shoal``: a call with too few or too many arguments raises a UsageError,
    in place of a TypeError, that ends with the ``example`` of a right call."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        own = inspect.signature(function).parameters.values()
        needed = [each.name for each in own if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
        places = sum(each.kind is each.POSITIONAL_OR_KEYWORD for each in own)

        @wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            missing = [name for name in needed[len(args) :] if name not in kwargs]
            if not missing and len(args) <= places:
                return function(*args, **kwargs)
            told = f"needs {in_a_row(missing)}"
            if len(args) > places:
                told = f"takes {counted(places, 'argument')} without a name, found {len(args)}"
            raise UsageError(f"shoal.{function.__name__} {told}, as in {example}")

        return called

    return decorate
