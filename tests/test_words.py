"""A number and its noun agree, in every sentence that has both."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from shoal.words import counted, plural

ROOT = Path(__file__).parent.parent / "shoal"
NOUNS = "steps|episodes|updates|actors|failures|processes|environments|members|trials|runs|replicas|observations"
NO_COUNTS = {
    "none of the {} runs has", "the last {} episodes all", "{} steps per second", "{} steps a second",
    "has {} replicas, expected at least 1", "is an option of {} environments", "needs a run directory first",
    ", {} steps", "{}  {} steps, return", "{} episodes ended in each environment of member",
}  # fmt: skip


@pytest.mark.parametrize(
    "number, noun, text",
    [(1, "step", "1 step"),
     (0, "step", "0 steps"), (1280, "agent step", "1,280 agent steps"), (0.6, "update", "1 update"),
     (2, "process", "2 processes"), (1, "process", "1 process"), (3, "trajectory", "3 trajectories"),
     (2.4, "row", "2 rows")],
)  # fmt: skip
def test_a_noun_is_singular_where_the_number_shown_is_one(number: float, noun: str, text: str) -> None:
    assert counted(number, noun) == text


def test_plurals_of_regular_nouns() -> None:
    assert [plural(noun) for noun in ("day", "copy", "box", "branch", "key")] == [
        "days", "copies", "boxes", "branches", "keys",
    ]  # fmt: skip


def sentences(path: Path) -> list[tuple[int, str]]:
    """The f-strings of a file, each ``{}`` a value that is no constant."""
    found = []
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if re.search(rf"(}}|%d) ({NOUNS})\b", text) else ():
        if isinstance(node, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else _value(part) for part in node.values]
            found.append((node.lineno, "".join(parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append((node.lineno, node.value.replace("%d", "{}")))
    return found


def _value(part: ast.expr) -> str:
    """``{}``, or the name of a constant, whose noun can be chosen where it is written."""
    inner = part.value if isinstance(part, ast.FormattedValue) else part
    return inner.id if isinstance(inner, ast.Name) and inner.id.isupper() else "{}"


def test_no_sentence_joins_a_number_and_a_plural_by_hand() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted(ROOT.rglob("*.py"))
        for line, text in sentences(path)
        if re.search(rf"\{{\}} ({NOUNS})\b(?!/s)", text) and not any(known in text for known in NO_COUNTS)
    ]
    assert not wrong, "use shoal.words.counted:\n" + "\n".join(wrong)
