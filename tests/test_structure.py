"""The directions of imports, and the size of files. See docs/architecture.md, "Packages"."""

import ast
import re
from configparser import ConfigParser
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "shoal"
FILES = sorted(ROOT.rglob("*.py"))
ANYTHING = None
LIMIT = 350  # lines of a file
CONFIG = ROOT.parent / "scripts" / "mypy-scripts.ini"

# Part of shoal/ -> the parts it may import. Every part may import itself, api, errors, types and words.
ALLOWED: dict[str, set[str] | None] = {
    "api": {"arrays", "groups"},
    "arrays": set(),
    "beside": {"paths"},
    "errors": set(),
    "extras": set(),
    "types": set(),
    "words": set(),
    "groups": {"arrays"},
    "jit": set(),
    "machine": set(),
    "on_device": set(),
    "paths": set(),
    "transfer": set(),
    "dependencies": set(),
    "own_code": {"paths"},
    "own_settings": set(),
    "untrusted": {"held"},
    "held": set(),
    "terminal": {"untrusted"},
    "fast": {"jit"},
    "ops": {"fast"},
    "nets": {"ops", "fast", "own_code", "transfer"},
    "learning": {"ops", "nets", "fast", "settings", "transfer"},
    "roles": {"ops", "on_device", "transfer"},
    "envs": {"jit", "settings", "own_code", "own_settings", "extras", "paths", "on_device", "untrusted"},
    "registry": {"own_code", "settings", "untrusted"},
    "replay": {"jit", "own_code", "registry"},
    "demonstrations": {"envs", "own_code", "extras", "untrusted"},
    "program": {"replay", "untrusted"},  # replay.limiter: whether a ratio can be satisfied
    "settings": {"untrusted"},
    "topology": {"program", "roles", "replay", "learning", "nets", "envs", "ops", "settings", "own_code", "machine"},
    "systems": {"topology", "program", "roles", "replay", "demonstrations", "learning", "nets", "envs", "ops", "fast"}
    | {"settings", "machine", "own_code", "transfer"},  # fast: see test_a_system_knows_of_speed_only_its_losses_twin
    "metering": {"untrusted"},
    "records": {"metering", "program", "machine", "paths", "own_code", "untrusted", "extras", "registry", "held"},
    "runtime": {"program", "metering", "records", "untrusted"},
    "serial": {"runtime", "program", "replay", "metering", "records", "own_settings", "untrusted"},
    "shm": {"runtime", "program", "replay", "metering", "untrusted"},
    "local": {"shm", "runtime", "program", "metering", "records", "systems", "fast", "jit", "machine", "paths"}
    | {"untrusted", "held", "beside"},
    # systems, fast: local.preload
    "ray_runtime": {"local", "shm", "runtime", "program", "metering", "records", "extras", "held"},
    "torchrun": {"local", "shm", "serial", "runtime", "program", "metering", "records", "untrusted"},
    "policy": {"systems", "topology", "envs", "roles", "nets", "settings", "paths", "own_settings", "extras", "held"}
    | {"untrusted"},
    "zoo": {"settings", "untrusted"},
    "simulation": {"program", "replay", "metering", "extras", "untrusted"},
    "planning": {"simulation", "local", "shm", "runtime", "program", "replay", "run", "settings", "systems", "envs"}
    | {"roles", "metering", "records", "machine", "paths", "terminal", "untrusted", "jit"},
    "run": ANYTHING,  # the front door
    "watch": {"program", "metering", "records", "paths", "untrusted", "extras", "held"},  # reads the files of runs
    "analysis": {"run", "records", "metering", "settings", "systems", "paths", "untrusted", "terminal"} | {"extras"},
    "cli": ANYTHING,
    "building": ANYTHING,  # what authors of systems import
    "__init__": ANYTHING,
    "__main__": {"cli", "dependencies"},
}


def part(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def imported(path: Path, text: str) -> set[str]:
    """The dotted names that ``path`` imports, anywhere in it: inside functions and TYPE_CHECKING too."""
    package = ("shoal", *path.relative_to(ROOT).parts[:-1])
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join((*base, *(node.module or "").split("."))).strip(".")
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] == "shoal"}


def imports(path: Path, text: str) -> set[str]:
    """The parts of shoal that ``path`` imports."""
    return {name.split(".")[1] if "." in name else "__init__" for name in imported(path, text)}


def module(path: Path) -> str:
    return ".".join(("shoal", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Nodes of a directed graph that lead from one to the next and back to the first; none if there is no circle."""
    done: set[str] = set()

    def visit(node: str, way: list[str]) -> list[str]:
        if node in way:
            return [*way[way.index(node) :], node]
        if node in done:
            return []
        for target in sorted(graph.get(node, ())):
            if found := visit(target, [*way, node]):
                return found
        done.add(node)
        return []

    return next((found for node in sorted(graph) if (found := visit(node, []))), [])


@pytest.mark.parametrize("here", sorted({part(path) for path in FILES}))
def test_directions(here):
    assert here in ALLOWED, f"shoal/{here} has no rule: add one here and to docs/architecture.md"
    allowed, told = ALLOWED[here], []
    for path in (path for path in FILES if part(path) == here and allowed is not ANYTHING):
        assert allowed is not None
        wrong = imports(path, path.read_text(encoding="utf-8")) - allowed - {here, "api", "errors", "types", "words"}
        told += [f"shoal/{path.relative_to(ROOT)} may not import shoal.{name}" for name in sorted(wrong)]
    assert not told, "\n".join(told)


def test_no_file_imports_itself_on_a_detour():
    """Neither inside a folder nor across: whoever reads a file can read what it imports first."""
    files = {module(path): path for path in FILES}
    graph = {}
    for name, path in files.items():
        names = imported(path, path.read_text(encoding="utf-8"))
        graph[name] = {n if n in files else n.rpartition(".")[0] for n in names} - {name}
    found = circle(graph)
    assert not found, " imports ".join(found)


def test_the_table_of_directions_has_no_circle():
    assert not circle({part: allowed for part, allowed in ALLOWED.items() if allowed is not ANYTHING})


def test_mypy_reads_every_test_and_the_neighbours_that_it_imports() -> None:
    """A module that mypy does not find has no types, and it says nothing. Relative imports it always finds."""
    config = ConfigParser()
    config.read(CONFIG)
    settings = config["mypy"]
    assert settings["files"] == "examples, benchmarks, tests" and settings["exclude"] == "^benchmarks/peers/"
    assert config.sections() == ["mypy", "mypy-ray.*"], "no file of ours has rules of its own"
    written = settings["mypy_path"].replace(",", " ").split()  # before the path of this checkout, which may have spaces
    folders = [folder.replace("$MYPY_CONFIG_FILE_DIR", str(CONFIG.parent)) for folder in written]
    tests = sorted((ROOT.parent / "tests").rglob("*.py"))
    for path in tests:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            for file in (f"{name.replace('.', '/')}.py" for name in names if not name.startswith(("shoal", "torch"))):
                if any(one.as_posix().endswith(f"/{file}") for one in tests):
                    found = [folder for folder in folders if Path(folder, file).is_file()]
                    assert len(found) == 1, f"{path.name} imports {file}, which is in {found} of {CONFIG.name}"


def test_no_file_is_long():
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    told = [f"shoal/{path.relative_to(ROOT)} has {n} lines; split it" for path, n in lines.items() if n > LIMIT]
    assert not told, "\n".join(told)


@pytest.mark.parametrize(
    "graph, expected",
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b", "c"}, "b": {"c"}, "c": {"d"}}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, ["b", "c", "b"]),
        ({"a": {"a"}}, ["a", "a"]),
    ],
)
def test_the_finder_of_circles(graph, expected):
    assert circle(graph) == expected


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


ROOMS = ("systems", "learning")
# System -> files and lines of ``systems`` and ``learning`` that its file leads to: what one opens beside its paper
CLOSURES = {"dqn": (5, 670), "recurrent_ppo": (5, 700), "r2d2": (5, 700), "impala": (5, 650)}


def closure(system: str) -> set[Path]:
    """The files of ``systems`` and ``learning`` that a system's file imports, and these, and so on; its own is one."""
    files = {module(path): path for path in FILES if part(path) in ("systems", "learning")}
    files = {name: path for name, path in files.items() if path.name != "__init__.py" or path.parent.name not in ROOMS}
    found: set[Path] = set()
    todo = [f"shoal.systems.{system}"]
    while todo:
        path = files.get(todo.pop())
        if path is not None and path not in found:
            found.add(path)
            names = imported(path, path.read_text(encoding="utf-8"))
            todo += [*names, *(name.rpartition(".")[0] for name in names)]
    return found


@pytest.mark.parametrize("system", CLOSURES)
def test_a_system_is_read_in_a_few_files(system: str) -> None:
    files = closure(system)
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    names = ", ".join(sorted(str(path.relative_to(ROOT)) for path in files))
    most_files, most_lines = CLOSURES[system]
    assert len(files) <= most_files and lines <= most_lines, f"{lines} lines: {names}"


@pytest.mark.parametrize("path", [p for p in FILES if part(p) == "systems"], ids=lambda p: str(p.relative_to(ROOT)))
def test_a_system_knows_of_speed_only_its_losses_twin(path: Path) -> None:
    """What it imports of ``fast`` is the compiled twin of a loss that stands in this file; each names the other."""
    text = path.read_text(encoding="utf-8")
    here = re.escape(module(path).removeprefix("shoal."))
    for name in imported(path, text):
        if name.startswith("shoal.fast."):
            twin = (ROOT / "fast" / f"{name.split('.')[2]}.py").read_text(encoding="utf-8")
            loss = re.search(rf"``{here}\.(\w+)``", ast.get_docstring(ast.parse(twin)) or "")
            assert loss and f"def {loss[1]}(" in text, (
                f"{name} does not say of which loss of {path.name} it is the twin"
            )
            assert f"``{name.removeprefix('shoal.')}." in text, f"no docstring in {path.name} names the twin {name}"
