"""A long cable between two network devices, for namespaces.py: so many bits per second and so much delay, each way.

    python benchmarks/cable.py NAME OTHER --rate 100e6 --delay 0.02

Makes two TAP devices and carries frames between them until it is killed, where the kernel has no netem. What waits
for its turn longer than 200 ms is dropped, as by a switch whose memory is full.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import select
import struct
import time
from collections import deque

TUNSETIFF, TAP_WITHOUT_HEADER = 0x400454CA, 0x0002 | 0x1000
FRAME, LONGEST_WAIT = 65536, 0.2


def tap(name: str) -> int:
    """The descriptor of a new TAP device."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), TAP_WITHOUT_HEADER))
    return device


class Direction:
    """Frames under way from one device to the other."""

    def __init__(self, source: int, target: int, rate: float, delay: float) -> None:
        self.source, self.target, self.rate, self.delay = source, target, rate, delay
        self.free = 0.0  # when the last frame has left
        self.under_way: deque[tuple[float, bytes]] = deque()

    def take(self) -> None:
        """What has come in at the source."""
        try:
            while True:
                frame = os.read(self.source, FRAME)
                now = time.monotonic()
                if self.free - now < LONGEST_WAIT:
                    self.free = max(now, self.free) + 8 * len(frame) / self.rate
                    self.under_way.append((self.free + self.delay, frame))
        except BlockingIOError:
            return

    def give(self) -> float:
        """What has arrived; seconds until the next does."""
        while self.under_way:
            due, frame = self.under_way[0]
            wait = due - time.monotonic()
            if wait > 0:
                return wait
            os.write(self.target, frame)
            self.under_way.popleft()
        return 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs=2)
    parser.add_argument("--rate", type=float, required=True, help="bits per second")
    parser.add_argument("--delay", type=float, required=True, help="seconds")
    args = parser.parse_args()
    one, other = map(tap, args.names)
    directions = [Direction(*ends, args.rate, args.delay) for ends in ((one, other), (other, one))]
    while True:
        wait = min(d.give() for d in directions)
        ready, _, _ = select.select([one, other], [], [], wait)
        for direction in directions:
            if direction.source in ready:
                direction.take()


if __name__ == "__main__":
    main()
