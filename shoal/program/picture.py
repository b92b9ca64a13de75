"""What a drawing of a program shows, as plain JSON data: a run keeps it, to be drawn without the program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from shoal.api import spec_nbytes
from shoal.program import draw
from shoal.program.draw import field_lines, human_bytes, reads, role_detail, role_line, size_lines
from shoal.program.program import Program
from shoal.types import Values
from shoal.words import counted

FILE = "program.json"
KINDS = ("queue", "replay", "params", "shared", "constant", "board", "reduce")
MOST_CARDS = 200  # roles, and channels, of a picture that is drawn


@dataclass(frozen=True)
class RolePicture:
    """A role: ``title`` names it with its number of replicas, ``detail`` says what it computes on."""

    name: str
    title: str
    detail: str
    replicas: int


@dataclass(frozen=True)
class ChannelPicture:
    """A channel. fields, sizes: lines of text; writers, readers: (role, how it reads) pairs; nbytes: of one item;
    target: samples per insert that a replay is held to, None for any other."""

    name: str
    kind: str
    fields: tuple[str, ...]
    sizes: tuple[str, ...]
    writers: tuple[str, ...]
    readers: tuple[tuple[str, str], ...]
    nbytes: int
    target: float | None = None


@dataclass(frozen=True)
class Live:
    """What a running program does, to be drawn into its picture.

    fill: channel -> share of its slots in use. role_lines, channel_lines: a role's or channel's figures as text;
    phases: role -> phase of each replica (``start``, ``restarting``, ``dead`` among them); bottleneck: the role that
    limits the speed, "" where that is not known.
    """

    fill: Mapping[str, float] = field(default_factory=dict)
    role_lines: Mapping[str, list[str]] = field(default_factory=dict)
    channel_lines: Mapping[str, list[str]] = field(default_factory=dict)
    phases: Mapping[str, list[str]] = field(default_factory=dict)
    bottleneck: str = ""


@dataclass(frozen=True)
class Picture:
    """A program as it is drawn: roles and channels in the order of the program, and a ``caption``."""

    caption: str
    roles: tuple[RolePicture, ...]
    channels: tuple[ChannelPicture, ...]

    @classmethod
    def of(cls, program: Program) -> Picture:
        """Return the picture of a program."""
        processes = sum(role.replicas for role in program.roles)
        total = human_bytes(sum(program.memory().values()))
        channels = []
        for c in program.channels.values():
            writers = tuple(role.name for role, _ in program.ends(c, "write"))
            readers = tuple((role.name, reads(port)) for role, port in program.ends(c, "read"))
            target = c.ratio.samples_per_insert if c.kind == "replay" else None
            lines = tuple(field_lines(c)), tuple(size_lines(program, c))
            channels.append(ChannelPicture(c.name, c.kind, *lines, writers, readers, spec_nbytes(c.spec), target))
        roles = tuple(RolePicture(r.name, role_line(r), role_detail(r), r.replicas) for r in program.roles)
        return cls(f"{program.name}: {counted(processes, 'process')}, {total} of buffers", roles, tuple(channels))

    def to_json(self) -> Values:
        """Return the picture as ``program.json`` holds it, for ``from_json``."""
        return asdict(self)

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Picture:
        """Return the picture that a file holds. ValueError, TypeError or LookupError where it holds none: names of
        roles that are not there, kinds of channels that Shoal does not know, or too many of them."""
        roles = tuple(RolePicture(_text(r["name"]), _text(r["title"]), _text(r["detail"]), _count(r["replicas"]))
                      for r in facts["roles"])  # fmt: skip
        channels = tuple(
            ChannelPicture(
                _text(c["name"]), _text(c["kind"]), tuple(map(_text, c["fields"])), tuple(map(_text, c["sizes"])),
                tuple(map(_text, c["writers"])), tuple((_text(role), _text(how)) for role, how in c["readers"]),
                _count(c["nbytes"]), None if c["target"] is None else float(c["target"]),
            )
            for c in facts["channels"]
        )  # fmt: skip
        names = {role.name for role in roles}
        if not roles or max(len(roles), len(channels)) > MOST_CARDS or len(names) < len(roles):
            raise ValueError(f"expected 1 to {MOST_CARDS} roles of different names")
        for c in channels:
            if (
                c.kind not in KINDS
                or not (c.writers or c.readers)
                or not names.issuperset([*c.writers, *(role for role, _ in c.readers)])
            ):
                raise ValueError(f"channel {c.name!r} has an unknown kind or end")
        return cls(_text(facts["caption"]), roles, channels)


def drawings(program: Program) -> dict[str, str]:
    """Return the files of a run that say what its program is: name -> text."""
    picture = json.dumps(Picture.of(program).to_json(), indent=1) + "\n"
    return {FILE: picture, "program.mmd": draw.mermaid(program), "program.txt": draw.text(program)}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r}")
    return value[:200]


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise TypeError(f"expected a count, found {value!r}")
    return value
