"""``shoal.pbt``: population-based training of any object that can be trained in slices and scored."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle

from shoal.api import RoleFailed, UsageError
from shoal.run.population.controller import Copy, Population, Rules
from shoal.run.population.hyperparameters import Space
from shoal.run.population.slots import Slots
from shoal.settings.arguments import needs_as_in
from shoal.types import Values

Objective = Callable[[Any, Values, int], tuple[Any, float]]
TRIES = 3  # failures of a member in a row before the search ends


@dataclass(frozen=True)
class Found:
    """The result of a search: the best member's score, state and hyperparameters, the schedule that led to it (from
    this step on, these values), every copy, and (step, score, values) of each member after each turn."""

    score: float
    state: Any
    values: Values
    schedule: list[tuple[int, Values]]
    lineage: list[Copy]
    history: list[list[tuple[int, float, Values]]]


@needs_as_in("shoal.pbt(objective, {'rate': shoal.Interval(0.1, 1)}, steps=10_000, interval=1_000)")
def pbt(
    objective: Objective,
    space: Space,
    *,
    steps: int,
    interval: int,
    population: int = 8,
    workers: int = 1,
    seed: int = 0,
    start: Values | None = None,
    **rules: Any,
) -> Found:
    """Train ``population`` members for ``steps`` each, in turns of ``interval`` steps. After a turn, members with low
    scores copy members with high scores and change the copied hyperparameters.

    objective: ``(state, values, steps) -> (state, score)`` trains ``state`` (None at first) for ``steps`` steps with
        the hyperparameters ``values``; larger scores are better. It gets its own copy of the state and may change it.
    space: name -> ``shoal.Interval`` or ``shoal.Choice``. start: hyperparameters of the first member.
    workers: processes; 1: this process, and the search is then deterministic. rules: fields of ``Rules``.

    Raises RoleFailed if a member fails three times in a row. With one worker, errors of the objective are raised at
    once.
    """
    if interval < 1 or steps < interval:
        raise UsageError(f"steps ({steps}) must be at least the interval ({interval}), and that at least 1")
    if population < 1 or workers < 1:
        raise UsageError(f"a search needs at least 1 member and 1 worker, found {population} and {workers}")
    control = Population(space, population, Rules(interval=interval, **rules), seed, start)
    search = _Search(objective, control, steps, interval)
    if workers == 1:
        search.alone()
    else:
        search.together(min(workers, population))
    best = control.best()
    score = -math.inf if best.score is None else best.score
    state = cloudpickle.loads(search.states[best.index])
    return Found(score, state, best.values, control.schedule(best.index), control.lineage, search.history)


class _Search:
    """A search in progress. states: each member's state, pickled, so that members never share objects and a copy is
    free."""

    def __init__(self, objective: Objective, control: Population, steps: int, interval: int) -> None:
        self.objective, self.control, self.steps, self.interval = objective, control, steps, interval
        self.states = [cloudpickle.dumps(None)] * len(control.members)
        self.history: list[list[tuple[int, float, Values]]] = [[] for _ in control.members]
        self.failures = [0] * len(control.members)

    def alone(self) -> None:
        while (index := self._next(set())) is not None:
            self._take(index, _train(self._task(index)))

    def together(self, workers: int) -> None:
        slots = Slots(_train, workers)
        try:
            while True:
                while slots.free and (index := self._next(set(slots.busy()))) is not None:
                    slots.submit(index, self._task(index))
                done = slots.wait()
                if not done:
                    return
                for index, result, failure in done:
                    if not failure:
                        self.failures[index] = 0
                        self._take(index, result)
                        continue
                    self.failures[index] += 1
                    if self.failures[index] == TRIES:
                        raise RoleFailed("member", index, self.failures[index] - 1, None, failure)
        finally:
            slots.close()

    def _next(self, busy: set[int]) -> int | None:
        """Return the least trained member that is not ``busy``."""
        waiting = self.control.waiting(self.steps, busy)
        return waiting[0].index if waiting else None

    def _task(self, index: int) -> tuple[Objective, bytes, Values, int]:
        member = self.control.members[index]
        return self.objective, self.states[index], dict(member.values), min(self.interval, self.steps - member.trained)

    def _take(self, index: int, result: tuple[bytes, float, int]) -> None:
        state, score, steps = result
        member = self.control.members[index]
        self.states[index] = state
        self.history[index].append((member.step + steps, score, dict(member.values)))
        self.control.report(index, member.step + steps, score)
        made = self.control.turn(index) if member.trained < self.steps else None
        if made is not None:
            self.states[made.child] = self.states[made.parent]


def _train(task: tuple[Objective, bytes, Values, int]) -> tuple[bytes, float, int]:
    objective, state, values, steps = task
    trained, score = objective(cloudpickle.loads(state), copy.deepcopy(values), steps)
    return cloudpickle.dumps(trained), float(score), steps
