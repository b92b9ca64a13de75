"""The environments that can be made here, by name: for ``shoal envs`` and for completion."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator


def installed_environments() -> Iterator[str]:
    """Yield the names of all environments that can be made here, the newest version of each."""
    import gymnasium

    from shoal.envs.installed import import_package
    from shoal.envs.registry import BUILT_IN, PACKAGES

    for package in PACKAGES:
        with contextlib.suppress(Exception):  # of others
            import_package(package)
    newest: dict[str, tuple[int, str]] = {}
    for spec in gymnasium.registry.values():
        if spec.namespace in ("phys2d", "tabular") or "GymV" in spec.id:
            continue
        base = re.sub(r"-v\d+$", "", spec.id)
        version = spec.version or 0
        if base not in newest or newest[base][0] < version:
            newest[base] = version, spec.id
    yield from {name for _, name in newest.values()} | set(BUILT_IN)
