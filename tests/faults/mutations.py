"""What may become of a file of a run: seeded mutations of JSON, CSV, safetensors and TOML files."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

ANYTHING: list[Any] = [
    None, True, False, 0, -1, 1, 0.5, -0.0, float("nan"), float("inf"), 1e308, "", "x", "\x00", "\x1b[2J\ud800", "../x",
    "/etc/passwd", "os:system", "evil.py:Mine", "linear(1, 0)", "ray://127.0.0.1:1", [], {}, [[]], {"$": "tensor"},
    {"$": "dict", "items": [[1]]}, {"$": "float", "value": "x"}, ["a", "b"], {"a": {"b": 1}},
]  # fmt: skip
HUGE: list[Any] = [2**31, 2**63, 2**64, 10**30, 10**400, -(10**30), "9" * 5000]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to everything within a value of JSON."""
    out = [path]
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in inner:
        out += places(one, (*path, name))
    return out


def change(value: Any, draw: random.Random, sizes: bool = True) -> Any:
    """``value`` with something within it replaced, removed, renamed, repeated or nested. ``sizes``: also by numbers
    that are too large for anything, of which a setting of a configuration may be one that is merely slow."""
    path = draw.choice(places(value)[1:] or [()])
    if not path:
        return draw.choice(ANYTHING)
    holder = value
    for step in path[:-1]:
        holder = holder[step]
    found, kind = holder[path[-1]], draw.random()
    large = sizes and "config" not in path and "values" not in path
    if kind < 0.6:
        holder[path[-1]] = draw.choice(ANYTHING + (HUGE if large else []))
    elif kind < 0.7:
        del holder[path[-1]]
    elif kind < 0.8 and isinstance(holder, dict):
        holder[draw.choice(["x", "", "../x", "\x1b", "$", "steps"])] = holder.pop(path[-1])
    elif kind < 0.9:
        holder[path[-1]] = [found] * 3
    else:
        for _ in range(draw.choice([2, 70, 500])):
            found = draw.choice([[found], {"a": found}])
        holder[path[-1]] = found
    return value


def scramble(data: bytes, draw: random.Random) -> bytes:
    """Bytes that were cut, changed, repeated or written by somebody else."""
    kind, at = draw.randrange(9), draw.randrange(len(data) + 1)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + bytes(draw.randrange(256) for _ in range(draw.choice([1, 8, 300]))) + data[at + 1 :]
    if kind == 2:
        return b""
    if kind == 3:
        return data.decode("latin-1").encode("utf-16")
    if kind == 4:
        return b"\xef\xbb\xbf" + data
    if kind == 5:
        return b"[" * 100_000
    if kind == 6:
        return data + data
    if kind == 7:
        return data.replace(b"\n", draw.choice([b"\r", b"", b"\x00\n", b'"\n']))
    return b"9" * draw.choice([10, 5_000])


def cells(text: str, draw: random.Random) -> str:
    """A CSV file with another cell, another header, a row more or less."""
    rows = [line.split(",") for line in text.splitlines()] or [[""]]
    row = draw.choice(rows)
    kind = draw.randrange(4)
    if kind == 0:
        row[draw.randrange(len(row))] = draw.choice(
            ["x", "", "nan", "inf", "-1", "1e400", "9" * 400, "\x1b[2J", '"', "1_0"]
        )
    elif kind == 1:
        row.append("7")
    elif kind == 2:
        row.pop()
    else:
        rows.remove(row)
    return "\n".join(",".join(row) for row in rows) + draw.choice(["\n", ""])


def tensors(data: bytes, draw: random.Random) -> bytes:
    """A safetensors file whose header says something else, or says that it is of another length."""
    size = int.from_bytes(data[:8], "little")
    kind = draw.randrange(3)
    if kind == 0:
        return draw.choice([0, 1, size + 8, 2**31, 2**63, 2**64 - 1]).to_bytes(8, "little") + data[8:]
    try:
        header = json.dumps(change(json.loads(data[8 : 8 + size]), draw)).encode("utf-8", "surrogatepass")
    except ValueError:
        return data[:8]
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def mutate(file: Path, outside: Path, draw: random.Random) -> None:
    """Do one thing to a file of a run."""
    kind = draw.random()
    if kind < 0.12:
        file.unlink()
        what = draw.randrange(4)
        if what == 0:
            file.symlink_to(draw.choice([outside, Path("/dev/zero"), file, Path("/nowhere")]))
        elif what == 1:
            os.mkfifo(file)
        elif what == 2:
            file.mkdir()
        return
    data = file.read_bytes()
    if kind < 0.3:
        file.write_bytes(scramble(data, draw))
    elif file.suffix == ".json":
        facts = json.loads(data)
        for _ in range(draw.choice([1, 1, 2])):
            facts = change(facts, draw)
        file.write_bytes(json.dumps(facts).encode("utf-8", "surrogatepass"))
    elif file.suffix == ".csv":
        file.write_text(cells(data.decode(), draw), encoding="utf-8")
    elif file.suffix == ".safetensors":
        file.write_bytes(tensors(data, draw))
    else:
        file.write_bytes(scramble(data, draw))
