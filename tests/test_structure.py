"""The directions of imports, and the size of files. See docs/architecture.md, "Directions"."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "shoal"
FILES = sorted(ROOT.rglob("*.py"))
ANYTHING = None

# Part of shoal/ -> the parts it may import. Every part may import itself, api and errors.
ALLOWED: dict[str, set[str] | None] = {
    "api": {"groups"},
    "errors": set(),
    "groups": set(),
    "jit": set(),
    "fast": {"jit"},
    "ops": {"fast"},
    "nets": {"ops", "fast"},
    "algos": {"ops", "nets", "fast", "settings"},
    "roles": {"ops"},
    "envs": {"jit", "settings"},
    "replay": {"ops", "jit"},
    "program": {"replay"},  # replay.limiter: whether a ratio can be satisfied
    "settings": set(),
    "systems": {"program", "roles", "replay", "algos", "nets", "envs", "ops", "settings"},
    "metering": set(),
    "records": {"metering", "program"},
    "runtime": {"program", "metering", "records"},
    "serial": {"runtime", "program", "replay", "metering", "records"},
    "shm": {"runtime", "program", "replay", "metering"},
    "local": {"shm", "runtime", "program", "metering", "records", "systems", "fast"},  # the last two: local.preload
    "policy": {"systems", "envs", "roles", "algos"},
    "run": ANYTHING,  # the front door
    "analysis": {"run", "records", "metering", "settings", "systems"},
    "cli": ANYTHING,
    "building": ANYTHING,  # what authors of systems import
    "__init__": ANYTHING,
    "__main__": {"cli"},
}


def part(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path, text: str) -> set[str]:
    """The parts of shoal that ``path`` imports, anywhere in it: inside functions and TYPE_CHECKING too."""
    package = ("shoal", *path.relative_to(ROOT).parts[:-1])
    found = set()
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join((*base, *(node.module or "").split("."))).strip(".")
            names = [f"{module}.{alias.name}" if module == "shoal" else module for alias in node.names]
        found |= {name.split(".")[1] if "." in name else "__init__" for name in names if name.split(".")[0] == "shoal"}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_directions(path):
    here = part(path)
    assert here in ALLOWED, f"shoal/{here} has no rule: add one here and to docs/architecture.md"
    allowed = ALLOWED[here]
    if allowed is not ANYTHING:
        wrong = imports(path, path.read_text(encoding="utf-8")) - allowed - {here, "api", "errors"}
        assert not wrong, f"shoal/{path.relative_to(ROOT)} may not import shoal.{', shoal.'.join(sorted(wrong))}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_file_is_long(path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= 400, f"shoal/{path.relative_to(ROOT)} has {lines} lines; split it"


@pytest.mark.parametrize(
    "text, expected",
    [
        ("import shoal.ops.returns", {"ops"}),
        ("from shoal.api import Field", {"api"}),
        ("from shoal import api, runtime", {"api", "runtime"}),
        ("import shoal", {"__init__"}),
        ("from . import torsos", {"nets"}),
        ("from .torsos import MLP", {"nets"}),
        ("from .. import ops", {"ops"}),
        ("from ..ops.value import x", {"ops"}),
        ("def f():\n    from shoal.runtime import local", {"runtime"}),
        ("import torch, numpy", set()),
    ],
)
def test_the_reader_of_imports(text, expected):
    assert imports(ROOT / "nets" / "x.py", text) == expected
