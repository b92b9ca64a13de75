"""Things that are found by name: Shoal's own, and a class of the user's by ``MODULE:CLASS`` or ``FILE.py:CLASS``.

Runtimes, back ends of metrics and samplers of replays are named so, as environments are. A name is checked without
importing anything, so that one from a file of somebody else's can be looked at before it is followed (``run.trust``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from shoal import own_code
from shoal.errors import UsageError
from shoal.settings.nearest import did_you_mean
from shoal.untrusted import excerpt

T = TypeVar("T")


def is_own(name: str) -> bool:
    """Return whether a name stands for code of the user's."""
    return ":" in name


class Registry(Generic[T]):
    """What there is of one kind. what: the kind in words; built_in: Shoal's own by name; methods: what a class of the
    user's must have; wrap: makes an entry of such a class."""

    def __init__(self, what: str, built_in: Mapping[str, T], methods: Iterable[str], wrap: Callable[[Any], T]) -> None:
        self.what, self.built_in, self._methods, self._wrap = what, dict(built_in), tuple(methods), wrap

    def __iter__(self) -> Iterator[str]:
        return iter(self.built_in)

    def check(self, name: str) -> None:
        """UsageError, with the nearest valid name, for one that is neither Shoal's nor looks like a class of the
        user's; nothing is imported."""
        if name in self.built_in or is_own(name):
            return
        known = f": expected {', '.join(self.built_in)}, or MODULE:CLASS or FILE.py:CLASS of your own"
        hint = did_you_mean(name, tuple(self.built_in)) or known
        raise UsageError(f"unknown {self.what} '{excerpt(name)}'{hint}")

    def find(self, name: str) -> T:
        """Return what a name stands for. UsageError where there is no such thing, or it lacks a method."""
        self.check(name)
        if name in self.built_in:
            return self.built_in[name]
        found = own_code.attribute(name, f"the {self.what} '{name}'")
        lacking = [method for method in self._methods if not _has(found, method)]
        if not inspect.isclass(found) or lacking:
            why = f"it lacks '{lacking[0]}'" if inspect.isclass(found) else "it is no class"
            raise UsageError(f"'{name}' is not a {self.what}, {why}: expected a class with {', '.join(self._methods)}")
        return self._wrap(found)


def _has(found: Any, method: str) -> bool:
    """Return whether it has the method, and not only one that the base class leaves to it."""
    own = getattr(found, method, None)
    return callable(own) and not getattr(own, "__isabstractmethod__", False)
