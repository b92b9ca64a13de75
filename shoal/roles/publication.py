"""Publish parameters from a learner to a channel, from a GPU with an asynchronous copy."""

from __future__ import annotations

from shoal import transfer
from shoal.api import ParamsWriter, Tensors


class Publication:
    """Publishes parameters. Those on a GPU are copied to the host while the GPU goes on, and published by ``flush`` if
    ``late``, else at once; those on the CPU are published at once."""

    def __init__(self, writer: ParamsWriter, late: bool) -> None:
        self.writer, self.late = writer, late
        self._mirror: transfer.Mirror | None = None

    def begin(self, tensors: Tensors) -> int:
        """Copy the current parameters as the next version, and return its number."""
        self.flush()
        some = next(iter(tensors.values()), None)
        if some is None or transfer.streams(some.device) is None:
            return self.writer.publish(tensors)
        if self._mirror is None:
            self._mirror = transfer.Mirror(tensors)
        self._mirror.begin(tensors)
        version = self.writer.version + 1
        if not self.late:
            self.flush()
        return version

    def flush(self) -> None:
        """Publish the version that ``begin`` started, if it is not published yet. Blocks until its copy is complete."""
        if self._mirror is not None and self._mirror.pending:
            self.writer.publish(self._mirror.take())
