"""The one kind of port that Shoal's own processes open: torch's TCP store, to which anybody may send anything. What is
read from it is data."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import socket
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import psutil
import pytest
import torch

from shoal.api import Field, ShoalError
from shoal.program.program import Channel
from shoal.ray_runtime.collective import Store
from shoal.records.checkpoint_state import from_bytes, to_bytes
from shoal.torchrun.ends import BoardEnd
from shoal.torchrun.group import Group

HELLO = struct.pack("<BI", 0, 0x3C85F7CE)  # what torch's clients begin with: VALIDATE, and a number
SENT = {
    "another protocol": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "noise": random.Random(0).randbytes(5_000),
    "half": HELLO[:3],
    "a key of 4 EiB": HELLO + b"\x01" + struct.pack("<Q", 2**62),
    "a value of 1 TiB": HELLO + b"\x01" + struct.pack("<Q", 1) + b"k" + struct.pack("<Q", 2**40),
    "2**60 keys": HELLO + b"\x0b" + struct.pack("<Q", 2**60),
}  # fmt: skip


@pytest.mark.parametrize("name", SENT)
def test_the_store_is_not_harmed_by_what_it_is_sent(name: str) -> None:
    store = Store("127.0.0.1")
    before = psutil.Process().memory_info().rss
    with socket.create_connection(store.where) as stranger:
        stranger.sendall(SENT[name])
        stranger.shutdown(socket.SHUT_WR)
        stranger.settimeout(30.0)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b"", "the connection is closed"
    store._store.set("key", "value")
    assert store._store.get("key") == b"value", "others are served as ever"
    assert psutil.Process().memory_info().rss - before < 100 * 2**20
    listening = [c.laddr.ip for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


STATE = {
    "ranks": (1, 2.5, float("nan"), None, "x", True), "kept": {3: 4}, "parameters": torch.arange(3.0),
    "rows": np.zeros((2, 0, 3), np.float16), "number": np.array(3),
}  # fmt: skip


def test_what_a_rank_tells_the_others_arrives_as_it_was() -> None:
    found = from_bytes(to_bytes(STATE))
    assert found["ranks"][:2] == (1, 2.5) and found["ranks"][2] != found["ranks"][2] and found["ranks"][3:] == (
        None, "x", True,
    )  # fmt: skip
    assert found["kept"] == {3: 4} and torch.equal(found["parameters"], torch.arange(3.0))
    assert (found["rows"].shape, found["rows"].dtype, found["number"]) == ((2, 0, 3), np.float16, 3)


@pytest.mark.parametrize(
    "message",
    [
        b"", bytes(8), b"\xff" * 100, to_bytes(STATE)[:-3], to_bytes(STATE)[:40], to_bytes(STATE) + b"x",
        (2**62).to_bytes(8, "little") + b"[]", (22).to_bytes(8, "little") + b'{"$":"array","name":1}',
        to_bytes(STATE)[:8] + b"[" * 100_000,
        (24).to_bytes(8, "little") + b'{"$":"array","name":"x"}' + (2**62).to_bytes(8, "little"),
    ],
)  # fmt: skip
def test_a_message_of_a_stranger_is_refused(message: bytes) -> None:
    with pytest.raises(ShoalError, match="a message is damaged"):
        from_bytes(message)


class Held:
    """In place of torch's store."""

    def __init__(self, value: bytes) -> None:
        self.value = value

    def set(self, key: str, value: bytes) -> None: ...

    def check(self, keys: list[str]) -> bool:
        return True

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.value] * len(keys)


@pytest.mark.parametrize("ask", ["share", "exchange", "board"])
def test_a_pickle_in_the_store_is_not_loaded(ask: str, tmp_path: Path) -> None:
    group: Any = object.__new__(Group)
    group.place, group._said = SimpleNamespace(first=False, rank=1, world=2), 0
    group._store = Held(pickle.dumps(Bomb(tmp_path / "exploded")))
    board = Channel("progress", "board", {"done": Field((), "int64")})
    calls = {
        "share": lambda: group.share(), "exchange": lambda: group.exchange(1),
        "board": lambda: BoardEnd(cast("Group", group), board, "0").get(),
    }  # fmt: skip
    with pytest.raises(ShoalError, match="damaged"):
        calls[ask]()
    assert not (tmp_path / "exploded").exists()
