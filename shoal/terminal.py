"""Standard streams that show text: whatever a file says that is printed, a terminal does nothing but show it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from shoal.untrusted import one_line, printable

OFF_TERMINAL = 160  # columns of what Shoal lays out where no terminal shows it


class Plain:
    """A text stream whose control characters are written out; all else is the stream's own."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
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
