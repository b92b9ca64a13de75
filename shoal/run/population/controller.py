"""Population-based training without processes: which member copies which, and how a copy changes hyperparameters.

Jaderberg et al. 2017, "Population Based Training of Neural Networks".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from shoal.api import UsageError
from shoal.run.population.hyperparameters import FACTORS, Choice, Interval, Space, draw, perturb
from shoal.types import State, Values

Exploit = Literal["truncation", "tournament", "ttest"]
Explore = Literal["perturb", "resample"]
TRUNCATION_SHARE = 0.2  # share of the population: the worst copy the best (section 4.1.1)
SIGNIFICANT = 0.05
WINDOW = 10  # scores that the t-test compares (section 4.1.1)
DRAWS = 50  # draws in a row that cannot run before giving up


@dataclass(frozen=True)
class Rules:
    """Rules by which a population evolves.

    exploit: ``truncation``: the worst ``share`` copy one of the best ``share``, drawn uniformly; ``tournament``: one
    other member is drawn and copied if its score is higher; ``ttest``: as tournament, if Welch's test over the last
    scores of both is significant. gap: a copy needs a score that is higher by more than this, in units of the score.
    explore: ``perturb``: every hyperparameter is multiplied by one of ``factors``, each with ``probability``;
    ``resample``: it is drawn from the prior. interval: steps between two turns of a member; warm_up: steps before the
    first.
    """

    interval: int = 1
    exploit: Exploit = "truncation"
    explore: Explore = "perturb"
    share: float = TRUNCATION_SHARE
    gap: float = 0.0
    factors: tuple[float, ...] = FACTORS
    probability: float = 1.0
    warm_up: int = 0

    def __post_init__(self) -> None:
        for name, kind in (("exploit", Exploit), ("explore", Explore)):
            if getattr(self, name) not in get_args(kind):
                raise UsageError(f"{name} expects one of {', '.join(get_args(kind))}, found '{getattr(self, name)}'")
        if not 0.0 < self.share <= 0.5:
            raise UsageError(f"share expects a number above 0 and at most 0.5, found {self.share:g}")
        if self.interval < 1:
            raise UsageError(f"interval expects at least 1 step, found {self.interval}")
        if not self.factors or not all(0.0 < factor < math.inf for factor in self.factors):
            raise UsageError(f"factors expects one or more numbers above 0, found {self.factors}")
        if not 0.0 <= self.probability <= 1.0:
            raise UsageError(f"probability expects a number from 0 to 1, found {self.probability:g}")
        if not 0.0 <= self.gap < math.inf:
            raise UsageError(f"gap expects a finite number of at least 0, found {self.gap:g}")


@dataclass
class Member:
    """One member: its hyperparameters, its progress, and its scores since its last copy.

    step: of its current state, including its parents' steps; trained: steps that it has made itself, unchanged by a
    copy. score: the newest, None if there is none; samples: the latest ones for the t-test, oldest first; turn: step of
    its last turn; lost: it has failed too often and is no longer copied.
    """

    index: int
    values: Values
    step: int = 0
    trained: int = 0
    turn: int = 0
    score: float | None = None
    samples: list[float] = field(default_factory=list)
    lost: bool = False


@dataclass(frozen=True)
class Copy:
    """One line of the lineage: member ``child`` continued from a snapshot of ``parent``. step: the child's before the
    copy; parent_step: the step of the snapshot."""

    child: int
    parent: int
    step: int
    parent_step: int
    score: float | None
    parent_score: float | None
    before: Values
    after: Values


class Population:
    """The controller. It is asynchronous: each member is compared with the others' newest scores when it reports.

    Call ``report`` with a member's result, then ``turn``. ``snapshots``: members that have a snapshot to copy.
    """

    def __init__(
        self,
        space: Space,
        size: int,
        rules: Rules,
        seed: int = 0,
        start: Mapping[str, Any] | None = None,
        runs: Callable[[Values], bool] | None = None,
    ) -> None:
        """start: hyperparameters of member 0; the others' are drawn from the space. runs: whether members can run with
        these hyperparameters; otherwise others are drawn."""
        if size < 1:
            raise UsageError(f"a population has at least 1 member, found {size}")
        self.space, self.rules, self.runs = space, rules, runs
        self.generator = np.random.default_rng(seed)
        self.members = [Member(i, draw(space, self.generator)) for i in range(size)]
        if start is not None:
            self.members[0].values = {name: _begin(name, one, start) for name, one in space.items()}
        for member in self.members:
            found = self._that_runs(member.values, lambda: draw(space, self.generator))
            if found is None:
                raise UsageError(f"of {DRAWS} draws of hyperparameters in a row none can run")
            member.values = found
        self.lineage: list[Copy] = []

    def report(self, index: int, step: int, score: float, samples: Sequence[float] | None = None) -> None:
        """Record that member ``index`` has reached ``step`` with ``score`` (nan: none yet). samples: for the t-test,
        such as the last episodes' returns; None: the score is one sample."""
        member = self.members[index]
        member.trained += max(0, step - member.step)
        member.step = step
        if math.isfinite(score):
            member.score = float(score)
        new = [score] if samples is None else samples
        member.samples = [*member.samples, *(float(s) for s in new if math.isfinite(s))][-WINDOW:]

    def waiting(self, steps: int, busy: Collection[int] = ()) -> list[Member]:
        """Return the members that have trained for less than ``steps``, the least trained first, without ``busy`` and
        lost ones. Counting the steps of a member's current state instead would let one that copies from further back
        restart again and again."""
        found = [m for m in self.members if m.trained < steps and m.index not in busy and not m.lost]
        return sorted(found, key=lambda m: m.trained)

    def ready(self, index: int) -> bool:
        """Return True if a member has made enough steps since its last turn."""
        member = self.members[index]
        return member.step >= self.rules.warm_up and member.step - member.turn >= self.rules.interval

    def turn(self, index: int) -> Copy | None:
        """Take a ready member's turn: exploit and, if it copies, explore. Return the copy, after which the caller
        copies the state of ``parent`` to ``child``, or None if the member is unchanged or not ready."""
        if not self.ready(index):
            return None
        member = self.members[index]
        member.turn = member.step
        parent = self._exploit(member)
        return None if parent is None else self.copy(member, parent)

    def copy(self, member: Member, parent: Member) -> Copy:
        """Let ``member`` continue from ``parent`` with new hyperparameters, or with the parent's if no new ones can
        run. Its scores are forgotten."""
        rules = self.rules

        def explored() -> Values:
            return perturb(
                self.space, parent.values, self.generator, rules.factors, rules.probability,
                float(rules.explore == "resample"),
            )  # fmt: skip

        values = self._that_runs(explored(), explored) or dict(parent.values)
        scores = member.score, parent.score
        copy = Copy(member.index, parent.index, member.step, parent.step, *scores, dict(member.values), values)
        member.values, member.step, member.turn = dict(values), parent.step, parent.step
        member.score, member.samples, member.lost = None, [], False
        self.lineage.append(copy)
        return copy

    def best(self) -> Member:
        """Return the member with the highest newest score, or member 0 before the first score."""
        return max(self.members, key=_score)

    def schedule(self, index: int) -> list[tuple[int, Values]]:
        """Return the hyperparameters that led to a member's current state, back through its parents: (from this step
        on, values)."""
        out: list[tuple[int, Values]] = []
        values, end, current = self.members[index].values, len(self.lineage), index
        while True:
            found = next((i for i in reversed(range(end)) if self.lineage[i].child == current), None)
            if found is None:
                return [(0, values), *reversed(out)]
            copy = self.lineage[found]
            out.append((copy.parent_step, values))
            current, end = copy.parent, found
            values = self._values_of(current, end)

    def state_dict(self) -> State:
        return {
            "members": [asdict(m) for m in self.members],
            "lineage": [asdict(c) for c in self.lineage],
            "generator": self.generator.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # older states lack ``trained``
        self.members = [Member(**{"trained": m["step"], **m}) for m in state["members"]]
        self.lineage = [Copy(**c) for c in state["lineage"]]
        self.generator.bit_generator.state = state["generator"]

    def _that_runs(self, values: Values, another: Callable[[], Values]) -> Values | None:
        """Return ``values``, or the first of ``another()`` that can run, or None after ``DRAWS`` that cannot."""
        for _ in range(DRAWS):
            if self.runs is None or self.runs(values):
                return values
            values = another()
        return None

    def _values_of(self, index: int, end: int) -> Values:
        """Return a member's hyperparameters before entry ``end`` of the lineage."""
        later = next((c for c in self.lineage[end:] if c.child == index), None)
        return self.members[index].values if later is None else later.before

    def _exploit(self, member: Member) -> Member | None:
        others = [m for m in self.members if m is not member and m.score is not None and not m.lost]
        if not others or member.score is None:
            return None
        if self.rules.exploit == "truncation":
            parent = self._from_the_best(member, others)
        else:
            parent = others[int(self.generator.integers(len(others)))]
        if parent is None or not _score(parent) - member.score > self.rules.gap:
            return None
        if self.rules.exploit == "ttest" and not better(parent.samples, member.samples):
            return None
        return parent

    def _from_the_best(self, member: Member, others: list[Member]) -> Member | None:
        ranked = sorted([*others, member], key=lambda m: -_score(m))
        count = max(1, round(self.rules.share * len(ranked))) if len(ranked) > 1 else 0
        if member not in ranked[-count:]:
            return None
        best = [m for m in ranked[:count] if m is not member]
        return best[int(self.generator.integers(len(best)))] if best else None


def _score(member: Member) -> float:
    return -math.inf if member.score is None else member.score


def welch(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Return (t, degrees of freedom) of Welch's test for mean(b) > mean(a), with unbiased variances.

    ``t = (mean_b - mean_a) / sqrt(s_a^2 / n_a + s_b^2 / n_b)``. Without any variance t is 0 or infinite. Source: Welch
    (1947); degrees of freedom by Satterthwaite (1946).
    """
    if min(len(a), len(b)) < 2:
        return 0.0, 1.0
    va, vb = float(np.var(a, ddof=1)) / len(a), float(np.var(b, ddof=1)) / len(b)
    difference = float(np.mean(b) - np.mean(a))
    if va + vb == 0.0:
        return math.copysign(math.inf, difference) if difference else 0.0, 1.0
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    return difference / math.sqrt(va + vb), freedom


def student_tail(t: float, freedom: float) -> float:
    """Return P(T > t) of Student's distribution, by Simpson's rule in the angle ``atan(T / sqrt(freedom))``, whose
    density is proportional to ``cos^(freedom - 1)``."""
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    angles = np.linspace(0.0, math.atan(abs(t) / math.sqrt(freedom)), 2001)
    heights = np.cos(angles) ** (freedom - 1.0)
    weights = np.ones(len(angles))
    weights[1:-1:2], weights[2:-1:2] = 4.0, 2.0
    area = float(weights @ heights) * float(angles[1]) / 3.0
    norm = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    tail = max(0.0, 0.5 - norm * area)
    return tail if t >= 0 else 1.0 - tail


def better(these: Sequence[float], those: Sequence[float]) -> bool:
    """Return True if ``these`` scores have a higher mean than ``those`` and Welch's two-sided test is significant."""
    t, freedom = welch(those, these)
    return t > 0 and 2 * student_tail(t, freedom) < SIGNIFICANT


def _begin(name: str, one: Interval | Choice, start: Mapping[str, Any]) -> Any:
    """Return member 0's value of one hyperparameter. Raises UsageError if it is missing or not among the choices."""
    if name not in start:
        raise UsageError(f"start has no {name}, which the space has; it has {', '.join(start) or 'nothing'}")
    if isinstance(one, Choice) and start[name] not in one.values:
        raise UsageError(f"start has {name} {start[name]!r}, which is none of {', '.join(map(repr, one.values))}")
    return start[name]
