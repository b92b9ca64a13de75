"""Every word of an arena on which somebody may sleep."""

from __future__ import annotations

from shoal.shm import futex
from shoal.shm.arena import Arena
from shoal.shm.layout import ALIGN, Plan


def ring(arena: Arena, plan: Plan) -> None:
    """Wake everybody who sleeps at a port, so that they look at the control words."""
    base = arena.base
    for r in plan.rings.values():
        for i in range(r.readers):
            futex.wake(base + r.bells + i * ALIGN)
        for i in range(r.writers):
            futex.wake(base + r.tails + i * ALIGN)
    for s in plan.stores.values():
        futex.wake(base + s.control)
    for bell in (bell for g in plan.groups.values() for bell in g.bells):
        futex.wake(base + bell)
