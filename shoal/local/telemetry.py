"""One replica's pipe to its supervisor: framed pickles that never make the sender wait.

Each replica has a pipe of its own, so that killing one inside a write harms no other.
"""

from __future__ import annotations

import os
import pickle
import select
import struct
import time
from typing import Any

Message = tuple[str, Any]  # its kind, and what it says
_LENGTH = struct.Struct("<I")


class Outbox:
    """The sending end. What does not fit into the pipe stays here."""

    def __init__(self, fd: int) -> None:
        self._fd, self._left = fd, b""
        os.set_blocking(fd, False)

    def idle(self) -> bool:
        """True when everything sent so far is in the pipe."""
        if self._left:
            self._push()
        return not self._left

    def send(self, message: Message) -> None:
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        self._left += _LENGTH.pack(len(data)) + data
        self._push()

    def finish(self, seconds: float) -> None:
        """Wait at most ``seconds`` for the rest to leave."""
        end, room = time.monotonic() + seconds, select.poll()  # not select.select, which knows descriptors below 1,024
        room.register(self._fd, select.POLLOUT)
        while not self.idle() and time.monotonic() < end:
            room.poll(50)

    def _push(self) -> None:
        try:
            while self._left:
                self._left = self._left[os.write(self._fd, self._left) :]
        except BlockingIOError:
            pass
        except OSError:  # the supervisor is gone
            self._left = b""


class Inbox:
    """The receiving end."""

    def __init__(self, fd: int) -> None:
        self.fd, self._data, self.open = fd, b"", True
        os.set_blocking(fd, False)

    def receive(self) -> list[Message]:
        """Every whole message that has arrived; ``open`` is False after the end of the stream."""
        try:
            while chunk := os.read(self.fd, 1 << 16):
                self._data += chunk
            self.open = False
        except BlockingIOError:
            pass
        out: list[Message] = []
        at = 0
        while len(self._data) - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._data, at)
            if len(self._data) - at - _LENGTH.size < size:
                break
            out.append(pickle.loads(self._data[at + _LENGTH.size : at + _LENGTH.size + size]))
            at += _LENGTH.size + size
        self._data = self._data[at:]
        return out
