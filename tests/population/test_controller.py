"""Who copies whom and what a copy changes: the fact sheet's worked numbers, and the paper's toy surface."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from present import present
from scipy import stats

import shoal
from shoal.api import RoleFailed, UsageError
from shoal.run.population.controller import Population, Rules, better, student_tail, welch
from shoal.run.population.hyperparameters import Choice, Interval, Space, interval_of, perturb
from shoal.settings.ranges import Fraction

A, B = [10, 12, 11, 9, 13, 10, 12, 11, 10, 12], [13, 15, 12, 14, 16, 13, 12, 15, 14, 13]
RATE = {"rate": Interval(1e-5, 1.0, log=True)}


def population(scores: list[float], seed: int = 0, **rules: Any) -> Population:
    made = Population(RATE, len(scores), Rules(**rules), seed)
    for index, score in enumerate(scores):
        made.report(index, 10, score)
    return made


# ------------------------------------------------------------------------------- worked numbers
def test_welch() -> None:
    t, freedom = welch(A, B)
    assert t == pytest.approx(4.668762, abs=1e-6) and freedom == pytest.approx(17.913, abs=1e-3)
    assert better(B, A) and not better(A, B)
    assert not better(A, A) and not better(A, A[:1])


@pytest.mark.parametrize("t,freedom,tail", [  # from tables of Student's distribution
    (1.812461, 10, 0.05), (2.228139, 10, 0.025), (6.313752, 1, 0.05), (1.729133, 19, 0.05), (0.0, 5, 0.5),
])  # fmt: skip
def test_student(t: float, freedom: float, tail: float) -> None:
    assert student_tail(t, freedom) == pytest.approx(tail, abs=1e-6)
    assert student_tail(-t, freedom) == pytest.approx(1 - tail, abs=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_better_is_welchs_two_sided_test_at_5_percent(seed: int) -> None:
    """Means moved apart until SciPy's p is just above and just below 0.05."""
    rng = np.random.default_rng(seed)
    these, those = rng.normal(0.0, 3.0, 4 + seed), rng.normal(0.0, 1.0, 9)
    these -= these.mean() - those.mean()

    def p(shift: float) -> float:
        return float(stats.ttest_ind(these + shift, those, equal_var=False).pvalue)

    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if p(middle) > 0.05 else (low, middle)
    for shift in (low * 0.99, low * 1.01, low / 2, -2 * low):
        assert better(list(these + shift), list(those)) == (shift > 0 and p(shift) < 0.05), p(shift)
    t, freedom = welch(list(those), list(these + low))
    assert 2 * student_tail(t, freedom) == pytest.approx(p(low), rel=1e-4)
    assert t == pytest.approx(stats.ttest_ind(these + low, those, equal_var=False).statistic)


@pytest.mark.parametrize("a, b, expected", [
    ([1.0, 1.0], [2.0, 2.0], math.inf), ([2.0, 2.0], [1.0, 1.0], -math.inf), ([1.0, 1.0], [1.0, 1.0], 0.0),
    ([1.0], [2.0, 3.0], 0.0), ([1.0, 3.0], [2.0], 0.0), ([1.0, 1.0], [2.0, 4.0], 2.0), ([1.0, 3.0], [4.0, 4.0], 2.0),
])  # fmt: skip
def test_welch_without_variance_or_samples(a: list[float], b: list[float], expected: float) -> None:
    assert welch(a, b)[0] == expected
    assert better(b, a) is (expected == math.inf)


@pytest.mark.parametrize("size, share, worst, best", [
    (10, 0.2, 2, 2), (10, 0.25, 2, 2), (10, 0.35, 4, 4), (4, 0.1, 1, 1), (5, 0.5, 2, 2), (3, 0.5, 2, 2), (2, 0.5, 1, 1),
])  # fmt: skip
def test_truncation_takes_its_share_of_both_ends(size: int, share: float, worst: int, best: int) -> None:
    parents, children = set(), set()
    for seed in range(40):
        for index in range(size):
            copied = population([float(s) for s in range(size)], seed, share=share).turn(index)
            if copied is not None:
                parents.add(copied.parent)
                children.add(copied.child)
    assert children == set(range(worst)) and parents == set(range(size - best, size))


def test_a_tournament_draws_any_other_member_that_has_a_score() -> None:
    parents = set()
    for seed in range(40):
        made = Population(RATE, 5, Rules(exploit="tournament"), seed)
        for index, score in ((0, 0.0), (1, 1.0), (2, 2.0), (4, 3.0)):  # 3 has none
            made.report(index, 10, score)
        made.members[4].lost = True
        copied = made.turn(0)
        assert copied is not None and (copied.score, copied.parent_score) == (0.0, float(copied.parent))
        parents.add(copied.parent)
        assert made.turn(3) is None
    assert parents == {1, 2}


def test_a_gap_must_be_passed_not_reached() -> None:
    assert population([1.0, 3.0], exploit="tournament", gap=2.0).turn(0) is None
    assert population([1.0, 3.0], exploit="tournament", gap=1.9).turn(0) is not None


def test_what_a_member_reports_is_kept() -> None:
    made = Population(RATE, 2, Rules())
    made.report(0, 7, 2.0)
    made.report(0, 12, math.nan, [1.0, math.nan, 3.0])
    member = made.members[0]
    assert (member.step, member.trained, member.score, member.samples) == (12, 12, 2.0, [2.0, 1.0, 3.0])
    made.report(0, 15, 4.0, [float(i) for i in range(9)])
    assert member.samples == [3.0, *map(float, range(9))] and member.score == 4.0, "the last ten"
    made.report(0, 10, 5.0)  # a run that goes on from an earlier checkpoint
    assert (member.step, member.trained) == (10, 15)
    made.report(1, 1, 4.9)
    assert made.best() is member
    copied = made.copy(made.members[1], member)
    assert (made.members[1].step, made.members[1].trained, made.members[1].turn) == (10, 1, 10)
    assert (copied.step, copied.parent_step, copied.score, copied.parent_score) == (1, 10, 4.9, 5.0)
    assert copied.before != copied.after == made.members[1].values


def test_those_who_have_trained_least_wait_first() -> None:
    made = population([0.0] * 5)
    for index, trained in enumerate((30, 10, 20, 5, 50)):
        made.members[index].trained = trained
    made.members[3].lost = True
    assert [m.index for m in made.waiting(50)] == [1, 2, 0]
    assert [m.index for m in made.waiting(51, busy=(1,))] == [2, 0, 4]


def test_a_member_that_copies_is_no_longer_lost() -> None:
    made = population([0.0, 1.0])
    made.members[0].lost = True
    made.copy(made.members[0], made.members[1])
    assert not made.members[0].lost


def test_truncation_of_ten() -> None:
    """Ranks 9 and 10 each copy rank 1 or 2; the others stay, hyperparameters too."""
    parents = set()
    for seed in range(20):
        made = population([float(s) for s in range(10)], seed)
        before = [dict(m.values) for m in made.members]
        made_copies = [made.turn(index) for index in range(9, -1, -1)]
        found = [c for c in made_copies if c is not None]
        assert {c.child for c in found} == {0, 1}
        parents |= {c.parent for c in found}
        for index in range(2, 10):
            assert made.members[index].values == before[index]
    assert parents == {8, 9}


def test_a_tournament_copies_only_what_is_better_by_more_than_the_gap() -> None:
    """IMPALA's rule: own 46.0; other 50.9: no copy; 51.1: copy."""
    assert population([46.0, 50.9], exploit="tournament", gap=5.0).turn(0) is None
    assert population([46.0, 51.1], exploit="tournament", gap=5.0).turn(0) is not None
    assert population([46.0, 51.1], exploit="tournament").turn(1) is None


def test_the_t_test_looks_at_samples() -> None:
    made = Population(RATE, 2, Rules(exploit="ttest"))
    made.report(0, 10, float(np.mean(A)), A)
    made.report(1, 10, float(np.mean(B)), B)
    assert made.turn(1) is None
    assert made.turn(0) is not None
    noisy = Population(RATE, 2, Rules(exploit="ttest"))
    noisy.report(0, 10, 5.0, [0.0, 10.0, 5.0])
    noisy.report(1, 10, 5.5, [0.5, 10.5, 5.5])
    assert noisy.turn(0) is None


def test_equal_scores_and_a_population_of_one_copy_nothing() -> None:
    for exploit in ("truncation", "tournament", "ttest"):
        made = population([3.0] * 5, exploit=exploit)
        assert [made.turn(i) for i in range(5)] == [None] * 5
        assert population([3.0], exploit=exploit).turn(0) is None


def test_a_copy_clears_the_scores() -> None:
    made = population([0.0, 1.0])
    assert made.turn(0) is not None
    member = made.members[0]
    assert member.score is None and member.samples == [] and member.turn == member.step == 10
    assert not made.ready(0)
    made.report(0, 11, math.nan)
    assert made.ready(0) and made.turn(0) is None  # no episode since the copy: no reason to copy again


def test_a_member_is_ready_by_steps() -> None:
    made = Population(RATE, 2, Rules(interval=100, warm_up=250))
    for step, ready in ((99, False), (249, False), (250, True)):
        made.report(0, step, 0.0)
        assert made.ready(0) is ready


def test_warm_up_counts_the_steps_of_what_a_member_is_now() -> None:
    made = Population(RATE, 2, Rules(interval=10, warm_up=250))
    made.report(0, 300, 1.0)
    made.report(1, 20, 0.0)
    made.copy(made.members[1], made.members[0])
    made.report(1, 309, 0.0)
    assert made.members[1].trained == 29 and not made.ready(1), "one step before its next turn"
    made.report(1, 310, 0.0)
    assert made.ready(1)


def test_perturbing() -> None:
    generator = np.random.default_rng(0)
    found = {round(RATE["rate"].perturb(1e-3, generator), 9) for _ in range(50)}
    assert found == {1.2e-3, 8e-4}
    assert RATE["rate"].perturb(1.0, np.random.default_rng(1), (1.2,)) == 1.0  # within its bounds
    gamma = Interval(0.9, 0.999, one_minus=True, log=True)
    assert gamma.perturb(0.99, generator, (2.0,)) == pytest.approx(0.98)
    assert all(0.9 <= gamma.draw(generator) <= 0.999 for _ in range(100))
    whole = Interval(1, 8, integer=True)
    assert {whole.perturb(2, generator) for _ in range(50)} == {1, 3}
    assert whole.perturb(1, generator, (0.8,)) == 1
    choice = Choice(("a", "b", "c"))
    assert {choice.perturb("b", generator) for _ in range(50)} == {"a", "c"}
    assert choice.perturb("c", generator, (1.2,)) == "c"


@pytest.mark.parametrize("interval, factor, value, expected", [
    (Interval(0.0, 1.0), 1.2, 0.5, 0.6), (Interval(0.0, 1.0), 0.8, 0.5, 0.4), (Interval(0.0, 0.55), 1.2, 0.5, 0.55),
    (Interval(0.45, 1.0), 0.8, 0.5, 0.45), (Interval(1, 9, integer=True), 1.2, 5, 6),
    (Interval(1, 9, integer=True), 1.2, 2, 3),
    (Interval(1, 9, integer=True), 0.8, 2, 1), (Interval(1, 9, integer=True), 0.8, 1, 1),
    (Interval(1, 9, integer=True), 1.2, 9, 9), (Interval(1, 90, integer=True), 1.2, 50, 60),
    (Interval(0.5, 0.999, one_minus=True), 1.2, 0.9, 0.88), (Interval(0.5, 0.999, one_minus=True), 0.8, 0.9, 0.92),
    (Interval(0.5, 0.99, one_minus=True), 0.8, 0.99, 0.99), (Interval(0.5, 0.99, one_minus=True), 1.2, 0.5, 0.5),
])  # fmt: skip
def test_a_number_is_perturbed_within_its_interval(
    interval: Interval, factor: float, value: Any, expected: Any
) -> None:
    found = interval.perturb(value, np.random.default_rng(0), (factor,))
    assert found == pytest.approx(expected) and isinstance(found, int) == interval.integer


@pytest.mark.parametrize("interval, low, high, middle", [
    (Interval(2.0, 6.0), 2.0, 6.0, 4.0), (Interval(1e-4, 1e-2, log=True), 1e-4, 1e-2, 1e-3),
    (Interval(0.9, 0.999, log=True, one_minus=True), 0.9, 0.999, 0.99),
    (Interval(0.9, 0.98, one_minus=True), 0.9, 0.98, 0.94),
])  # fmt: skip
def test_the_prior_is_uniform_or_uniform_in_the_logarithm(
    interval: Interval, low: float, high: float, middle: float
) -> None:
    rng = np.random.default_rng(0)
    drawn = np.array([interval.draw(rng) for _ in range(4_000)])
    assert low <= drawn.min() and drawn.max() <= high
    assert np.mean(drawn < middle) == pytest.approx(0.5, abs=0.04)  # five standard errors
    assert (
        np.mean(np.abs(drawn - low) < 0.1 * (high - low)) > 0.02
        and np.mean(np.abs(drawn - high) < 0.1 * (high - low)) > 0.02
    )


@pytest.mark.parametrize(
    "factor, value, expected", [(1.2, "b", "c"), (0.8, "b", "a"), (1.2, "c", "c"), (0.8, "a", "a"), (1.0, "b", "a")]
)
def test_a_choice_moves_to_its_neighbour(factor: float, value: str, expected: str) -> None:
    assert Choice(("a", "b", "c")).perturb(value, np.random.default_rng(0), (factor,)) == expected


@pytest.mark.parametrize("name, value, ends, hint, expected", [
    ("rate", 0.01, (None, None), float, (0.001, 0.1, True, False, False)),
    ("batch", 32, (None, None), int, (3, 320, True, True, False)),
    ("batch", 4, (None, None), int, (1, 40, True, True, False)),
    ("batch", 4, (2.4, 9.6), int, (2, 10, True, True, False)),
    ("gamma", 0.99, (None, None), Fraction, (0.9, 0.999, True, False, True)),
    ("gae_lambda", 0.5, (None, None), Fraction, (0.001, 0.95, True, False, True)),
    ("gamma", 0.9, (0.8, 1.0), Fraction, (0.8, 1.0, False, False, True)),
    ("gamma", 0.0, (0.0, 0.5), Fraction, (0.0, 0.5, False, False, False)),
    ("epsilon", 0.3, (None, None), Fraction, (0.03, 1.0, True, False, False)),
    ("cost", 0.0, (0.0, 2.0), float, (0.0, 2.0, False, False, False)),
])  # fmt: skip
def test_the_interval_of_a_setting(name: str, value: Any, ends: Any, hint: Any, expected: Any) -> None:
    found = interval_of(name, value, ends[0], ends[1], hint=hint)
    assert tuple(found[k] for k in ("low", "high", "log", "integer", "one_minus")) == pytest.approx(expected)
    assert isinstance(found["low"], int) == isinstance(value, int)
    with pytest.raises(UsageError, match="takes numbers"):
        interval_of(name, True)
    with pytest.raises(UsageError, match="give its interval"):
        interval_of(name, 0)


@pytest.mark.parametrize("ends", [(1e-46, 1e-45), (0.0, 1e-46), (0.1, 0.1 + 1e-12), (-1e-3, -1e-3), (1.0, 0.5)])
def test_an_interval_holds_numbers_that_differ_in_float32(ends: tuple[float, float]) -> None:
    with pytest.raises(UsageError, match=r"float32|two different numbers"):
        interval_of("cost", 0.5, *ends)
    assert Interval(2**60, 2**60 + 1, integer=True).high == 2**60 + 1, "whole numbers have 64 bits"


def test_how_often_hyperparameters_change() -> None:
    """IMPALA: none of three with probability 0.67^3 = 0.300763. Ray Tune: a quarter drawn afresh."""
    space = {name: Interval(1e-5, 1.0, log=True) for name in "abc"}
    values, generator = dict.fromkeys("abc", 1e-2), np.random.default_rng(0)
    trials = 4_000
    none = sum(perturb(space, values, generator, probability=0.33) == values for _ in range(trials)) / trials
    assert abs(none - 0.300763) < 4 * math.sqrt(0.3 * 0.7 / trials)
    drawn = [perturb(RATE, {"rate": 1e-2}, generator, resample=0.25)["rate"] for _ in range(trials)]
    for wanted, share in ((1.2e-2, 0.375), (8e-3, 0.375)):
        found = sum(math.isclose(x, wanted) for x in drawn) / trials
        assert abs(found - share) < 4 * math.sqrt(share * (1 - share) / trials)


def test_the_lineage_gives_the_schedule() -> None:
    made = population([0.0, 1.0, 2.0], share=0.34)
    first = made.turn(0)
    assert first is not None and first.parent == 2
    made.report(0, 30, 9.0)
    made.report(1, 25, 1.5)
    second = made.turn(1)
    assert second is not None and second.parent == 0
    assert made.schedule(1) == [(0, first.before | made.members[2].values), (10, first.after), (30, second.after)]
    assert made.schedule(2) == [(0, made.members[2].values)]


def test_its_state_is_json_and_goes_on_where_it_was() -> None:
    made = population([0.0, 1.0, 2.0, 3.0, 4.0])
    made.turn(0)
    other = Population(RATE, 5, Rules(), seed=99)
    other.load_state_dict(json.loads(json.dumps(made.state_dict())))
    for step in range(20, 40):  # each draws a factor
        for one in (made, other):
            one.report(0, step * 10, -1.0)
            assert one.turn(0) is not None
    assert made.lineage == other.lineage and made.members == other.members


def test_hyperparameters_that_cannot_run_are_drawn_again() -> None:
    space = {"parts": Interval(1, 8, integer=True)}
    asked: list[int] = []

    def runs(values: dict[str, Any]) -> bool:
        asked.append(values["parts"])
        return values["parts"] in (1, 2, 4, 8)

    made = Population(space, 16, Rules(share=0.5), seed=1, runs=runs)
    assert {m.values["parts"] for m in made.members} <= {1, 2, 4, 8} < set(asked)
    free = Population(space, 16, Rules(), seed=1)
    assert any(one.values == other.values for one, other in zip(made.members, free.members, strict=True))
    for member in made.members:
        made.report(member.index, 10, float(member.index))
    copies = [copy for copy in map(made.turn, range(8)) if copy is not None]
    assert copies and all(copy.after["parts"] in (1, 2, 4, 8) for copy in copies)
    made.runs = lambda values: False
    stuck = made.copy(made.members[0], made.members[15])
    assert stuck.after == made.members[15].values, "where nothing else can run, what runs"
    with pytest.raises(UsageError, match="of 50 draws of hyperparameters in a row none can run"):
        Population(space, 2, Rules(), runs=lambda values: False)


# ------------------------------------------------------------------------------ the toy surface
def toy(theta: Any, values: dict[str, float], steps: int) -> tuple[Any, float]:
    """Jaderberg et al. 2017, section 3.2: Q = 1.2 - x0^2 - x1^2 is maximised by way of 1.2 - h0 x0^2 - h1 x1^2, each
    step of which shrinks x by 0.02 h x."""
    theta = np.array([0.9, 0.9]) if theta is None else theta
    theta *= (1.0 - 0.01 * 2.0 * np.array([values["h0"], values["h1"]])) ** steps
    return theta, 1.2 - float((theta**2).sum())


def one_sided(theta: Any, values: dict[str, float], steps: int) -> tuple[Any, float]:
    h = values["side"], 1.0 - values["side"]
    return toy(theta, {"h0": h[0] * values["rate"], "h1": h[1] * values["rate"]}, steps)


def test_it_beats_random_search_on_the_toy_surface() -> None:
    """The members can only move along one axis: alone none gets beyond 1.2 - 0.81; copying, both are brought down."""
    space: Space = {"side": Choice((0, 1)), "rate": Interval(0.5, 1.0)}
    alone = max(one_sided(None, {"side": side, "rate": 1.0}, 400)[1] for side in (0, 1))  # the best that there is
    for seed in range(8):
        found = shoal.pbt(one_sided, space, steps=400, interval=5, population=8, seed=seed, explore="resample")
        assert found.score > 1.1 > alone + 0.7, (seed, found.score)
        assert {values["side"] for _, values in found.schedule} == {0, 1}


def test_a_search_is_deterministic_and_moves_states() -> None:
    space = {"h0": Interval(0.0, 1.0), "h1": Interval(0.0, 1.0)}
    one, two = (shoal.pbt(toy, space, steps=100, interval=5, population=4, seed=3) for _ in range(2))
    assert one.score == two.score and one.history == two.history and np.array_equal(one.state, two.state)
    assert toy(copy.copy(one.state), {"h0": 0.0, "h1": 0.0}, 1)[1] == one.score
    copied = one.lineage[0]
    after = next(row for row in one.history[copied.child] if row[2] == copied.after)
    assert after[1] >= present(copied.parent_score)  # it went on from the parent's state, not from its own


def test_every_member_trains_for_its_own_steps_whatever_it_copies() -> None:
    """Scores that are chance: many copies, some of members that are further back. None makes anybody train longer."""
    rng, made = np.random.default_rng(0), []

    def chance(state: Any, values: Any, steps: int) -> tuple[int, float]:
        made.append(steps)
        return (state or 0) + steps, float(rng.normal())

    found = shoal.pbt(chance, RATE, steps=40, interval=3, population=6, share=0.5)
    assert sum(made) == 6 * 40 and sorted(made) == [1] * 6 + [3] * 6 * 13, "the last turn of each is what is left"
    assert any(c.parent_step < c.step for c in found.lineage)


def test_an_older_state_has_trained_as_far_as_it_is() -> None:
    made = population([1.0, 2.0])
    state = made.state_dict()
    for member in state["members"]:
        del member["trained"]
    made.load_state_dict(state)
    assert [m.trained for m in made.members] == [10, 10] and made.waiting(10) == []


def test_a_search_on_two_processes_survives_a_kill() -> None:
    def dies(state: Any, values: dict[str, Any], steps: int) -> tuple[Any, float]:
        import os
        import pathlib

        told = pathlib.Path(values["where"])
        if state is not None and not told.exists():
            told.touch()
            os._exit(9)
        return toy(state, values, steps)

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        space: Space = {"h0": Interval(0.0, 1.0), "h1": Interval(0.0, 1.0), "where": Choice((f"{folder}/told",))}
        found = shoal.pbt(dies, space, steps=40, interval=10, population=3, workers=2)
        assert Path(folder, "told").exists()  # somebody has died
        assert [len(rows) for rows in found.history] == [4] * 3  # and yet each has trained all of its turns
    with pytest.raises(RoleFailed, match="boom"):
        shoal.pbt(boom, {"h0": Interval(0.0, 1.0)}, steps=2, interval=1, population=2, workers=2)


@pytest.mark.parametrize("fields, told", [
    (dict(start={"rate": 0.1}), "start has no side, which the space has; it has rate"),
    (dict(start={"rate": 0.1, "side": 3}), "start has side 3, which is none of 0, 1"),
    (dict(factors=()), "factors expects one or more numbers above 0"),
    (dict(probability=7.0), "probability expects a number from 0 to 1, found 7"),
    (dict(gap=float("nan")), "gap expects a finite number of at least 0, found nan"),
])  # fmt: skip
def test_rules_and_starts_that_cannot_be(fields: dict[str, Any], told: str) -> None:
    space: Space = {"rate": Interval(0.0, 1.0), "side": Choice((0, 1))}
    with pytest.raises(UsageError, match=re.escape(told)):
        shoal.pbt(boom, space, steps=2, interval=1, population=2, **fields)


def boom(state: Any, values: dict[str, float], steps: int) -> tuple[Any, float]:
    raise ValueError("boom")


@pytest.mark.parametrize("make,told", [
    (lambda: Rules(exploit="best"), "exploit expects one of truncation, tournament, ttest, found 'best'"),  # type: ignore[arg-type]
    (lambda: Rules(share=0.7), "share expects"),
    (lambda: Interval(2.0, 1.0), "the lower first"),
    (lambda: Interval(0.0, 1.0, log=True), "above 0"),
    (lambda: Choice(()), "at least one value"),
    (lambda: shoal.pbt(toy, {}, steps=1, interval=2), "steps"),
])  # fmt: skip
def test_mistakes_are_told(make: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        make()
