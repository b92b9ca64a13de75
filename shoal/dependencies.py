"""Whether what is installed beside Shoal is new enough, told in one sentence with who holds it back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata

REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?")


def unsuitable() -> str:
    """Return a sentence about the first of Shoal's dependencies that is missing or too old, "" if there is none. Only
    the metadata of installed packages is read, nothing is imported."""
    try:
        wanted = metadata.requires("shoal") or []
    except metadata.PackageNotFoundError:  # run from its source
        return ""
    for name, bound, marker in map(_parts, wanted):
        least = re.search(r">=\s*([0-9][0-9.]*)", bound)
        if marker or least is None:  # of an extra, or for another Python
            continue
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            return f"{name} is not installed, and Shoal needs {least[1]} or newer: pip install '{name}>={least[1]}'"
        if _number(found) < _number(least[1]):
            held = "; ".join(_holders(name))
            why = f": {held}. An environment of its own (python -m venv) keeps them apart" if held else ""
            advice = "" if held else f": pip install '{name}>={least[1]}'"
            return f"{name} {found} is installed, and Shoal needs {least[1]} or newer{advice}{why}"
    return ""


def _holders(name: str) -> Iterator[str]:
    """Every installed package that asks for an old version of ``name``, and what it asks for."""
    for package in metadata.distributions():
        for other, bound, marker in map(_parts, package.requires or []):
            if _plain(other) == _plain(name) and re.search(r"<|==|~=", bound) and "extra" not in marker:
                yield f"{package.metadata['Name']} {package.version} asks for {other}{bound.strip()}"


def _parts(requirement: str) -> tuple[str, str, str]:
    """Name, bounds and marker of a requirement; "" for what it lacks."""
    found = REQUIREMENT.fullmatch(requirement.strip())
    return (found[1], found[2], found[3] or "") if found is not None else ("", "", "")


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _number(version: str) -> tuple[int, ...]:
    """``2.13.0+cpu`` -> (2, 13), without zeros at its end."""
    numbers = [int(n) for n in re.match(r"[0-9.]*", version)[0].split(".") if n]  # type: ignore[index]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
