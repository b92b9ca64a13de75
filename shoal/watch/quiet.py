"""A server that sleeps while nobody asks it anything, so that a page that no one looks at costs nothing."""

from __future__ import annotations

import asyncio

import uvicorn


class QuietServer(uvicorn.Server):
    """uvicorn's server without its clock, which wakes ten times a second to see whether the server is to end and to
    write the date of the answers (``guard.Guard`` does so instead). Whoever sets ``should_exit``, a signal's handler or
    another thread, wakes it."""

    _over: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
    _exits = False

    @property
    def should_exit(self) -> bool:
        return self._exits

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        self._exits = value
        if value and self._over is not None:
            loop, event = self._over
            loop.call_soon_threadsafe(event.set)

    async def main_loop(self) -> None:
        event = asyncio.Event()
        self._over = asyncio.get_running_loop(), event
        if not self.should_exit:  # read after the event can be seen: nobody's wish is lost between
            await event.wait()
        self._over = None
