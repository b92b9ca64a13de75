"""Behaviours from logs: the period of a role's steps, and how long each piece of work takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from shoal.planning.rehearsal import Player
from shoal.planning.taps import Entry, StepLog
from shoal.simulation import Behaviour, Op, Step, Times

LEVELS = 64  # values that stand for a distribution
WARM = 0.2  # of the steps of a rehearsal, left out: caches fill, functions are compiled
KEPT = ("env_steps", "updates")  # counts
Signature = tuple[tuple[str, str], ...]


def behaviour(player: Player, lockstep: Sequence[str]) -> Behaviour:
    """What a player does. lockstep: its ports whose ``latest`` may wait.

    Operations that never wait (looks at parameters, shared memory) belong to the order of the steps only if they are
    regular themselves; else they are work.
    """
    logs = player.steps
    keeps: list[Callable[[Entry], bool]] = [
        lambda e: bool(e.do),
        lambda e: bool(e.do) and e.do not in ("copy", "add", "offer"),
        lambda e: bool(e.do) and e.do not in ("copy", "add", "offer") and (e.do != "latest" or e.port in lockstep),
    ]
    for keep in keeps:
        signatures = [_signature(log, keep) for log in logs]
        if (found := period(signatures)) is not None:
            begin, length = found
            break
    else:
        keep, begin, length = keeps[0], 0, 0
    if player.preempt is not None and length:
        while any(do for do, _ in signatures[begin]) and begin + 2 * length < len(logs):
            begin += 1  # a rollout begins with steps that only collect
    start = tuple(Op(e.do, e.port) for e in player.start.entries if e.do) if player.start else ()  # type: ignore[arg-type]
    updates = sum(e.do == "publish" for log in logs for e in log.entries)
    known = dict(
        start=start,
        insert=times(player.recorder.inserts[int(WARM * len(player.recorder.inserts)) :] or [0.0]),
        steps_per_update=max(1.0, player.gradient_steps() / updates) if updates else 1.0,
        preempt=player.preempt,
    )
    if not length:  # each step as often as it was seen
        logs = logs[int(WARM * len(logs)) :]
        steps = tuple(_step([log], keep, player.team) for log in _thinned(logs))
        return Behaviour(steps, regular=False, **known)  # type: ignore[arg-type]
    cycle = []
    for place in range(length):
        same = logs[begin + place :: length]
        cycle.append(_step(same[min(len(same) - 1, int(np.ceil(WARM * len(same)))) :], keep, player.team))
    first = tuple(Step(tuple(Op(*op) for op in s)) for s in signatures[:begin])  # type: ignore[arg-type]
    return Behaviour(tuple(cycle), first, **known)  # type: ignore[arg-type]


def period(signatures: Sequence[Signature]) -> tuple[int, int] | None:
    """(where they begin to repeat, after how many steps) of a sequence whose later part, at least half of it, was seen
    twice or more; None if there is no such."""
    n = len(signatures)
    for length in range(1, n // 2 + 1):
        begin = n
        while begin > length and signatures[begin - 1] == signatures[begin - 1 - length]:
            begin -= 1
        begin -= length
        if n - begin >= max(2 * length, (n + 1) // 2):
            return begin, length
    return None


def _signature(log: StepLog, keep: Callable[[Entry], bool]) -> Signature:
    return tuple((e.do, e.port) for e in log.entries if keep(e))


def _thinned(logs: Sequence[StepLog], most: int = 400) -> Sequence[StepLog]:
    return logs[:: max(1, len(logs) // most)]


def _step(logs: Sequence[StepLog], keep: Callable[[Entry], bool], team: int) -> Step:
    """The step of which ``logs`` are, all of one signature."""
    pieces = [_pieces(log, keep) for log in logs]
    ops: list[Op] = []
    for place in range(len(pieces[0])):
        ops += _work([p[place] for p in pieces], team)
        last = pieces[0][place]
        if last.do:
            ops.append(Op(last.do, last.port))  # type: ignore[arg-type]
    counts = {k: sum(log.counts.get(k, 0) for log in logs) / len(logs) for k in KEPT}
    return Step(tuple(ops), {k: n for k, n in counts.items() if n})


def _pieces(log: StepLog, keep: Callable[[Entry], bool]) -> list[Entry]:
    """Work and the operation after it, with operations that are not kept counted as work."""
    out: list[Entry] = []
    busy, idle, phases = 0.0, 0.0, dict[str, float]()
    for e in log.entries:
        busy, idle = busy + e.busy, idle + e.idle
        for name, seconds in e.phases.items():
            phases[name] = phases.get(name, 0.0) + seconds
        if keep(e) or e is log.entries[-1]:
            out.append(Entry(e.do if keep(e) else "", e.port, busy, idle, phases, e.fresh))
            busy, idle, phases = 0.0, 0.0, {}
    return out


def _work(pieces: Sequence[Entry], team: int) -> list[Op]:
    total: dict[str, float] = {}
    for piece in pieces:
        for name, seconds in piece.phases.items():
            total[name] = total.get(name, 0.0) + seconds
    whole = sum(total.values())
    if whole <= 0:
        return []
    shares = tuple(sorted(((k, s / whole) for k, s in total.items() if s > 0), key=lambda item: -item[1]))
    cores = team if dict(shares).get("learn", 0.0) > 0.5 else 1
    fresh = [p for p in pieces if p.fresh] or list(pieces)
    stale = [p for p in pieces if not p.fresh]
    if cores > 1:  # while it waits for its team, they work
        return [Op("work", busy=times([p.busy + p.idle for p in pieces]), phases=shares, cores=cores)]
    return [
        Op("work", "", times([p.busy for p in fresh]), times([p.idle for p in pieces]),
           times([p.busy for p in stale]) if stale else None, shares)
    ]  # fmt: skip


def times(seconds: Sequence[float]) -> Times:
    """A distribution by ``LEVELS`` quantiles at most, of the same mean."""
    found = np.sort(np.asarray(seconds, float))
    if len(found) <= 1 or found[0] == found[-1]:
        return Times((float(found.mean()),))
    levels = np.quantile(found, (np.arange(LEVELS) + 0.5) / LEVELS)
    if levels.mean() > 0:
        levels *= found.mean() / levels.mean()
    return Times(tuple(map(float, levels)))
