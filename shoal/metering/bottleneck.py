"""The bottleneck of a run, from the shares of time that each role spends in its phases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

TimeShares = Mapping[str, Mapping[str, float]]  # role -> phase -> share of its wall time

KINDS = {
    "env": "actor", "unroll": "actor", "params": "actor",
    "inference": "inference",
    "insert": "replay", "sample": "replay", "priorities": "replay",
    "batch": "learner", "learn": "learner", "publish": "learner",
}  # fmt: skip
UNPRODUCTIVE = ("start", "checkpoint", "other", "evaluate", "film")  # phases that hold nobody up; nor do waits
MOSTLY_WAITING = 0.9


class Bottleneck(NamedTuple):
    """``kind``: actor (its environments), inference, replay or learner, or the name of a role with phases of its
    own; ``share`` of the role's time goes into ``phases``, the largest first."""

    kind: str
    role: str
    share: float
    phases: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind}-bound ({self.role}: {self.share:.0%} of its time in {', '.join(self.phases)})"


def bottleneck(shares: TimeShares) -> Bottleneck | None:
    """The role and the kind of work that limit the speed of the run; None while that is not known.

    A role's waits are time in which others held it up, so the role with the least of them sets the pace, by the
    kind of work that takes most of its time. The time before a role's first step does not count.
    """
    waits, work = {}, {}
    for role, phases in shares.items():
        running = 1.0 - phases.get("start", 0.0)
        if running <= 0.05:
            continue
        waits[role] = sum(s for p, s in phases.items() if p.startswith("wait")) / running
        work[role] = {
            p: s / running for p, s in phases.items() if p not in UNPRODUCTIVE and not p.startswith("wait") and s > 0
        }
    busy = [role for role in work if work[role] and waits[role] < MOSTLY_WAITING]
    if not busy:
        return None
    role = min(busy, key=lambda r: (waits[r], -sum(work[r].values())))
    kinds: dict[str, float] = {}
    for phase, share in work[role].items():
        kind = KINDS.get(phase, role)
        kinds[kind] = kinds.get(kind, 0.0) + share
    kind = max(kinds, key=lambda k: kinds[k])
    parts = sorted((p for p in work[role] if KINDS.get(p, role) == kind), key=lambda p: -work[role][p])
    large = [p for p in parts if work[role][p] >= 0.1 * kinds[kind]]
    return Bottleneck(kind, role, kinds[kind], tuple(large))
