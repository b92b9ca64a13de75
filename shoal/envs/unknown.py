"""What is said of a name that no environment has: the nearest that one has, or who else knows it."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import importlib.util
import io
import re
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium

MAX_CHARACTERS = 200  # of an id that anything is suggested for
FEWEST = 5  # letters that an id and a text must share: fewer are in too many texts to tell packages apart


def of_old_gym(env: str) -> str:
    """Return a sentence about an id that only the old ``gym``, which Gymnasium follows, knows here; "" for others."""
    if importlib.util.find_spec("gym") is None:
        return ""
    quiet = contextlib.redirect_stderr(io.StringIO())  # it says by itself that it is old
    with contextlib.suppress(Exception), warnings.catch_warnings(), quiet:
        warnings.simplefilter("ignore")
        gym: Any = importlib.import_module("gym")
        registry: Any = gym.envs.registry
        if env not in getattr(registry, "env_specs", registry):
            return ""
        kind = "V26" if hasattr(registry, "keys") else "V21"
        return (
            f"environment {env!r} is registered with the old gym, not with Gymnasium: pip install "
            f"'shimmy[gym-{kind.lower()}]', then --env Gym{kind}Environment-v0 --env-kwargs.env_id {env}"
        )
    return ""


def suggestion(env: str, known: list[str]) -> str:
    """Return what to ask for instead, for a sentence: an installed package's id, or the nearest of those ``known``."""
    if len(env) > MAX_CHARACTERS:  # of a file, and no slip: to compare it would take minutes
        return ""
    named, whole = of_installed(env)
    lacks_version = any(re.fullmatch(re.escape(env) + r"-v\d+", other) for other in known)
    near = did_you_mean(env, known) if lacks_version or not whole else ""
    return near or (f"; did you mean {named!r}?" if named else "")


def ids_of(module: str) -> list[str]:
    """Return the ids that a module, or one of its package, has registered."""
    package = module.partition(".")[0]
    makers = {name: spec.entry_point for name, spec in gymnasium.registry.items()}
    homes = {name: make if isinstance(make, str) else getattr(make, "__module__", "") for name, make in makers.items()}
    return [name for name, home in homes.items() if re.split("[.:]", home)[0] == package]


def of_installed(env: str) -> tuple[str, bool]:
    """Return ``MODULE:ENV`` with the installed module that registers such an id, and whether its text has the whole id
    (but for the version). ("", False): none. Packages that need Gymnasium are judged by the text of their files, and
    not imported: of those that call ``register``, the one with the longest beginning of the id, as many are put
    together of parts."""
    base = re.sub(r"-v\d+$", "", env)
    begin = env.rpartition("/")[0] + "/" if "/" in env else ""
    best, longest, whole = "", len(begin) + FEWEST - 1, False
    for package in _packages():
        for module, text in _registering(package):
            found = [n for n in range(longest + 1, len(base) + 1) if re.search("[\"']" + re.escape(base[:n]), text)]
            if found:
                best, longest = module, found[-1]
                whole = re.search("[\"']" + re.escape(base) + "(?![A-Za-z0-9])", text) is not None  # no longer name
    return (f"{best}:{env}", whole) if best else ("", False)


def _packages() -> list[str]:
    """Return the modules of the installed distributions that need Gymnasium."""
    return [
        module for module, names in metadata.packages_distributions().items()
        if module.isidentifier() and module not in ("gymnasium", "shoal")
        and any(re.match(r"gymnasium\b", need) for name in names for need in metadata.requires(name) or ())
    ]  # fmt: skip


def _registering(package: str) -> Iterator[tuple[str, str]]:
    """Yield the texts of a package's files that register something, each with the module to import for it."""
    spec = importlib.util.find_spec(package)
    for folder in map(Path, (spec.submodule_search_locations or ()) if spec is not None else ()):
        top = _text(folder / "__init__.py")
        for file in folder.rglob("*.py"):
            if re.search(r"\bregister\w*\(", text := _text(file)):
                parts = file.parent.relative_to(folder).parts
                imported = not parts or file.name != "__init__.py" or parts[0] in top
                yield package if imported else ".".join((package, *parts)), text


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def did_you_mean(name: str, names: list[str]) -> str:
    """The nearest of ``names``; one without a namespace also stands for those in one (Pong-v5 for ALE/Pong-v5)."""
    asked = name.lower()
    whole = "/" in name
    plain_last = sorted(names, key=lambda other: ("/" not in other, other))  # and so found before its namesakes
    known = {(other if whole else other.rpartition("/")[2]).lower(): other for other in plain_last}
    versions = [other for other in known if other.rpartition("-v")[0] == asked]
    begun = [other for other in known if other.startswith(asked)] if len(asked) > 4 else []
    if versions or begun:
        return f"; did you mean {known[max(versions) if versions else min(begun, key=len)]!r}?"
    base = functools.partial(re.sub, r"-v\d+$", "")  # of "Foo-v1", a third is the version
    near = difflib.get_close_matches(base(asked), {base(other) for other in known}, n=5, cutoff=0.6)
    close = difflib.get_close_matches(asked, [other for other in known if base(other) in near], n=5, cutoff=0.6)
    if not close:
        return ""
    best = difflib.SequenceMatcher(None, asked, close[0]).ratio()
    ties = [other for other in close if difflib.SequenceMatcher(None, asked, other).ratio() >= best]
    return f"; did you mean {known[max(ties)]!r}?"
