"""Suggestions for unknown environment names: the nearest known name, or the package that has it."""

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
from typing import Any, NamedTuple

import gymnasium

from shoal import own_code
from shoal.api import UsageError
from shoal.settings.nearest import is_slip
from shoal.untrusted import brief

from .installed import SECONDS, Search

LONG = 8  # letters of a name of which one that shares four fifths of them is no other word
MAX_CHARACTERS = 200  # longer ids are no typing errors, and comparing them would take minutes


def of_old_gym(env: str, module: str = "") -> str:
    """Return a sentence about an id that only the older package ``gym`` has here, or "". module: that whose import
    registered it, and will in each process."""
    found = old_gym()
    if env not in found.ids:
        return ""
    id = f"{module}:{env}" if module and not own_code.is_file(module) else env
    return f"environment {env!r} is registered with the old gym, not with Gymnasium: {found.way(id)}"


class OldGym(NamedTuple):
    """What the older package ``gym`` has registered, each id with the module of its environment, and the version of
    its interface as shimmy calls it."""

    ids: dict[str, str]
    version: str

    def way(self, id: str) -> str:
        """Return how the environment ``id`` is made by Gymnasium."""
        install = (
            "" if importlib.util.find_spec("shimmy") else f"pip install 'shimmy[gym-{self.version.lower()}]', then "
        )
        return f"{install}--env shimmy:Gym{self.version}Environment-v0 --env-kwargs.env_id {id}"


def old_gym() -> OldGym:
    """Return what ``gym`` has registered: nothing where it is not installed or cannot be imported."""
    if importlib.util.find_spec("gym") is None:
        return OldGym({}, "")
    quiet = contextlib.redirect_stderr(io.StringIO())  # gym prints a deprecation notice
    with contextlib.suppress(Exception), warnings.catch_warnings(), quiet:
        warnings.simplefilter("ignore")
        gym: Any = importlib.import_module("gym")
        registry: Any = gym.envs.registry
        kind = "V26" if hasattr(registry, "keys") else "V21"
        specs = getattr(registry, "env_specs", registry)
        return OldGym({id: str(getattr(specs[id], "entry_point", "")).partition(":")[0] for id in specs}, kind)
    return OldGym({}, "")


def unknown_environment(env: str, known: list[str]) -> UsageError:
    """Return the error for a name that nothing here has: with the nearest one, or the way to name what is the user's
    own."""
    if len(env) > MAX_CHARACTERS:
        return UsageError(f"unknown environment {brief(env)}")
    if not env.isprintable():  # a line break that was copied with it, for example
        plain = "".join(filter(str.isprintable, env))
        return UsageError(f"unknown environment {env!r}{suggestion(plain, known) if plain else ''}")
    if "," in env:
        return UsageError(f"unknown environment {env!r}: a run has one environment; give each its own run")
    own = _of_own_code(env)
    namespaced = re.fullmatch(r"\w+/\w+", env) is not None  # may be an id of a package that registers more than classes
    near = "" if own and not namespaced else suggestion(env, known)
    if own and not near.startswith("; did"):
        near = f"; did you mean {own!r}?"
    if near:
        return UsageError(f"unknown environment {env!r}{near}")
    way = f" (an id that a module or a file registers is named with it, as in MODULE:{env} or FILE.py:{env})"
    return UsageError(f"unknown environment {env!r}{way}")


def _of_own_code(env: str) -> str:
    """Return ``MODULE:NAME`` or ``FILE.py:NAME`` for what is written with another sign between them (``module.Name``,
    ``file.py.Name``, ``module/Name`` where there is such a module), or ""."""
    if found := re.fullmatch(r"(\S+\.py)(?:::|[./#@])(\w+)", env):
        return f"{found[1]}:{found[2]}"
    if found := re.fullmatch(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\.([A-Za-z_]\w*(?:-v\d+)?)", env):
        return f"{found[1]}:{found[2]}"
    if (found := re.fullmatch(r"([A-Za-z_]\w*)/([A-Za-z_]\w*)", env)) and own_code.find(found[1]) is not None:
        return f"{found[1]}:{found[2]}"
    return ""


@contextlib.contextmanager
def meaning_a_known(env: str, known: list[str]) -> Iterator[None]:
    """Add to a UsageError, raised for the module of ``env`` that cannot be imported, what was meant: a ``known`` name
    behind it (``gym:CartPole-v1``), or one colon in place of two."""
    try:
        yield
    except UsageError as error:
        name = env.rpartition(":")[2]
        meant = _of_own_code(env) or (name if name in known else "")
        if isinstance(error.__cause__, ImportError) and meant:
            raise UsageError(f"{error}; did you mean {meant!r}?") from error.__cause__
        raise


def suggestion(env: str, known: list[str]) -> str:
    """Return a suggestion as the end of a sentence: an installed package's id, or the nearest of the ``known`` ones."""
    if not env.strip():
        return ""
    found = Search(env)
    near = nearest(env, known)
    if found.whole and not any(re.fullmatch(re.escape(env) + r"-v\d+", other) for other in known):
        near = found.named
    elif found.akin and not ids_of(found.akin.partition(":")[0]) and not _nearly_equal(env, near):
        near = found.named or found.akin
    near = near or found.named or found.ids.get(nearest(env, list(found.ids)), "")
    given_up = f"; the search among installed packages was given up after {SECONDS:g} s" if found.unfinished else ""
    return f"; did you mean {near!r}?" if near else given_up


def _nearly_equal(asked: str, meant: str) -> bool:
    """Return True if two ids are nearly equal, ignoring their namespaces."""
    one, other = (name.rpartition("/")[2].lower() for name in (asked, meant))
    return difflib.SequenceMatcher(None, one, other).ratio() >= 0.8


def ids_of(module: str) -> list[str]:
    """Return the ids that a module, or a module of its package, has registered."""
    package = module.partition(".")[0]
    makers = {name: spec.entry_point for name, spec in gymnasium.registry.items()}
    homes = {name: make if isinstance(make, str) else getattr(make, "__module__", "") for name, make in makers.items()}
    return [name for name, home in homes.items() if re.split("[.:]", home)[0] == package]


def did_you_mean(name: str, names: list[str]) -> str:
    """Return the nearest of ``names`` as the end of a sentence, or "" if none is near."""
    return f"; did you mean {near!r}?" if (near := nearest(name, names)) else ""


def latest(name: str, names: list[str]) -> str:
    """Return the latest version of the environment ``name`` among ``names``, or "" if there is none. A name without a
    namespace also matches names with one, which come after equal versions without one."""
    asked, namespace = re.sub(r"-v\d+$", "", name).lower(), "" if "/" in name else r"(?:.+/)?"
    versions = [re.fullmatch(rf"{namespace}(.+)-v(\d+)", other) for other in names]
    same = [(int(v[2]), "/" not in v[0], v[0]) for v in versions if v and v[1].lower() == asked]
    return max(same)[-1] if same else ""


def nearest(name: str, names: list[str]) -> str:
    """Return the nearest of ``names``, or "" if none is near: the latest version of the same environment, else one with
    a similar spelling. A name without a namespace also matches names with one (Pong-v5 for ALE/Pong-v5)."""
    if same := latest(name, names):
        return same
    asked = name.lower()
    whole = "/" in name
    # so that it is found before names with a namespace
    plain_last = sorted(names, key=lambda other: ("/" not in other, other))
    known = {(other if whole else other.rpartition("/")[2]).lower(): other for other in plain_last}
    base = functools.partial(re.sub, r"-v\d+$", "")  # of "Foo-v1", a third is the version
    bare = base(asked)
    begun = [other for other in known if other.startswith(bare)] if len(bare) > 4 else []
    if begun:
        shortest = known[min(begun, key=len)]
        return latest(shortest, names) or shortest
    # letters alone make no name: of "nope", all but one are in "gopher"
    alike = [
        other
        for other in {base(other) for other in known}
        if is_slip(bare, other) or (len(bare) >= LONG and _nearly_equal(bare, other))
    ]
    near = difflib.get_close_matches(bare, alike, n=5, cutoff=0.6)
    close = difflib.get_close_matches(asked, [other for other in known if base(other) in near], n=5, cutoff=0.6)
    if not close:
        return ""
    best = difflib.SequenceMatcher(None, asked, close[0]).ratio()
    ties = [other for other in close if difflib.SequenceMatcher(None, asked, other).ratio() >= best]
    return known[max(ties)]
