"""The figures of a run, from a clock that is set by hand: counts, means, rates, shares, windows and limits."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.metering import aggregator as aggregator_module, recorder as recorder_module
from shoal.metering.aggregator import WINDOW, Aggregator, quantile
from shoal.metering.bottleneck import Bottleneck, bottleneck
from shoal.metering.recorder import OTHER, START, Recorder, Telemetry, recorder
from shoal.runtime.launch import Stop


class Clock:
    now = 100.0

    def perf_counter(self) -> float:
        return self.now

    monotonic = perf_counter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    out = Clock()
    for module in (aggregator_module, recorder_module):
        monkeypatch.setattr(module, "time", out)
    return out


# -------------------------------------------------------------------------------------- one replica
def test_every_second_is_booked_to_one_phase(clock: Clock) -> None:
    one = Recorder()
    shown: list[str] = []
    one.show = shown.append
    clock.now += 3.0
    assert one.enter("learn") == START
    clock.now += 2.0
    with one.phase("sample"):
        clock.now += 0.5
        with one.phase("wait"):
            clock.now += 0.25
    clock.now += 1.0
    told = one.drain()
    assert told.phases == {START: 3.0, "learn": 3.0, "sample": 0.5, "wait": 0.25} and told.seconds == 6.75
    clock.now += 4.0
    one.beat()
    again = one.drain()
    assert again.phases == {"learn": 4.0} and again.seconds == 4.0, "the phase goes on"
    assert shown == ["learn", "sample", "wait", "sample", "learn", "learn"]
    assert one.enter("learn") == "learn" and one.drain().phases == {}
    assert Recorder(OTHER).enter("x") == OTHER


def test_figures_are_drained_and_totals_are_not(clock: Clock) -> None:
    one = Recorder()
    one.count("updates")
    one.count("updates", 4)
    one.record("loss", 1.0)
    one.record_all({"loss": 4.0, "kl": 0.5})
    one.tally("lag", (3, 3, 0))
    one.tally("lag", [3])
    one.episode(2.0, 5, {"win": 1.0})
    one.episode(-1.0, 7)
    told = one.drain()
    assert told.counts == {"updates": 5} and told.records == {"loss": (5.0, 2), "kl": (0.5, 1)}
    assert (
        told.tallies == {"lag": {3: 3, 0: 1}}
        and told.episodes == [(2.0, 5), (-1.0, 7)]
        and told.infos == {"win": [1.0]}
    )
    one.count("updates")
    told = one.drain()
    assert told.counts == {"updates": 1} and one.totals == {"updates": 6}
    assert not told.records and not told.tallies and not told.episodes and not told.infos


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_profile_has_its_first_spans(clock: Clock, limit: int) -> None:
    one = recorder(limit)
    clock.now += 1.0
    for name in ("a", "b", "c", "d"):
        one.enter(name)
        clock.now += 2.0
    spans = [("a", 101.0, 2.0), ("b", 103.0, 2.0), ("c", 105.0, 2.0)]
    assert one.drain().spans == spans[:limit] and not one.drain().spans
    assert type(recorder(0)) is Recorder


# ---------------------------------------------------------------------------------------- all of them
def filled(clock: Clock) -> Aggregator:
    run = Aggregator()
    clock.now += 10.0
    run.add("actor", Telemetry(
        counts={"env_steps": 30, "bytes": 8}, records={"loss": (3.0, 2)}, tallies={"lag": {1: 1}},
        phases={"env": 4.0, "wait": 1.0}, episodes=[(1.0, 10), (3.0, 30)], infos={"win": [1.0, 0.0]}, seconds=10.0,
    ))  # fmt: skip
    run.add("actor", Telemetry(counts={"env_steps": 20}, records={"loss": (9.0, 1)}, tallies={"lag": {1: 2, 7: 1}},
                               phases={"env": 6.0}, seconds=10.0, spans=[("env", 0.0, 1.0)]), 1)  # fmt: skip
    run.add("learner", Telemetry(counts={"updates": 5}, phases={"learn": 5.0}, seconds=10.0))
    return run


def test_a_snapshot_is_of_the_time_since_the_last(clock: Clock) -> None:
    run = filled(clock)
    assert run.changed and (run.steps, run.updates, run.told) == (50, 5, 0) and run.seconds == 10.0
    one = run.snapshot({"queue": 0.5}, memory=7)
    assert (one.row, one.seconds, one.steps, one.updates, one.episodes, one.memory) == (1, 10.0, 50, 5, 2, 7)
    assert (one.step_rate, one.update_rate, one.byte_rate, one.fill) == (5.0, 0.5, 0.8, {"queue": 0.5})
    assert (one.episode_return, one.episode_length, one.infos) == (2.0, 20.0, {"win": 0.5})
    assert one.records == {"loss": 4.0, "lag_p50": 1.0, "lag_p95": 7.0, "lag_max": 7.0}
    assert one.histograms == {"lag": {1: 3, 7: 1}} and one.new_episodes == [(1.0, 10), (3.0, 30)]
    assert one.shares == {"actor": {"env": 0.5, "wait": 0.05}, "learner": {"learn": 0.5}}
    assert one.phase_seconds["actor"] == {"env": 10.0, "wait": 1.0} and one.spans == {("actor", 1): [("env", 0.0, 1.0)]}
    assert not run.changed and run.told == 50
    clock.now += 4.0
    run.add(
        "actor", Telemetry(counts={"env_steps": 6, "bytes": 4}, phases={"env": 1.0}, seconds=4.0, episodes=[(8.0, 2)])
    )
    assert run.changed
    two = run.snapshot()
    assert (two.row, two.seconds, two.step_rate, two.update_rate, two.byte_rate) == (2, 14.0, 1.5, 0.0, 1.0)
    assert two.records == {} and two.histograms == {} and two.new_episodes == [(8.0, 2)] and two.spans == {}
    assert two.shares == {"actor": {"env": 0.25}} and two.phase_seconds["actor"] == {"env": 11.0, "wait": 1.0}
    assert two.episode_return == 4.0 and two.episodes == 3 and two.infos == {"win": 0.5} and two.counts["bytes"] == 12
    run.add("learner", Telemetry(counts={"updates": 1}))
    assert run.changed, "by updates alone, too"


def test_before_anything_there_is_no_mean(clock: Clock) -> None:
    run = Aggregator()
    assert run.changed and math.isnan(run.episode_return)
    one = run.snapshot()
    assert math.isnan(one.episode_length) and one.byte_rate is None and one.step_rate == 0.0 and not run.changed


def test_the_return_is_that_of_the_last_hundred_episodes(clock: Clock) -> None:
    run = Aggregator()
    for n in range(1, 151):
        run.add("actor", Telemetry(episodes=[(float(n), n)], infos={"win": [float(n)]}))
        assert run.full_window == (n >= 100)
        last = range(max(1, n - 99), n + 1)
        assert run.episode_return == sum(last) / len(last)
    one = run.snapshot()
    assert WINDOW == 100 and one.episode_length == one.infos["win"] == 100.5 and one.episodes == 150


def test_time_before_the_training_does_not_count(clock: Clock) -> None:
    run = Aggregator()
    clock.now += 60.0
    run.begin()
    clock.now += 5.0
    run.add("actor", Telemetry(counts={"env_steps": 10}))
    one = run.snapshot()
    assert (one.seconds, one.step_rate) == (5.0, 2.0)


def test_a_saved_run_goes_on_with_all_its_figures(clock: Clock) -> None:
    """Those of an interval that has not been told too; the time between the two launches is none of it."""
    run = filled(clock)
    run.restarts = 2
    run.snapshot()
    run.add("actor", Telemetry(counts={"env_steps": 7, "bytes": 3}, records={"kl": (4.0, 2)}, tallies={"lag": {2: 1}},
                               episodes=[(5.0, 5)], infos={"win": [1.0]}))  # fmt: skip
    saved = copy.deepcopy(run.state_dict())
    assert saved["seconds"] == 10.0
    clock.now += 1_000.0
    again = Aggregator()
    again.load_state_dict(saved)
    assert again.state_dict() == saved and (again.told, again.changed) == (50, True)
    clock.now += 2.0
    one = again.snapshot()
    assert (one.row, one.seconds, one.steps, one.updates, one.episodes, one.restarts) == (2, 12.0, 57, 5, 3, 2)
    assert (one.step_rate, one.byte_rate, one.episode_return) == (3.5, 0.0, 3.0)
    assert one.records == {"kl": 2.0, "lag_p50": 2.0, "lag_p95": 2.0, "lag_max": 2.0} and one.infos == {"win": 2 / 3}
    assert one.new_episodes == [(5.0, 5)] and isinstance(again._window[0], tuple) and again._window.maxlen == 100
    assert again._infos["win"].maxlen == 100


@pytest.mark.parametrize(
    "q,value", [(0.0, 1), (0.25, 1), (0.26, 2), (0.5, 2), (0.75, 2), (0.76, 9), (0.95, 9), (1.0, 9)]
)
def test_a_quantile_is_the_smallest_number_that_so_many_do_not_exceed(q: float, value: int) -> None:
    assert quantile({9: 2, 1: 2, 2: 4}, q) == value
    assert quantile({5: 1}, q) == 5


# ------------------------------------------------------------------------------------------ its end
@pytest.mark.parametrize("limit", ["steps", "updates", "seconds", "episode_return"])
def test_a_limit_is_reached_at_its_number(limit: str) -> None:
    for found, reached in ((9, False), (10, True), (11, True)):
        run: Any = SimpleNamespace(steps=0, updates=0, seconds=0.0, episode_return=-99.0, full_window=True)
        setattr(run, limit, found)
        assert Stop(**dict[str, Any]({limit: 10})).reached(run) == (limit if reached else "")
    assert Stop().reached(run) == ""


def test_a_return_is_reached_by_a_hundred_episodes() -> None:
    run: Any = SimpleNamespace(steps=0, updates=0, seconds=0.0, episode_return=50.0, full_window=False)
    assert Stop(episode_return=10.0).reached(run) == ""
    run.full_window = True
    assert Stop(episode_return=10.0).reached(run) == "episode_return"
    assert Stop(asked=lambda: True).reached(run) == "observer" and Stop(asked=lambda: False).reached(run) == ""


# ------------------------------------------------------------------------------------ its bottleneck
@pytest.mark.parametrize(
    "shares, found",
    [
        # whoever waits least, by the kind of work that takes most of its time
        ({"actor": {"env": 0.2, "unroll": 0.2, "inference": 0.3, "wait:params": 0.3},
          "learner": {"learn": 0.5, "wait:x": 0.5}},
         Bottleneck("actor", "actor", 0.4, ("env", "unroll"))),
        # the time before the first step is none: 0.25 of 0.5 is more than 0.4
        ({"actor": {"start": 0.5, "wait:out": 0.25, "env": 0.25}, "learner": {"wait:inp": 0.4, "learn": 0.6}},
         Bottleneck("learner", "learner", 0.6, ("learn",))),
        # nobody who has hardly begun, and nobody who does nothing but wait
        ({"actor": {"start": 0.953125, "env": 0.046875}}, None),
        ({"actor": {"start": 0.9375, "env": 0.0625}}, Bottleneck("actor", "actor", 1.0, ("env",))),
        ({"actor": {"wait:out": 0.9, "env": 0.1}}, None),
        ({"actor": {"wait:out": 0.875, "env": 0.125}}, Bottleneck("actor", "actor", 0.125, ("env",))),
        # of two that do not wait, the one with more work
        ({"one": {"learn": 0.5, "other": 0.5}, "two": {"env": 1.0}}, Bottleneck("actor", "two", 1.0, ("env",))),
        ({"two": {"env": 1.0}, "one": {"learn": 0.5, "other": 0.5}}, Bottleneck("actor", "two", 1.0, ("env",))),
        # what holds nobody up is no work; of a kind, a phase with a tenth of it is named
        ({"learner": {"checkpoint": 0.5, "learn": 0.25, "batch": 0.03125, "publish": 0.015625}},
         Bottleneck("learner", "learner", 0.296875, ("learn", "batch"))),
        ({"own": {"think": 0.75, "other": 0.25}}, Bottleneck("own", "own", 0.75, ("think",))),
        ({"learner": {"other": 1.0}}, None), ({}, None),
    ],
)  # fmt: skip
def test_the_bottleneck_is_the_work_of_whoever_waits_least(shares: Any, found: Bottleneck | None) -> None:
    assert bottleneck(shares) == found
