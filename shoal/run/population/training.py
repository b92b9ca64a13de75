"""Population-based training of a system. Members are runs that share the machine in slices of ``interval`` steps.

Jaderberg et al. 2017, "Population Based Training of Neural Networks".
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.api import RoleFailed, ShoalError, UsageError
from shoal.envs import looking
from shoal.held import cut
from shoal.local.apart import apart
from shoal.paths import fixed, require_new, shown
from shoal.records.atomic_write import write_atomic
from shoal.records.checkpoint import FOLDER, completed
from shoal.records.damage import reading
from shoal.records.metric_files import append_row, newest_steps
from shoal.records.presence import Presence
from shoal.records.run_dir import NO_OVERWRITE
from shoal.records.run_lock import RunLock
from shoal.run.monitors import NO_MONITORS, MonitorOptions, Monitors
from shoal.run.population.controller import WINDOW, Copy, Member, Population, Rules
from shoal.run.population.files import (
    FILE as FILE,
    LINEAGE as LINEAGE,
    SCORES as SCORES,
    STATE as STATE,
    Setup as Setup,
    best_member as best_member,
    is_population as is_population,
    member_path as member_path,
    read_setup,
    read_state,
)
from shoal.run.population.member import Reached, Slice, check_space, copy_member, shapes_of, train_slice
from shoal.run.population.slots import Slots, fitting
from shoal.run.population.summary import PopulationSummary
from shoal.run.trust import note
from shoal.runtime.interrupts import Interrupts
from shoal.topology.config import anchored
from shoal.types import Values
from shoal.untrusted import RUN_FORMAT
from shoal.words import counted

TRIES = 3  # failures in a row after which a member is replaced by a copy, or given up
MIN_EPISODES_PER_ENV = 10.0  # with fewer episodes of each environment in a slice, short ones dominate the score

NOTHING: Values = {}

log = logging.getLogger("shoal.runtime")


@dataclass
class Ended:
    """How a population ended: its directory, the best member, and the reason."""

    path: Path
    best: Member
    copies: int
    reason: str
    steps: int
    """Of all members together."""

    @property
    def ending(self) -> str:
        """Return how it ended, in words."""
        best = "" if self.best.score is None else f", best score {self.best.score:.4g}"
        return f"{self.reason}, {counted(self.steps, 'step')} of all members{best}"


class PopulationRun:
    """A new or resumed population in ``path``."""

    def __init__(
        self, path: Path, setup: Setup, tell: Callable[[str], None] | None = None, state: Values = NOTHING
    ) -> None:
        self.path, self.setup = path, setup
        self.tell = tell or (lambda line: None)
        self.control = Population(
            setup.interval_space(), setup.size, Rules(**setup.rules), setup.seed, start=setup.values,
            runs=None if state else self._runs,
        )  # fmt: skip
        if state:
            with reading(path / STATE):
                self.control.load_state_dict(state)
            self.control.runs = self._runs
        # sizes of files with the rows that the state includes
        self._sizes = state.get("sizes", {}) if state else {SCORES: 0, LINEAGE: 0}
        self.failures = [0] * setup.size
        self._advised = False  # whether advice on short slices was given
        self.slots = Slots(train_slice, fitting(min(setup.slots, setup.size), self.tell))
        self.monitors = Monitors()
        self.summary = PopulationSummary(path, setup)

    @classmethod
    def begin(cls, path: Path, setup: Setup, tell: Callable[[str], None] | None = None) -> PopulationRun:
        """Create a new population. Raises UsageError if a mutated field changes the shapes of the program."""
        path = fixed(path)
        require_new(path, NO_OVERWRITE)
        check_space(setup.system, setup.values, setup.interval_space())
        setup = replace(setup, values=anchored(setup.values))
        run = cls(path, setup, tell)
        note(setup.system, setup.values)
        made = not path.exists()
        try:
            (path / "members").mkdir(parents=True, mode=0o700)
            run._write(FILE, dataclasses.asdict(setup))
        except OSError as error:  # after a full disk, no directory is left
            shutil.rmtree(path if made else path / "members", ignore_errors=True)
            raise UsageError(f"cannot create the directory '{shown(path)}': {error.strerror}") from None
        return run

    @classmethod
    def reopen(
        cls, path: Path, steps: int | None = None, tell: Callable[[str], None] | None = None, trust: bool = False
    ) -> PopulationRun:
        """Resume the population in ``path``. steps: a new limit for each member; trust: as in ``Run.policy``."""
        path = fixed(path)
        setup = read_setup(path, trust)
        state = read_state(path, setup, trust)
        if steps is not None:
            setup = dataclasses.replace(setup, steps=steps)
        return cls(path, setup, tell, state)

    def go(self, monitors: MonitorOptions = NO_MONITORS) -> Ended:
        """Train until every member has made its steps, or until a signal. monitors: what monitors it."""
        with monitors.running(self.path) as self.monitors:
            return self.monitors.ended(self._go())

    def _go(self) -> Ended:
        lock = RunLock(self.path)
        try:
            if not self._waiting():
                raise UsageError(
                    f"the population in '{shown(self.path)}' is finished: "
                    f"every member has made {counted(self.setup.steps, 'step')}"
                )
            self._write(FILE, dataclasses.asdict(self.setup))
            self._cut()
            with self.summary.kept(self.control), Interrupts(kill=self.slots.kill) as interrupts:
                try:
                    self._train(self.slots, interrupts)
                finally:
                    self.slots.close()
            self._save()
            reason = interrupts.reason or "steps"
            self.summary.write(self.control, f"ended: {reason}")
        finally:
            lock.release()
        return Ended(self.path, self.control.best(), len(self.control.lineage), reason, self._steps())

    def _train(self, slots: Slots, interrupts: Interrupts) -> None:
        asked, present, began = False, Presence(self.path), time.monotonic()
        while True:
            while slots.free and not interrupts.reason and (waiting := self._waiting(slots.busy())):
                slots.submit(waiting[0].index, self._slice(waiting[0]))
            if interrupts.reason and not asked:
                asked = True
                slots.stop()
            if not slots.busy():
                return
            done = slots.wait(timeout=0.5)
            present.require()
            self._show(time.monotonic() - began)
            for index, reached, failure in done:
                if failure:
                    self._failed(index, failure)
                else:
                    self._reached(index, reached)

    def _show(self, seconds: float) -> None:
        """Report the progress of all members and the best score to the monitors."""
        if not self.monitors.observers:
            return
        scores = [m.score for m in self.control.members if m.score is not None]
        best = max(scores, default=math.nan)
        self.monitors.row({"seconds": seconds, "steps": self._steps(), "episode_return": best})

    def _steps(self) -> int:
        """Return the steps of all members, including those of running slices."""
        return sum(max(m.step, newest_steps(member_path(self.path, m.index))) for m in self.control.members)

    def _waiting(self, busy: Collection[int] = ()) -> list[Member]:
        return self.control.waiting(self.setup.steps, busy)

    def _slice(self, member: Member) -> Slice:
        setup, interval = self.setup, self.control.rules.interval
        until = member.turn + interval
        if until <= member.step:  # it was not ready: still warming up
            until = member.step + interval
        return Slice(
            member_path(self.path, member.index), setup.system,
            # schedules end at the population's steps, even if the member continues further
            {**setup.values, "steps": setup.steps, **member.values},
            {**setup.origins, **dict.fromkeys(member.values, "population")}, setup.preset, setup.seed + member.index,
            min(until, member.step + setup.steps - member.trained), setup.runtime, evaluate=setup.evaluate,
            max_steps=setup.max_steps,
        )  # fmt: skip

    def _reached(self, index: int, reached: Reached) -> None:
        self.failures[index] = 0
        member = self.control.members[index]
        self.control.report(index, reached.steps, reached.score, reached.returns[-WINDOW:])
        self._note(SCORES, {
            "member": index, "step": reached.steps, "score": member.score, "seconds": round(reached.seconds, 3),
            **member.values,
        })  # fmt: skip
        score = "none yet" if member.score is None else f"{member.score:.4g}"
        self.tell(f"member {index}: {counted(reached.steps, 'step')}, score {score}, {_shown(member.values)}")
        if reached.why:
            self.tell(f"member {index}: {reached.why} (--eval-max-steps)")
        if reached.per_env < MIN_EPISODES_PER_ENV and reached.reason == "steps" and not self._advised:
            self._advised = True
            self._remark(self._advice(index, reached))
        if member.trained < self.setup.steps and (copy := self.control.turn(index)) is not None:
            self._copied(copy)
        self._save()

    def _advice(self, index: int, reached: Reached) -> str:
        slice_ = f"in its last {counted(self.control.rules.interval, 'step')}"
        if not reached.returns:
            return (
                f"no episode of member {index} ended {slice_}, so it has no new score: --eval-episodes N plays some "
                "for it, a longer --interval ends some"
            )
        return (
            f"{reached.per_env:.1f} episodes ended in each environment of member {index} {slice_}: so few that short "
            "ones count for more in its score; --eval-episodes N has it scored by whole games, a longer --interval "
            "ends more"
        )

    def _copied(self, copy: Copy) -> None:
        member = self.control.members[copy.child]
        began = time.monotonic()
        steps = copy_member(member_path(self.path, copy.parent), member_path(self.path, copy.child), copy.parent_step)
        member.step = member.turn = steps
        line = {k: v for k, v in dataclasses.asdict(copy).items() if k not in ("before", "after")}
        line |= {f"before/{k}": v for k, v in copy.before.items()} | {f"after/{k}": v for k, v in copy.after.items()}
        self._note(LINEAGE, {**line, "seconds": round(time.monotonic() - began, 4)})
        self.tell(f"member {copy.child} copies member {copy.parent}: {_shown(copy.after)}")

    def _failed(self, index: int, failure: str) -> None:
        """Try again. After ``TRIES`` failures, or one that would repeat, continue from the best other member, or
        without this one."""
        member, cause = self.control.members[index], failure.rstrip().rpartition("\n")[2]
        refused = cause.startswith(f"{UsageError.__module__}.{UsageError.__qualname__}: ")
        self.failures[index] = max(self.failures[index] + 1, TRIES if refused else 0)
        log.warning("member %d failed: %s", index, cause)
        self._remark(f"member {index} failed: {cause}")
        if self.failures[index] < TRIES:
            self.monitors.failed({f"member {index}": "restarted"})
            return
        others = [m for m in self.control.members if m is not member and not m.lost]
        saved = [m for m in others if m.score is not None and completed(member_path(self.path, m.index) / FOLDER)]
        if saved and self.failures[index] == TRIES:
            self._copied(self.control.copy(member, max(saved, key=lambda m: m.score or 0.0)))
            self.monitors.failed({f"member {index}": "restarted"})
        elif others:
            member.lost = True
            self._remark(f"the population goes on without member {index}")
            self.monitors.failed({f"member {index}": "lost"})
        else:
            raise RoleFailed("member", index, self.failures[index] - 1, None, failure)

    def _remark(self, sentence: str) -> None:
        self.summary.note(sentence)
        self.tell(sentence)

    def _save(self) -> None:
        self._sizes = {name: _size(self.path / name) for name in (SCORES, LINEAGE)}
        with self._warned(STATE):
            self._write(STATE, {**self.control.state_dict(), "sizes": self._sizes})
        self.summary.write(self.control, "running")

    def _cut(self) -> None:
        """Drop rows that were written after the last state, by a process that was killed in between. They are written
        again, because each slice's result is kept with its member. Only a copy can be lost: the child already has its
        parent's state then, and continues with its old hyperparameters."""
        for name, size in self._sizes.items():
            if _size(self.path / name) > size:
                cut(self.path / name, size)

    def _runs(self, values: Values) -> bool:
        """Return True if a member can run with these hyperparameters. Neither every value of a wide interval nor every
        combination was tried before."""
        from shoal import systems

        try:
            with looking(apart):
                shapes_of(systems.load(self.setup.system), {**self.setup.values, **values})
        except ShoalError as error:
            self.tell(f"{_shown(values)} cannot run, others are drawn: {error}")
            return False
        return True

    def _write(self, name: str, content: Any) -> None:
        write_atomic(self.path / name, json.dumps({"format": RUN_FORMAT, **content}, indent=1) + "\n", sync=True)

    def _note(self, name: str, row: Mapping[str, Any]) -> None:
        with self._warned(name):
            append_row(self.path / name, row)

    @contextlib.contextmanager
    def _warned(self, name: str) -> Iterator[None]:
        """Log a warning if the block fails to write. A full disk does not stop training."""
        try:
            yield
        except OSError as error:
            log.warning("cannot write '%s': %s (training goes on)", self.path / name, error.strerror)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _shown(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())
