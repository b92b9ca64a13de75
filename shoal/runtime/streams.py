"""Standard input, output and error of a process that was started without them (``>&-``)."""

from __future__ import annotations

import os


def open_standard() -> None:
    """Open those of the descriptors 0, 1 and 2 that are closed, also for the processes that this one starts, onto
    nothing. Else the next file opened would get such a number, and what others print; and a child has no stream."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            made = os.open(os.devnull, os.O_RDWR)
            if made != number:
                os.dup2(made, number)
                os.close(made)
            os.set_inheritable(number, True)
