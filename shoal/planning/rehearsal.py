"""A rehearsal: the real roles of a program, stepped in turn in one process over the real channels, and logged."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from shoal import api
from shoal.local.workers import Team
from shoal.planning.taps import LoggingRecorder, StepLog, Tap
from shoal.program import Port, Program, RoleSpec
from shoal.roles.rank import RankRole
from shoal.runtime.seeds import life_seed
from shoal.shm import layout, ports
from shoal.shm.arena import Arena
from shoal.shm.queue_reader import EachReader, QueueReader
from shoal.shm.session import Session
from shoal.types import Values
from shoal.words import counted

WARM = 2  # steps of every role before the time counts
START, MOST = 20.0, 3.0  # seconds, and times the seconds asked for, by which these must be done


class Player:
    """One replica in a rehearsal. team: processes that share its gradients; start: what it did before its first step;
    updates: gradient steps, and publications, of what it learned."""

    def __init__(
        self, spec: RoleSpec, index: int, arena: Arena, plan: layout.Plan, steps: Callable[[], int], teams: bool
    ) -> None:
        self.name, self.index, self.recorder, self.team = spec.name, index, LoggingRecorder(), 1
        self._closing = ExitStack()
        session = Session(arena, self.recorder, self._waits)
        ends = ports.build(session, plan, spec, index, 0, 0)
        self.ends = {key: end for key, end in ends.items() if end is not None}
        taps: Values = {key: self._tap(spec.ports[key], key, end) for key, end in ends.items()}
        context = api.Context(
            spec.name, index, spec.replicas, 0, life_seed(0, index + 1_000 * len(spec.name)), self.recorder,
            total_steps=1_000_000_000, steps=steps, team=self._team if teams else None,
        )  # fmt: skip
        self.role = spec.make(context, **taps)
        self.steps: list[StepLog] = []
        self.start: StepLog | None = None

    def _tap(self, port: Port, key: str, end: Any) -> Any:
        kind: str = port.channel.kind
        if end is None or kind == "constant":
            return end
        if port.direction == "write":
            kind = {"params": "publisher", "queue": "writer", "replay": "writer"}.get(kind, kind)
        return Tap(end, key, kind, self.recorder)

    def _team(self, size: int) -> Team:
        def forget() -> None:
            for end in self.ends.values():
                if isinstance(end, ports.ReplayReader):
                    end.forget()

        self.team = size
        team = Team(size, forget)
        self._closing.callback(team.close)
        return team

    def _waits(self) -> None:
        if self.steps or self.start is not None:
            raise api.UsageError(
                f"role '{self.name}' waits in the middle of a step, so it cannot be measured by itself: a step may put "
                "and get once by each port, and must be ready for all of that when it begins"
            )

    def begin(self) -> None:
        self.recorder.begin()
        getattr(self.role, "start", lambda: None)()
        self.start = self.recorder.end()

    def poll(self) -> None:
        """Insert the items that writers have sent into the replays that this replica reads."""
        for end in self.ends.values():
            if isinstance(end, ports.ReplayReader):
                end.poll()

    def ready(self) -> bool:
        due: Callable[[], bool] = getattr(self.role, "due", lambda: True)
        return all(end.ready() for end in self.ends.values()) and due()

    def release(self) -> None:
        """Give back what its readers look at, as their next ``get`` would."""
        for end in self.ends.values():
            if isinstance(end, QueueReader | EachReader):
                end.release()

    def step(self) -> None:
        self.recorder.begin()
        self.role.step()
        self.steps.append(self.recorder.end())

    def gradient_steps(self) -> int:
        """Of its learner, so far; 0 if it has none that counts."""
        return int(getattr(getattr(self.role, "learner", None), "step", 0))

    @property
    def preempt(self) -> tuple[float, float] | None:
        """See ``simulation.Behaviour``."""
        role = self.role
        if isinstance(role, RankRole) and role.sync_frac <= 1.0:
            return role.sync_frac, role.min_fraction
        return None

    def close(self) -> None:
        self._closing.close()
        getattr(self.role, "close", lambda: None)()


def shortened(program: Program) -> Program:
    """The program with replays that can be sampled as soon as they hold some batches, so that learning begins soon."""
    channels = {}
    for name, channel in program.channels.items():
        if channel.kind == "replay" and channel.table is not None:
            counts = [p.count for _, p in program.ends(channel, "read")]
            enough = 2 * max(*counts, channel.table.items_per_insert(channel.spec))
            channel = replace(channel, ratio=replace(channel.ratio, min_size=min(channel.ratio.min_size, enough)))
        channels[name] = channel
    roles = [
        replace(r, ports={k: replace(p, channel=channels[p.channel.name]) for k, p in r.ports.items()})
        for r in program.roles
    ]
    return replace(program, channels=channels, roles=roles)


def _sweep(players: list[Player], release: bool = False) -> bool:
    """Step who is ready, in turn; False if nobody was. release: with what readers still look at given back."""
    fired = False
    for player in players if release else ():
        player.release()
    for player in players:
        player.poll()
        if player.ready():
            player.step()
            fired = True
    return fired


def rehearse(program: Program, seconds: float, teams: bool = True) -> list[Player]:
    """Step every replica of a program in turn for so many seconds, or until each has stepped often enough. The players,
    with what they did. teams: whether several processes may share a
    gradient."""
    program = shortened(program)
    program.validate()
    plan = layout.plan(program)
    arena = Arena(plan.total)
    players: list[Player] = []
    ports.fill(arena, plan)

    def steps() -> int:
        return sum(p.recorder.totals.get("env_steps", 0) for p in players)

    for spec in program.roles:
        if not spec.background:
            players += [Player(spec, index, arena, plan, steps, teams) for index in range(spec.replicas)]
    for player in players:
        player.begin()
    begun, warm = time.monotonic(), None
    while warm is None or time.monotonic() - warm < seconds:
        # twice with releases: a replay takes in what was put when its reader is asked, after its writer had its turn
        if not any(_sweep(players, release) for release in (False, True, True)):
            waiting = [f"{p.name}[{p.index}]" for p in players]
            raise api.Deadlock(f"{program.name}: deadlock while it was measured: {', '.join(waiting)} wait")
        if warm is None and all(len(p.steps) > WARM for p in players):
            warm = time.monotonic()  # functions are compiled, memory is there
        if warm is None and time.monotonic() - begun > START + MOST * seconds:
            slow = next(p for p in players if len(p.steps) <= WARM)
            raise api.UsageError(
                f"role '{slow.name}' did not finish {counted(WARM + 1, 'step')} within "
                f"{counted(START + MOST * seconds, 'second')}: give "
                "it more --seconds"
            )
    for player in players:
        player.close()
    return players
