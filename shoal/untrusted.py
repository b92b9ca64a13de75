"""Files that somebody else may have written: what they hold is bounded, where they lie is looked at, and what is shown
of them is text."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import os
import re
import reprlib
import stat
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import IO, Any, BinaryIO, TextIO

from shoal.errors import UsageError
from shoal.held import guarded, held, near_of, open_below, stay_below

RUN_FORMAT = (
    2  # of the files of a run and of saved policies; since 2 a policy acts in [-1, 1], whatever the environment's box
)
MAX_TEXT_BYTES = 1 << 26  # bytes of a file that is read as text: those of a run are smaller by far
MAX_LINE = 1 << 20  # characters, or bytes, of a line of a table
MAX_COLUMNS = 1_000  # of a table that is read whole
DEEPEST = 64  # dicts and lists within one another, and folders
WIDEST = 1 << 128  # integers: the state of a random generator is the widest that Shoal writes
MAX_COUNTER = 1 << 53  # of a counter: what a float still holds exactly
MAX_QUOTED_CHARACTERS = 200  # characters of a value in a sentence
_LINKS = {errno.ELOOP, errno.ENOTDIR}  # what an open says of a link that it may not follow, as a file or as a folder
FOREIGN = ("wandb",)  # folders of a run that another program fills, with links of its own
# What moves the cursor, talks to the terminal, changes the direction of text or is no character, so that no file of
# UTF-8 or XML takes it; a line ends with \n, a column with \t
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)
_BREAKS = re.compile(r"[\n\t]")
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = MAX_QUOTED_CHARACTERS
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 20


class LeadsElsewhere(UsageError):
    """A link, or another thing than a folder or a file, in a directory that somebody else may have written."""


def printable(text: str) -> str:
    """``text`` with control characters as Python would write them: a terminal shows it and does nothing else."""
    return _CONTROLS.sub(_escaped, text)


def one_line(text: str) -> str:
    """``printable``, on one line."""
    return _BREAKS.sub(_escaped, printable(text))


def markup(text: str) -> str:
    """``one_line``, as HTML or XML shows it."""
    return escape(one_line(text))


def excerpt(error: object) -> str:
    """Return a reader's error, which may quote a whole file, on one line of at most ``MAX_QUOTED_CHARACTERS``."""
    text = one_line(str(error))
    return text if len(text) <= MAX_QUOTED_CHARACTERS else f"{text[:MAX_QUOTED_CHARACTERS]}..."


def brief(value: object) -> str:
    """A value as a sentence quotes it: by ``repr``, on one line and not longer than ``MAX_QUOTED_CHARACTERS``."""
    return excerpt(_SHORT.repr(value))


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


# ------------------------------------------------------------------------------------- reading
def open_bytes(path: Path, links: bool = True) -> BinaryIO:
    """Open a file for reading. ValueError for a folder, a pipe or a device: nothing waits for whoever writes into a
    pipe. UsageError for a link below a directory that does not follow them (``stay_below``); without ``links``,
    for any."""
    descriptor = _opened(path, links)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("it is no file")
    return open(descriptor, "rb")


def _opened(path: Path, links: bool) -> int:
    """The descriptor of what is at ``path``, reached as the nearest directory above it that was looked at says."""
    whole = Path(os.path.abspath(path))
    near = near_of(whole) or (None if links else whole.parent)
    if near is None:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return open_below(near, *whole.relative_to(near).parts)
    except OSError as error:
        if error.errno in _LINKS:
            raise _astray(path, "a symbolic link, or lies behind one") from None
        error.filename = str(path)
        raise


@contextlib.contextmanager
def to_write(path: Path) -> Iterator[Path]:
    """Give ``path``, whose folder is made if there is none, as it is reached within the block: below a directory that
    follows no links (``stay_below``) also of what becomes a link meanwhile, or else where its links lead now. OSError
    for a link there."""
    near = near_of(Path(os.path.abspath(path)))
    if near is None:
        place = path.resolve()
        place.parent.mkdir(parents=True, exist_ok=True)
        yield place
        return
    *names, last = Path(os.path.abspath(path)).relative_to(near).parts
    with held(near.resolve(), *names, make=True) as folder:
        yield folder / last


@contextlib.contextmanager
def reached(folder: Path) -> Iterator[Path]:
    """Give the directory ``folder`` as it is reached within the block: below a directory that follows no links
    (``stay_below``) it stays the same, whatever takes its place. UsageError for a link there."""
    try:
        with guarded(folder) as there:
            yield there
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _astray(folder, "a symbolic link, or lies behind one") from None
        raise


@contextlib.contextmanager
def by_name(path: Path) -> Iterator[str]:
    """Open a file as ``open_bytes`` does, and give a name for it to those who open files by theirs. Raises as it."""
    with open_bytes(path) as file:
        name = f"/proc/self/fd/{file.fileno()}"
        yield name if os.path.exists(name) else str(path)  # a system without /proc


def open_text(path: Path) -> TextIO:
    """Open a file of text in UTF-8, its ends of lines as they are. ValueError as of ``open_bytes``."""
    return io.TextIOWrapper(open_bytes(path), encoding="utf-8", newline="")


def read_text(path: Path, links: bool = True) -> str:
    """Read a text file. ValueError where it is larger than ``MAX_TEXT_BYTES``, no UTF-8 or no file; UsageError as of
    ``open_bytes``."""
    with io.TextIOWrapper(open_bytes(path, links), encoding="utf-8") as file:
        found = os.fstat(file.fileno())
        if found.st_size > MAX_TEXT_BYTES:
            raise ValueError(f"it has {found.st_size:,} bytes, at most {MAX_TEXT_BYTES:,} are read")
        return file.read()


def bounded_lines(file: IO[str]) -> Iterator[str]:
    """The lines of a text file. ValueError at one that is longer than ``MAX_LINE``: a file with holes takes no space on
    a disk, and all that there is in memory."""
    while line := file.readline(MAX_LINE):
        if len(line) == MAX_LINE and not line.endswith("\n"):
            raise ValueError(f"it has a line of more than {MAX_LINE:,} characters")
        yield line


def table_rows(text: str) -> list[dict[str, str]]:
    """Return the rows of a CSV text, each by the names in its first line. ValueError for more than ``MAX_COLUMNS`` of
    them: a dict of each row takes a hundred times the memory of the file."""
    table = csv.DictReader(io.StringIO(text))
    names = table.fieldnames or ()
    if len(names) > MAX_COLUMNS:
        raise ValueError(f"it has {len(names):,} columns, at most {MAX_COLUMNS:,} are read")
    return list(table)


def parse_json(text: str) -> Any:
    """Parse a JSON text. ValueError where it is none, is nested beyond ``DEEPEST`` or has an integer of more than
    128 bits."""
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested more than {DEEPEST} deep") from None
    level: list[Any] = [data]
    for _ in range(DEEPEST):
        if not level:
            return data
        if any(isinstance(value, int) and not -WIDEST < value < WIDEST for value in level):
            raise ValueError("it has an integer of more than 128 bits")
        level = [inner for value in level for inner in _inside(value)]
    raise ValueError(f"it is nested more than {DEEPEST} deep")


def counter(value: Any) -> int:
    """A count that a file holds. ValueError for what is none: not an integer from 0 to ``MAX_COUNTER``."""
    if type(value) is not int or not 0 <= value <= MAX_COUNTER:
        raise ValueError(f"expected a count, found {brief(value)}")
    return value


def number(value: Any) -> float:
    """A number that a file holds, which need not be finite. ValueError for anything else."""
    if type(value) not in (int, float):
        raise ValueError(f"expected a number, found {brief(value)}")
    return float(value)


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


# ----------------------------------------------------------------------------------- directories
def require_plain(path: Path, trust: bool, writing: bool = False) -> None:
    """UsageError unless the directory ``path``, which may itself be a link, holds nothing but folders and files:
    through a link what is read, written or removed lies elsewhere, and a pipe or a device waits for ever. ``writing``:
    neither files that have another name as well (hard links). ``trust``: the user says that it is theirs. What is read
    there afterwards is held to the same (``stay_below``)."""
    stay_below(path, plain=not trust)
    if trust:
        return
    for entry in _entries(path):
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # a run that goes on has removed it meanwhile
            continue
        if stat.S_ISLNK(found.st_mode):
            kind = "a symbolic link"
        elif stat.S_ISREG(found.st_mode):
            kind = "a file with another name elsewhere (a hard link)" if writing and found.st_nlink > 1 else ""
        else:
            kind = "" if stat.S_ISDIR(found.st_mode) else "a pipe, a socket or a device"
        if kind:
            raise _astray(entry.path, kind)


def _astray(path: str | Path, kind: str) -> LeadsElsewhere:
    return LeadsElsewhere(
        f"{brief(str(path))} is {kind}, which a run of somebody else may lead astray with; if it is yours, say --trust "
        "(in Python: trust=True)"
    )


def _entries(path: Path) -> Iterator[os.DirEntry[str]]:
    """Everything below a directory; nothing within a link, nor in a folder of another program's. UsageError beyond
    ``DEEPEST`` folders within one another: what copies or removes them calls itself for each."""
    waiting = [(os.fspath(path), 0)]
    while waiting:
        folder, depth = waiting.pop()
        if depth > DEEPEST:
            raise LeadsElsewhere(f"'{path}' holds more than {DEEPEST} folders within one another, as no run does")
        try:
            with os.scandir(folder) as entries:
                found = list(entries)
        except FileNotFoundError:
            if not depth:
                raise
            continue  # a run that goes on has removed it meanwhile
        for entry in found:
            yield entry
            if entry.is_dir(follow_symlinks=False) and (depth or entry.name not in FOREIGN):
                waiting.append((entry.path, depth + 1))
