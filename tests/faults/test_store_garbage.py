"""The one kind of port that Shoal's own processes open: torch's TCP store, to which anybody may send anything."""

from __future__ import annotations

import contextlib
import random
import socket
import struct

import psutil
import pytest

from shoal.ray_runtime.collective import Store

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
