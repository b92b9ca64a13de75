"""Functions that take the run options as keywords: their signatures and docstrings are made from the table of
options."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar, cast, get_type_hints, overload

from shoal.settings.field_docs import field_docs
from shoal.settings.run_options import OptionTable, about

Table = ParamSpec("Table")
Own = ParamSpec("Own")
Result = TypeVar("Result", covariant=True)
R = TypeVar("R")


class TakesOptions(Protocol[Table, Own, Result]):
    """A function with its ``Own`` arguments (settings of any name) that also takes the fields of a table as keywords.

    Editors complete both. Type checkers accept an option of the wrong type, because a setting may have any name and
    type; ``RunOptions`` rejects it when the function is called. Options that are copied into each signature would be
    checked, but then a new option would be more than one line.
    """

    @overload
    def __call__(self, first: Any, /, *args: Table.args, **options: Table.kwargs) -> Result: ...
    @overload
    def __call__(self, *args: Own.args, **settings: Own.kwargs) -> Result: ...


def takes_options(
    table: Callable[Table, OptionTable], unset: bool = False
) -> Callable[[Callable[Own, R]], TakesOptions[Table, Own, R]]:
    """Return a decorator for a function that takes the options of ``table`` in its ``**settings``; its signature and
    docstring then list each. unset: the options may change when a run is resumed and default to None."""
    assert isinstance(table, type) and issubclass(table, OptionTable)

    def decorate(function: Callable[Own, R]) -> TakesOptions[Table, Own, R]:
        own, docs, default = inspect.signature(function), field_docs(table), table()
        hints = get_type_hints(table)
        names = [name for name, option in about(table).items() if option.resumable or not unset]
        options = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None if unset else getattr(default, name),
                annotation=hints[name],
            )
            for name in names if name not in own.parameters
        ]  # fmt: skip
        *before, rest = own.parameters.values()
        function.__signature__ = own.replace(parameters=[*before, *options, rest])  # type: ignore[attr-defined]
        lines = [textwrap.fill(f"{each.name}: {docs[each.name]}", 116, subsequent_indent="    ") for each in options]
        told = "\n".join(["Options of the run:", "", *lines])
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{told}\n"
        return cast("TakesOptions[Table, Own, R]", function)

    return decorate
