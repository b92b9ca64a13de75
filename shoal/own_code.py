"""Code of the user's own, by the name of its module or by its file: whatever goes wrong in it is one sentence."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from shoal.api import UsageError


def by_name(module: str, what: str) -> ModuleType:
    """The module that Python, or the working directory, has under this name. ``what`` is it for, as a message begins.
    Raises UsageError if there is none, or it fails."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())  # an installed command has no working directory on its path
    with _importing(what):
        return importlib.import_module(module)


def by_path(path: Path, name: str, what: str) -> ModuleType:
    """The module in a file, which is called ``name`` from here on. Raises UsageError if it fails, or if a module of
    Python's own has that name."""
    if name in sys.stdlib_module_names:
        raise UsageError(f"{what} cannot be imported: '{name}' is a module of Python's own: rename the file")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # it may import its neighbours
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _importing(what):
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(name, None)
            raise
    cloudpickle.register_pickle_by_value(module)  # other processes cannot import it by this name
    return module


def attribute(source: str, what: str) -> Any:
    """What ``module:name`` stands for. Raises UsageError if there is no such thing, or its module fails."""
    module, _, name = source.rpartition(":")
    found = by_name(module, what)
    with _importing(what):
        return getattr(found, name)


@contextmanager
def _importing(what: str) -> Iterator[None]:
    try:
        yield
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # whatever a user's module raises
        told = str(error) if isinstance(error, (ImportError, AttributeError)) else f"{type(error).__name__}: {error}"
        raise UsageError(f"{what} cannot be imported: {told}{_place(error)}") from error


def _place(error: BaseException) -> str:
    """Where in the user's code it was raised, if it was there."""
    if isinstance(error, SyntaxError):  # says so itself
        return ""
    at = traceback.extract_tb(error.__traceback__)[-1]
    here = (__file__, importlib.__file__)
    return "" if at.filename.startswith("<") or at.filename in here else f" ({at.filename}, line {at.lineno})"
