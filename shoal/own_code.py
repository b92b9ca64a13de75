"""Code of the user's own, by the name of its module or by its file: whatever goes wrong in it is one sentence."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import cloudpickle

from shoal.errors import UsageError
from shoal.paths import working_directory

_places: dict[str, Path] = {}  # of files by the names they were asked for: an environment may change the directory
VERSION = "_shoal_version"  # attribute of a module that was read from a file: which version of the file it is


def is_file(module: str) -> bool:
    """Return whether this is the path of a file, and not the name of a module."""
    return module.endswith(".py") or os.sep in module


def find(module: str) -> ModuleSpec | None:
    """Return where Python, or else the working directory, has a top-level module of this name; nothing is imported."""
    return importlib.util.find_spec(module) or PathFinder.find_spec(module, [working_directory()])


def origin(name: str) -> str | None:
    """The file that ``module``, ``module:name`` or ``file.py:name`` stands for; nothing is imported to find it."""
    module = name.rpartition(":")[0] or name
    if is_file(module):
        return str(Path(module).resolve())
    with suppress(ImportError, ValueError, AttributeError, OSError):
        spec = find(module.partition(".")[0])
        if spec is not None:
            return spec.origin or os.pathsep.join(spec.submodule_search_locations or ()) or None
    return None


def absolute(source: str) -> str:
    """``source``, with a file by its whole path where it is ``file.py:name``: it means the same from every
    directory."""
    module, colon, name = source.rpartition(":")
    return f"{Path(module).resolve()}:{name}" if colon and is_file(module) else source


def version(module: str) -> str:
    """Tells what a file holds now from what it held before it was edited; "" for the name of a module, and where there
    is no such file."""
    with suppress(OSError):
        return hashlib.sha256(Path(module).read_bytes()).hexdigest() if is_file(module) else ""
    return ""


def forget_edited() -> None:
    """A run begins: files that were edited since they were read are read again. (Within a run they stay as they
    were, and where they were.)"""
    _places.clear()
    for name, module in [*sys.modules.items()]:
        was = vars(module).get(VERSION) if name.startswith("_shoal_") else None
        if was is not None and was != version(str(module.__file__)):
            del sys.modules[name]


def load(module: str, what: str, kind: str = "own") -> ModuleType:
    """The module of this name or in this file. ``what`` is it for, as a message begins, and ``kind`` in a word. Raises
    UsageError if there is none, or it fails."""
    if not is_file(module):
        return by_name(module, what)
    path = _places.get(module) or Path(module).resolve()
    if not path.is_file():
        raise UsageError(f"{what}: there is no file {module!r}")
    _places[module] = path
    name = f"_shoal_{kind}_{path.stem}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path):
        return known
    read = version(str(path))  # before it is: an edit in between is one since then
    loaded = by_path(path, name, what)
    setattr(loaded, VERSION, read)
    return loaded


def by_name(module: str, what: str) -> ModuleType:
    """The module that Python, or the working directory, has under this name. ``what`` is it for, as a message begins.
    Raises UsageError if there is none, or it fails."""
    here = working_directory()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # an installed command has no working directory on its path
    with failing(f"{what} cannot be imported"):
        return importlib.import_module(module)


def by_path(path: Path, name: str, what: str) -> ModuleType:
    """The module in a file, which is called ``name`` from here on. Raises UsageError if it fails, or if a module of
    Python's own has that name."""
    if name in sys.stdlib_module_names:
        raise UsageError(f"{what} cannot be imported: '{name}' is a module of Python's own: rename the file")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # it may import its neighbours
    spec = importlib.util.spec_from_file_location(
        name, path, loader=_Reader(name, str(path)) if path.suffix == ".py" else None
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with failing(f"{what} cannot be imported"):
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(name, None)
            raise
    cloudpickle.register_pickle_by_value(module)  # other processes cannot import it by this name
    return module


class _Reader(SourceFileLoader):
    """Compiles what the file holds now: bytecode in ``__pycache__`` is taken for that of a file edited in the same
    second."""

    def get_code(self, fullname: str) -> CodeType | None:
        return self.source_to_code(self.get_data(self.path), self.path)


def attribute(source: str, what: str) -> Any:
    """Return what ``module:name`` or ``file.py:name`` stands for. Raises UsageError if there is no such thing, or its
    module fails, or it is in the script that runs, which is another one in every process."""
    module, _, name = source.rpartition(":")
    if module == "__main__":
        raise UsageError(f"{what} is in the script that runs, which other processes lack: put it in a file of its own")
    found = load(module, what)
    with failing(f"{what} cannot be imported"):
        if not hasattr(found, name):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(found, name)


MISSING = {  # modules that packages of others import without asking for them -> how they are had
    "gym": "; it was written for gym, which Gymnasium has replaced: pip install gym 'shimmy[gym-v21]'",
    "pkg_resources": "; pip install 'setuptools<81' brings it",
}


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Whatever is raised here is a UsageError that begins with ``what``, and says where in the user's code it was
    raised."""
    try:
        yield
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # whatever a user's module raises
        said = str(error) if isinstance(error, (ImportError, AttributeError)) else f"{type(error).__name__}: {error}"
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        way = MISSING.get(missing or "", "") if (at := place(error)) else ""
        raise UsageError(f"{what}: {said}{at}{way}") from error


def told(error: BaseException) -> str:
    """Return what an exception of the user's code says, in one line, and where it was raised; of one that says nothing
    (``assert level < 3``) the line of code."""
    lines = str(error).strip().splitlines()
    at = _raised(error)
    said = lines[0] if lines else f"{type(error).__name__}{f' at {at.line!r}' if at is not None and at.line else ''}"
    return f"{said}{place(error)}"


def place(error: BaseException) -> str:
    """Return where in somebody else's code it was raised, in brackets; "" if it was not there."""
    return f" ({at})" if (at := raised_at(error)) else ""


def raised_at(error: BaseException) -> str:
    """Return ``FILE, line N`` of the innermost line of ``error`` that is neither Shoal's nor Gymnasium's; "" if there
    is none."""
    at = _raised(error)
    return "" if at is None else f"{at.filename}, line {at.lineno}"


def is_theirs(file: str) -> bool:
    """Return whether the code in ``file`` is somebody else's: not Shoal's, Gymnasium's or Python's own."""
    path = Path(file)
    ours = path.is_relative_to(Path(__file__).parent) or "gymnasium" in path.parts or file == importlib.__file__
    return path.is_file() and not ours


def _raised(error: BaseException) -> traceback.FrameSummary | None:
    if isinstance(error, SyntaxError):  # says so itself
        return None
    return next((at for at in reversed(traceback.extract_tb(error.__traceback__)) if is_theirs(at.filename)), None)
