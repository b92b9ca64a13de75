"""Whatever the page's port is sent, or not sent: the connection is closed, the log has a line, others are served."""

from __future__ import annotations

import contextlib
import logging
import logging.config
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("uvicorn", reason="needs the extra watch")
pytest.importorskip("plotly", reason="needs the extra watch")

from shoal.api import UsageError
from shoal.cli import main as cli
from shoal.watch import connection, server
from watch.runs import write_run

HOST = "127.0.0.1"
ASKED = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
SENT = {
    "nothing": b"", "half a line": b"GET / HT", "half a head": ASKED, "noise": random.Random(0).randbytes(5_000),
    "TLS": b"\x16\x03\x01\x02\x00\x01", "zeros": bytes(100_000), "a head of 5 MB": ASKED + b"A: " + b"a" * 5_000_000,
    "a body that never comes": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999999\r\n\r\nabc",
    "a length of 5,000 digits": ASKED + b"Content-Length: " + b"9" * 5_000 + b"\r\n\r\n",
    "a negative length": ASKED + b"Content-Length: -1\r\n\r\n",
    "a chunk of 2**64 bytes": ASKED + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\nabc",
    "a web socket": ASKED + b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: a\r\n\r\n",
    "a request and half of the next": ASKED + b"\r\n" + ASKED,
    "half a request after an answer": ASKED + b"\r\n" + b"GET / HT",
}  # fmt: skip


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the server logs."""
    found: list[str] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: found.append(record.getMessage()))
    monkeypatch.setattr(logging.config, "dictConfig", lambda config: None)  # uvicorn's own, which writes to a terminal
    for name in ("uvicorn.error", "asyncio"):
        monkeypatch.setattr(logging.getLogger(name), "filters", [])
    monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)  # a server of an earlier test has cleared it
    logging.getLogger().addHandler(handler)
    yield found
    logging.getLogger().removeHandler(handler)


@pytest.fixture
def where(tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """The address of a server in a thread of this process, which waits for a request for a moment only."""
    monkeypatch.setattr(connection, "WAIT_SECONDS", 0.05)
    write_run(tmp_path / "runs" / "one")
    made, sock = server.make_server([tmp_path / "runs"], "a" * 32, HOST), server.listen(HOST, 0)
    thread = threading.Thread(target=made.run, args=([sock],))
    thread.start()
    yield sock.getsockname()
    made.should_exit = True
    thread.join()


def answer(place: tuple[str, int], sent: bytes) -> bytes:
    """All that comes back until the server closes the connection."""
    found = b""
    with socket.create_connection(place) as stranger, contextlib.suppress(ConnectionError):
        stranger.settimeout(30.0)
        stranger.sendall(sent)
        while part := stranger.recv(65_536):
            found += part
    return found


@pytest.mark.parametrize("name", SENT)
def test_a_connection_without_a_whole_request_is_closed(name: str, where: tuple[str, int], lines: list[str]) -> None:
    before = psutil.Process().memory_info().rss
    for _ in range(3):
        answer(where, SENT[name])
    assert len(lines) == 1, lines
    assert b"403" in answer(where, ASKED + b"Connection: close\r\n\r\n"), "others are answered as ever"
    assert psutil.Process().memory_info().rss - before < 50 * 2**20


def test_the_connection_that_is_silent_for_longest_makes_room_for_others(
    where: tuple[str, int], lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many say nothing, whoever asks is answered."""
    monkeypatch.setattr(connection, "WAIT_SECONDS", 3600.0)
    monkeypatch.setattr(connection, "MOST", 2)
    with contextlib.ExitStack() as held:
        strangers = [held.enter_context(socket.create_connection(where)) for _ in range(5)]
        for stranger in strangers[:3]:
            stranger.settimeout(30.0)
            with contextlib.suppress(ConnectionError):
                assert stranger.recv(1) == b"", "it is closed"
        assert b"403" in answer(where, ASKED + b"Connection: close\r\n\r\n")
        strangers[4].sendall(ASKED + b"\r\n")
        assert b"403" in strangers[4].recv(65_536), "who was there last is answered"
    assert lines == [connection.FULL % 2]


@pytest.mark.parametrize("host", ["", "a\0b", "\ud800", "\u00fc" * 70, "a" * 300, "..", "::g"])
def test_a_host_that_cannot_be_one_is_refused_in_one_sentence(host: str) -> None:
    with pytest.raises(UsageError, match=r"listen on|expects an address") as refused:
        server.listen(host, 0)
    assert len(str(refused.value)) < 400 and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "host, told", [("127.0.0.1", False), ("localhost", False), ("127.0.0.2", True), ("0.0.0.0", True)]
)
def test_who_listens_where_others_are_is_told_what_they_can_read(
    host: str, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(self: object, sockets: list[socket.socket]) -> None:
        heard.extend(sock.getsockname() for sock in sockets)
        sockets[0].close()

    heard: list[tuple[str, int]] = []
    monkeypatch.setattr("shoal.watch.quiet.QuietServer.run", run)
    assert cli.main(["watch", str(write_run(tmp_path / "r")), "--host", host]) == 0
    out, err = capsys.readouterr()
    ((name, port),) = heard
    assert name == {"localhost": HOST}.get(host, host) and f":{port}/?token=" in out
    assert (f"whoever reaches {host} and has this address can read these runs; nothing is encrypted" in err) == told
    assert (f"ssh -L {port}:127.0.0.1:{port} HOST" in err) == told and (told or not err)


def test_a_log_has_one_line_a_minute_of_a_kind_and_counts_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    now, sparse = [1000.0], connection.Sparse()
    monkeypatch.setattr(connection.time, "monotonic", lambda: now[0])

    def said(message: str, *args: object) -> str | None:
        record = logging.LogRecord("x", logging.WARNING, "", 0, message, args, None)
        return record.getMessage() if sparse.filter(record) else None

    assert [said("bad %d", n) for n in range(3)] == ["bad 0", None, None] and said("other") == "other"
    now[0] += connection.LOG_SECONDS
    assert said("bad %d", 4) == "bad 4 (2 more like it since the last line)" and said("bad %d", 5) is None
