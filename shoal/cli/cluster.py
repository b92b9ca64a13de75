"""The command ``shoal cluster check``: what a Ray cluster has, and what of a program fits where."""

from __future__ import annotations

from shoal.api import UsageError
from shoal.settings.flags import options, split


def command(args: list[str]) -> int:
    """shoal cluster check [SYSTEM --FLAG VALUE...] [--address A]"""
    if args[:1] != ["check"]:
        raise UsageError("shoal cluster has one command, for example: shoal cluster check --address auto")
    return check(args[1:])


def check(args: list[str]) -> int:
    """Name the nodes with their resources and versions; with a system, draw where its roles fit. UsageError for
    versions that differ, and for a program without room."""
    from shoal.ray_runtime import instance, placement

    named = bool(args) and not args[0].startswith("--")
    groups = split(args[1:] if named else args)
    program = None
    if named:
        from shoal import systems
        from shoal.run.flags import resolve_flags

        system = systems.load(args[0])
        opts, resolved = resolve_flags(args[0], system, groups, {"address": str})
        program = system.program(resolved.cfg)
        program.validate()
    else:
        opts = options(groups, {"address": str}, "cluster")
    address = opts.get("address")
    if address is None:
        raise UsageError("shoal cluster check needs the cluster: --address auto, HOST:PORT or ray://HOST:PORT")
    instance.check_installed()
    with instance.attached(address):
        from shoal.ray_runtime.places import check_versions, nodes

        found = nodes()
        versions = check_versions(found)
        print(", ".join(f"{package} {version}" for package, version in versions.items()) + " on every node")
        wanted = placement.units_on(program, found) if program is not None else []
        print(placement.draw(wanted, found))
        placement.check(wanted, found, "the Ray cluster")
    return 0
