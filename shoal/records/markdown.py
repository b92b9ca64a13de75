"""Helpers for ``summary.md``: text without active Markdown, tables, the command and the provenance of a run."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.records.atomic_write import write_atomic
from shoal.types import Values
from shoal.untrusted import one_line, printable
from shoal.words import counted

NAME = "summary.md"
CLOCK = "%Y-%m-%d %H:%M:%S"
_LINK = re.compile(r"\]([(\[:])")


def command() -> str:
    """Return the command line of this process as a user would type it."""
    script, *words = sys.argv or ["python"]
    if Path(script).name in ("shoal", "__main__.py"):
        return shlex.join(["shoal", *words])
    return shlex.join(["python", *([script] if script not in ("", "-c", "-") else []), *words])


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Write the summary in the directory ``path`` atomically. Raises OSError if the disk is full."""
    shown = printable("\n".join(lines)).replace("<", "&lt;")  # disables HTML within Markdown
    write_atomic(path / NAME, shown + "\n")


def written(seconds: float | None = None) -> str:
    """Return a time (seconds since 1970; None: now) in local time."""
    return time.strftime(CLOCK, time.localtime(seconds))


def made_on(versions: Values, hardware: Values, git: str | None) -> dict[str, str]:
    """Return machine, versions and commit as cells of ``rows``."""
    cores = counted(hardware["cores"], "core") if "cores" in hardware else ""
    memory = f"{hardware.get('memory', 0) / 2**30:.0f} GiB"
    return {
        "machine": ", ".join([hardware.get("processor", ""), cores, memory, *hardware.get("gpus", [])]),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "git commit": git or "none",
    }


def rows(cells: Mapping[str, object]) -> list[str]:
    """Return a Markdown table of names and values."""
    return ["| | |", "| --- | --- |", *(row([name, value]) for name, value in cells.items())]


def row(cells: Sequence[object]) -> str:
    """Return one line of a Markdown table."""
    return f"| {' | '.join(text(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def items(counts: Sequence[tuple[str, int]]) -> list[str]:
    """Return a Markdown list of sentences with their counts."""
    return [f"- {text(sentence)}" + (f" ({n} times)" if n > 1 else "") for sentence, n in counts]


def text(value: object) -> str:
    """Return a value on one line, with brackets escaped so that they do not form links or references."""
    return _LINK.sub(r"]\\\1", one_line(str(value)))


def code(found: str) -> str:
    """Return a text as inline code, fenced by more backticks than the longest run of backticks in it."""
    longest = max(map(len, re.findall("`+", found)), default=0)
    return f"{'`' * (longest + 1)}{' ' * (longest > 0)}{found}{' ' * (longest > 0)}{'`' * (longest + 1)}"
