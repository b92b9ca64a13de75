"""The machines that a program is simulated on, as a TOML file describes them."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from shoal.api import UsageError
from shoal.untrusted import brief, excerpt, read_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

UNITS = {
    "bandwidth": {"Gbit/s": 1e9 / 8, "Mbit/s": 1e6 / 8, "GB/s": 1e9, "MB/s": 1e6},  # bytes a second
    "latency": {"us": 1e-6, "ms": 1e-3, "s": 1.0},
    "memory": {"GB": 1e9, "GiB": 2.0**30, "TB": 1e12},
    "time": {"us": 1e-6, "ms": 1e-3, "s": 1.0},
}
FIELDS = ("count", "cores", "speed", "busy", "bandwidth", "latency", "memory", "roles")
MOST_OF_A_KIND = 100_000  # nodes, or cores of one, each an object of the simulation
NO_LINK = 1e15  # bytes a second, of a machine by itself


@dataclass(frozen=True)
class Node:
    """A machine. speed: of a core, relative to those on which costs were measured; busy: of each core while all work,
    relative to one that works alone; bandwidth: bytes a second each way; latency: seconds; memory: bytes, 0: not said;
    roles: that it alone runs, none: any."""

    cores: int
    speed: float = 1.0
    busy: float = 1.0
    bandwidth: float = NO_LINK
    latency: float = 0.0
    memory: float = 0.0
    roles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Machine:
    """Nodes and how they are connected. reduce: the shape of an all-reduce between nodes, ring or tree.

    gpu: seconds of a phase (learn, inference) by the environment steps in a batch, in rising order, instead of those
    that were measured.
    """

    nodes: tuple[Node, ...]
    reduce: str = "ring"
    gpu: Mapping[str, tuple[tuple[float, float], ...]] | None = None

    @staticmethod
    def here(cores: int, busy: float = 1.0) -> Machine:
        return Machine((Node(cores, busy=busy),))

    def repeated(self, nodes: int) -> Machine:
        """So many nodes: these, and more like the last one."""
        more = (self.nodes[-1],) * (nodes - len(self.nodes))
        return Machine((*self.nodes[:nodes], *more), self.reduce, self.gpu)


def read(path: Path) -> Machine:
    """The machine of a TOML file. UsageError that names the field where it is not one."""
    try:
        found = tomllib.loads(read_text(path))
    except FileNotFoundError:
        raise UsageError(f"there is no machine file '{path}'") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML: {excerpt(error)}") from None
    _known(f"{path}", found, ("node", "reduce", "gpu"))
    tables = found.get("node")
    if not isinstance(tables, list) or not tables:
        raise UsageError(f"{path} has no [[node]], with at least its number of cores")
    reduce = found.get("reduce", "ring")
    if reduce not in ("ring", "tree"):
        raise UsageError(f"{path}: reduce is {brief(reduce)}, expected 'ring' or 'tree'")
    several = len(tables) > 1 or any(isinstance(t, dict) and t.get("count", 1) != 1 for t in tables)
    nodes: list[Node] = []
    for number, table in enumerate(tables, 1):
        if not isinstance(table, dict):
            raise UsageError(f"{path}: node {number} is not a table")
        nodes += _node(f"{path}: node {number}", table, several)
    return Machine(tuple(nodes), reduce, _gpu(str(path), found.get("gpu")))


def _node(where: str, table: dict[str, Any], several: bool) -> list[Node]:
    _known(where, table, FIELDS)
    for name in ("cores", *(("bandwidth", "latency") if several else ())):
        if name not in table:
            raise UsageError(f"{where} has no {name}" + (", which every one of several nodes needs" if several else ""))
    count, cores = (_number(where, table, name, int, 1) for name in ("count", "cores"))
    roles = table.get("roles", [])
    if not isinstance(roles, list) or not all(isinstance(r, str) for r in roles):
        raise UsageError(f"{where}: roles is {brief(roles)}, expected a list of names")
    node = Node(
        int(cores), _number(where, table, "speed", float, 1.0), _number(where, table, "busy", float, 1.0),
        quantity(where, "bandwidth", table.get("bandwidth", f"{NO_LINK / 1e9:.0f} GB/s")),
        quantity(where, "latency", table.get("latency", "0 s")),
        quantity(where, "memory", table.get("memory", "0 GB")), tuple(roles),
    )  # fmt: skip
    if node.busy > 1:
        raise UsageError(f"{where}: busy is {node.busy:g}, expected a share of at most 1")
    return [node] * int(count)


def _gpu(path: str, found: Any) -> Mapping[str, tuple[tuple[float, float], ...]] | None:
    if found is None:
        return None
    _known(f"{path}: gpu", found, ("learn", "inference"))
    out = {}
    for phase, table in found.items():
        where = f"{path}: gpu.{phase}"
        if not isinstance(table, dict) or not table or not all(re.fullmatch("[1-9][0-9]{0,9}", k) for k in table):
            raise UsageError(
                f'{where} is {brief(table)}, expected steps in a batch and seconds, as in {{640 = "3 ms"}}'
            )
        out[phase] = tuple(sorted((float(k), quantity(where, "time", v)) for k, v in table.items()))
    return out


def quantity(where: str, name: str, text: object) -> float:
    """A number with one of the units of ``name``, in bytes or seconds."""
    units = UNITS[name]
    match = re.fullmatch(r"\s*([0-9.]+(?:[eE][+-]?\d+)?)\s*(\S+)\s*", text) if isinstance(text, str) else None
    try:
        number = float(match[1]) if match is not None else -1.0
        number = number if number < math.inf else -1.0
    except ValueError:
        number = -1.0
    if match is None or match[2] not in units or number < 0 or (number == 0 and name == "bandwidth"):
        *most, last = units
        raise UsageError(f"{where}: {name} is {brief(text)}, expected a number and {', '.join(most)} or {last}")
    return number * units[match[2]]


def _number(where: str, table: dict[str, Any], name: str, kind: type, default: float) -> float:
    value = table.get(name, default)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (whole or (kind is float and isinstance(value, float))) or not 0 < value < (
        MOST_OF_A_KIND if kind is int else 1e9
    ):
        raise UsageError(f"{where}: {name} is {brief(value)}, expected a {'whole ' * (kind is int)}number above 0")
    return float(value)


def _known(where: str, table: Any, names: tuple[str, ...]) -> None:
    if not isinstance(table, dict):
        raise UsageError(f"{where} is not a table")
    for name in table:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            raise UsageError(
                f"{where} has no field '{excerpt(name)}'" + (f"; did you mean '{near[0]}'?" if near else "")
            )
