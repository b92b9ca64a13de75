"""Standard streams that show text: whatever a file says that is printed, a terminal does nothing but show it."""

from __future__ import annotations

import contextlib
import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

from shoal.untrusted import one_line, printable

OFF_TERMINAL = 160  # columns of what Shoal lays out where no terminal shows it
RESET = "\x1b[0m"  # what colorama, which numba loads where it is installed, writes when the process ends


class Plain:
    """A text stream whose control characters are written out; all else is the stream's own."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        if text != RESET:  # nothing here has a style
            self.stream.write(printable(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def styled(stream: Any) -> Any:
    """The stream beneath, for what Shoal itself draws with colours and moves of the cursor: whoever writes there makes
    text of what a file says (``untrusted.one_line``)."""
    return stream.stream if isinstance(stream, Plain) else stream


def cell(text: str) -> Any:
    """``text`` as rich shows it on one line, which takes brackets in a ``str`` for styles and links."""
    from rich.text import Text

    return Text(one_line(text))


def print_table(table: Any) -> None:
    """Print a table of rich; where the terminal is too narrow for its words, row after row, with its heads."""
    from rich.console import Console
    from rich.text import Text

    wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else OFF_TERMINAL
    console = Console(file=styled(sys.stdout), width=wide)  # rich itself takes every dumb terminal for 80 columns wide
    if console.measure(table, options=console.options.update_width(10_000)).minimum <= wide:
        console.print(table)
        return

    def plain(shown: Any) -> str:
        return (shown if isinstance(shown, Text) else console.render_str(str(shown))).plain

    if table.title:
        print(textwrap.fill(plain(table.title), wide))
    heads = [plain(column.header) for column in table.columns]
    for row in zip(*(map(plain, column.cells) for column in table.columns), strict=True):
        said = [f"{head} {text}".strip() for head, text in zip(heads, row, strict=True) if text]
        print(textwrap.fill(", ".join(said), wide, subsequent_indent="  "))


@contextlib.contextmanager
def plain_streams() -> Iterator[None]:
    """Standard output and error are ``Plain`` within the block."""
    before = sys.stdout, sys.stderr
    out, err = Plain(sys.stdout), Plain(sys.stderr)
    sys.stdout, sys.stderr = out, err
    try:
        yield
    finally:
        if (sys.stdout, sys.stderr) == (out, err):
            sys.stdout, sys.stderr = before
