"""A Griffe extension: lines ``name: what it is`` of a docstring are shown as a list, one entry a line."""

from __future__ import annotations

import re
from typing import Any

import griffe

ENTRY = re.compile(r"^(\w+(?:, \w+)*(?: and \w+)?|``\w+``): (?=\S)")


class ParameterLists(griffe.Extension):
    """Rewrites the docstring of each object that Griffe has read."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if not obj.is_alias and obj.docstring:
            obj.docstring.value = as_list(obj.docstring.value)


def as_list(text: str) -> str:
    """Return a docstring in which each paragraph that begins with an entry is a Markdown list."""
    return "\n\n".join(_list(part) if ENTRY.match(part) else part for part in text.split("\n\n"))


def _list(paragraph: str) -> str:
    lines = []
    for line in paragraph.splitlines():
        entry = ENTRY.match(line)
        lines.append(f"- `{entry[1].strip('`')}`: {line[entry.end() :]}" if entry else f"  {line.strip()}")
    return "\n".join(lines)
