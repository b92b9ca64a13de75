"""``shoal train --watch``: the page of a run in a process of its own, which ends with the one that trains."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from shoal.types import Values
from shoal.watch import server

HOST = "127.0.0.1"
END_SECONDS = 5.0  # seconds that the server has to end


class Page:
    """The page of the run in ``path``. Called as an observer of the run, it starts the server with the first row, when
    the directory is there; whoever asks before waits for it. ``address`` opens the page."""

    def __init__(self, path: Path) -> None:
        server.require_packages()
        self._path, self._token = path, server.token()
        self._socket = server.listen(HOST, None)
        self._process: subprocess.Popen[bytes] | None = None
        self.address = server.address(self._socket, HOST, self._token)

    def __call__(self, row: Values) -> None:
        if self._process is None:
            descriptor = self._socket.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "shoal.watch.page_process", str(descriptor), str(self._path)],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=[descriptor],
                env={**os.environ, server.TOKEN: self._token}, start_new_session=True,
            )  # fmt: skip

    def close(self) -> None:
        """End the server."""
        self._socket.close()
        if self._process is None:
            return
        assert self._process.stdin is not None, "it was opened"
        self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def page(path: Path) -> Iterator[Page]:
    """The page of a run, within the block."""
    made = Page(path)
    try:
        yield made
    finally:
        made.close()


def main(descriptor: int, path: Path) -> None:
    """Serve until standard input ends, as it does however the process that trains dies."""
    made = server.make_server([path], server.token(), HOST)

    def wait() -> None:
        sys.stdin.buffer.read()
        made.should_exit = True

    threading.Thread(target=wait, daemon=True).start()
    made.run(sockets=[socket.socket(fileno=descriptor)])


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
