"""What must be the same on every node of a cluster."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import metadata

from shoal.api import UsageError


def versions() -> dict[str, str]:
    """package -> version here; Python's last number may differ."""
    out = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for package in ("shoal", "torch", "numpy", "ray"):
        try:
            out[package] = metadata.version(package).partition("+")[0]
        except metadata.PackageNotFoundError:
            out[package] = "missing"
    return out


def compare(node: str, found: Mapping[str, str]) -> None:
    """UsageError unless the versions of a node are those of this machine."""
    for package, version in versions().items():
        if found[package] != version:
            raise UsageError(
                f"{node} has {package} {found[package]}, but the driver has {version}: all nodes of a cluster need the "
                "same versions of Python, Shoal, torch, NumPy and Ray"
            )
