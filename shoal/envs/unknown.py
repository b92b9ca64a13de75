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
from typing import Any


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
