"""The evaluator: whose episodes count, when it is due, what it plays with, and what it keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fakes import Params, PlainAgent, ScriptedEnvs, SummingAgent, context

from shoal.api import EnvironmentFailed, Episode
from shoal.roles import evaluator as evaluator_module
from shoal.roles.evaluator import MAX_STEPS, Episodes, EvaluatorRole, Returns, evaluation_seed, make_evaluator

SCRIPT = [[(2, "terminated"), (5, "truncated")], [(1, "terminated"), (4, "terminated"), (1, "truncated")]]


def lonely(e: int, episode: int, greedy: bool) -> float:
    """The return of an episode that an agent without a memory of others plays."""
    length, total, out = SCRIPT[e][episode % len(SCRIPT[e])][0], 0.0, 0.0
    for step in range(length):
        total += 1_000 * e + 100 * episode + step
        out += 1.0 + e + (0 if greedy else int(total) % 7)
    return out


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("episodes,quota", [(5, [3, 2]), (4, [2, 2]), (1, [1, 0])])
def test_each_environment_plays_its_number_of_episodes(
    mode: str, greedy: bool, episodes: int, quota: list[int]
) -> None:
    """Fixed beforehand, so that short episodes are not favoured; each as if it were the only one: the recurrent state
    is that of its own episode."""
    played = Episodes(ScriptedEnvs(SCRIPT, mode), SummingAgent(), episodes, 0, greedy)
    assert played.quota == quota and not played.done
    found = played.play()
    assert played.done and len(found) == episodes
    assert list(found) == [lonely(e, k, greedy) for e, n in enumerate(quota) for k in range(n)]
    lengths = [[SCRIPT[e][k % len(SCRIPT[e])][0] for k in range(n)] for e, n in enumerate(quota)]
    assert [[episode.length for episode in of] for of in played.episodes] == lengths
    if mode == "same_step":
        steps = max(sum(of) for of in lengths)
    else:
        steps = max(sum(of) + max(0, len(of) - 1) for of in lengths)
    assert len(played.env.actions) == steps, "it ends with the last of them"


def test_evaluations_are_greedy_unless_they_are_told() -> None:
    for role in (evaluator(Clock(100), whole=True), evaluator(Clock(100), whole=True, greedy=False)):
        assert not role.unfinished
        role.step()
    assert set(role.agent.greedy[1:]) == {False}
    agent = SummingAgent()
    Episodes(ScriptedEnvs(SCRIPT), agent, 3, 0).play()
    evaluated = evaluator(Clock(100), whole=True)
    evaluated.step()
    assert set(agent.greedy[1:]) == set(evaluated.agent.greedy[1:]) == {True}


def test_an_agent_may_have_no_state() -> None:
    role = evaluator(Clock(100), whole=True)
    role.agent = PlainAgent()
    role.step()
    assert role.state_dict() == {"next": 200, "agent": None, "unfinished": False}
    role.load_state_dict({"next": 300, "agent": {"of": "another"}})  # and an older checkpoint does not say the rest
    assert role._next == 300 and role.unfinished is False


def test_an_evaluation_seeds_its_environments() -> None:
    env = ScriptedEnvs(SCRIPT)
    Episodes(env, SummingAgent(), 1, 123)
    assert env.seeds == [123]


def test_returns_come_with_the_means_of_the_environments_numbers() -> None:
    found = Returns([Episode(1.0, 3, {"success": 1.0, "a": 2.0}), Episode(-2.5, 1, {"success": 0.0}), Episode(0.0, 2)])
    assert found == [1.0, -2.5, 0.0] and found.info == {"success": 0.5, "a": 2.0}
    assert Returns() == [] and Returns().info == {}


def test_episodes_that_are_not_told_are_an_error() -> None:
    env = ScriptedEnvs(SCRIPT)
    step = env.step
    env.step = lambda action: step(action)._replace(episodes=[])  # type: ignore[method-assign]
    with pytest.raises(EnvironmentFailed, match="ended 1 episode but reported 0 returns"):
        Episodes(env, SummingAgent(), 2, 0).play()


# ------------------------------------------------------------------------------------- the role
class Results:
    def __init__(self) -> None:
        self.added: list[tuple[Any, ...]] = []

    def add(self, steps: int, version: int, returns: list[float], params: Any, info: Any, unfinished: int = 0) -> None:
        self.added.append((steps, version, list(returns), float(params["scale"]), dict(info)))


class Clock:
    """Environment steps of the run."""

    def __init__(self, steps: int = 0) -> None:
        self.steps = steps
        self.stop = False


def evaluator(clock: Clock, **options: Any) -> Any:
    ctx = context("evaluator", seed=9, steps=lambda: clock.steps, interrupted=lambda: clock.stop)
    options = {"every": 100, "episodes": 3, **options}
    params = Params()
    params.publish({"scale": torch.tensor(4.0)})
    return EvaluatorRole(ctx, ScriptedEnvs(SCRIPT), SummingAgent(), Results(), params, **options)


def test_an_evaluation_is_due_at_every_multiple() -> None:
    """From the multiple itself on; one that took long is followed by the newest that was passed, not by all of them."""
    clock = Clock()
    role = evaluator(clock, whole=True)
    due = []
    for clock.steps in (0, 99, 100):
        due.append(role.due())
    assert due == [False, False, True]
    role.step()
    assert [found[0] for found in role.results.added] == [100] and not role.due()
    due = []
    for clock.steps in (199, 200):
        due.append(role.due())
    assert due == [False, True]
    clock.steps = 730
    role.step()
    assert role.results.added[-1][0] == 730
    due = []
    for clock.steps in (799, 800):
        due.append(role.due())
    assert due == [False, True]
    role = evaluator(Clock(250))
    assert role._next == 300, "of a run that goes on"


def test_an_evaluation_that_took_longer_than_a_period_is_followed_at_once() -> None:
    clock = Clock(100)
    role = evaluator(clock)
    role.step()
    clock.steps = 350
    assert role.due(), "one that has begun goes on"
    while not role.results.added:
        role.step()
    assert role.results.added[0][0] == 100, "it is of the step at which it began"
    assert role._next == 300 and role.due()
    clock = Clock(100)
    role = evaluator(clock)
    role.step()
    clock.steps = 199
    while not role.results.added:
        role.step()
    assert role._next == 200 and not role.due()


@pytest.mark.parametrize("greedy", [True, False])
def test_an_evaluation_plays_with_the_newest_parameters(greedy: bool) -> None:
    """Those of its beginning, whatever is published meanwhile; what it found is recorded."""
    clock = Clock(100)
    role = evaluator(clock, greedy=greedy, episodes=3)
    role.params.publish({"scale": torch.tensor(6.0)})
    role.step()
    role.params.publish({"scale": torch.tensor(8.0)})
    while not role.results.added:
        role.step()
    returns = [lonely(0, 0, greedy), lonely(0, 1, greedy), lonely(1, 0, greedy)]
    assert role.results.added == [(100, 2, returns, 6.0, {"number": np.mean([0.0, 1.0, 10.0])})]
    assert role.agent.loaded == [2] and set(role.agent.greedy[1:]) == {greedy}
    records = role.ctx.metrics.drain().records
    assert records["evaluation_return"] == (np.mean(returns), 1)
    assert records["evaluation_number"] == (np.mean([0.0, 1.0, 10.0]), 1)
    assert role.env.seeds == [evaluation_seed(9, 100)] and not role.due()
    role.close()
    assert role.env.closed


def test_a_number_called_return_is_not_the_return() -> None:
    clock = Clock(100)
    role = evaluator(clock, whole=True)
    step = role.env.step

    def renamed(action: Any) -> Any:
        found = step(action)
        return found._replace(episodes=[e._replace(info={"return": 5.0}) for e in found.episodes])

    role.env.step = renamed
    role.step()
    records = role.ctx.metrics.drain().records
    assert records["evaluation_info/return"] == (5.0, 1) and records["evaluation_return"][1] == 1


def test_one_step_is_one_vector_step_or_the_whole() -> None:
    role = evaluator(Clock(100))
    role.step()
    assert len(role.env.actions) == 1 and not role.unfinished and not role.results.added
    role = evaluator(Clock(100), whole=True)
    role.step()
    assert len(role.results.added) == 1 and not role.unfinished
    cut = Clock(100)
    cut.stop = True
    role = evaluator(cut, whole=True)
    role.step()
    assert len(role.env.actions) == 1 and role.unfinished and not role.results.added
    assert role.state_dict()["unfinished"] is True
    cut.stop = False
    role.step()
    assert len(role.results.added) == 1 and not role.unfinished


def test_a_film_follows_each_evaluation() -> None:
    given: list[tuple[Any, ...]] = []
    taken: list[int] = []

    def film(params: Any, version: int, steps: int, seed: int) -> Any:
        given.append((float(params["scale"]), version, steps, seed))
        for n in range(3):
            taken.append(n)
            yield n

    clock = Clock(100)
    role = evaluator(clock, film=film)
    while not role.results.added:
        role.step()
    assert given == [] and role.due(), "a generator begins with its first picture"
    for pictures in ([0], [0, 1], [0, 1, 2], [0, 1, 2]):
        assert role.due()
        role.step()
        assert taken == pictures
    assert given == [(4.0, 1, 100, evaluation_seed(9, 100))] and not role.due()
    clock.steps = 200
    taken.clear()
    whole = evaluator(clock, film=film, whole=True)
    whole.step()
    assert taken == [0, 1, 2] and not whole.due()
    phases = whole.ctx.metrics.drain().phases
    assert phases["film"] > 0 and phases["evaluate"] > 0


def test_a_film_that_is_interrupted_is_left_out() -> None:
    closed: list[bool] = []
    clock = Clock(100)

    def film(*_: Any) -> Any:
        try:
            while True:
                clock.stop = True
                yield 1
        finally:
            closed.append(True)

    role = evaluator(clock, film=film, whole=True)
    role.step()
    assert role.due() and not closed
    role.close()
    assert closed == [True] and role.env.closed


def test_the_state_of_an_evaluator() -> None:
    """When it is next due, whether it was cut short, and the agent's: that before an evaluation in progress."""
    clock = Clock(100)
    role, other = evaluator(clock, whole=True), evaluator(Clock(100), whole=True)
    role.step()
    state = role.state_dict()
    assert (
        state == {"next": 200, "agent": {"calls": role.agent.calls, "scale": 4.0}, "unfinished": False}
        and role.agent.calls > 1
    )
    other.load_state_dict({**state, "unfinished": True})
    assert other._next == 200 and other.agent.calls == role.agent.calls and other.unfinished
    calls = role.agent.calls
    clock.steps, clock.stop = 200, True
    role.step()
    assert role.agent.calls > calls
    assert role.state_dict() == {"next": 200, "agent": {"calls": calls, "scale": 4.0}, "unfinished": True}, (
        "it is played again"
    )


def test_seeds_of_evaluations_differ_and_repeat() -> None:
    seeds = {evaluation_seed(seed, steps) for seed in range(20) for steps in range(20)}
    assert len(seeds) == 400 and all(0 <= seed < 2**31 for seed in seeds) and max(seeds) > 2**30
    assert evaluation_seed(3, 4) == evaluation_seed(3, 4)


# ----------------------------------------------------------------------- episodes that never end
ENDLESS = (10**9, "terminated")


class Going(ScriptedEnvs):
    """Says what goes on: the return of each environment until now, and its length."""

    def so_far(self) -> list[Episode]:
        return [Episode(float(ret), step) for ret, (_, step) in zip(self.returns, self.at, strict=True)]


def endless(script: list[list[tuple[int, str]]], episodes: int, max_steps: int = 4, seed: int = 5, **more: Any) -> Any:
    return Episodes(Going(script, **more), SummingAgent(), episodes, seed, max_steps=max_steps)


def test_returns_say_what_did_not_end() -> None:
    ended = [Episode(1.0, 3), Episode(2.0, 4)]
    assert (Returns(ended).why, Returns(ended).asked, Returns(ended).unfinished) == ("", 2, 0)
    found = Returns(ended, 1, 2, "9 steps")
    assert found.why == "1 of 2 episodes did not end within 9 steps: their returns so far count"
    found = Returns(ended, 4, 5, "9 s")
    assert (found.asked, found.unfinished, list(found)) == (5, 4, [1.0, 2.0])
    told = "4 of 5 episodes did not end within 9 s, and 3 of them did not begin: their returns so far count"
    assert found.why == told


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_environments_whose_episodes_have_no_end_begin_anew_together(mode: str) -> None:
    """With other seeds each time, after the last step that counts."""
    played = endless([[ENDLESS], [ENDLESS]], 6, autoreset=mode)
    found = played.play()
    assert played.env.seeds == [5, evaluation_seed(5, 1), evaluation_seed(5, 2)]
    assert len(played.env.actions) == 3 * 4 and played.unfinished == found.unfinished == 6
    assert sorted(found) == [4.0] * 3 + [8.0] * 3, "of four steps of 1, and of 2"
    assert [[e.length for e in of] for of in played.episodes] == [[4] * 3, [4] * 3]
    assert found.why.startswith("6 of 6 episodes did not end within 4 steps: ")


def test_an_environment_waits_while_another_plays_an_episode_that_counts() -> None:
    """The first is cut after 4 steps; the second plays 3 of 3 steps, each with the row after its end, before both
    begin anew."""
    played = endless([[ENDLESS], [(3, "terminated")]], 5)
    assert played.quota == [3, 2]
    found = played.play()
    assert list(found) == [4.0] * 3 + [6.0] * 2 and found.unfinished == 3
    assert [e.length for e in played.episodes[0]] == [4, 4, 4] and [e.length for e in played.episodes[1]] == [3, 3]
    assert len(played.env.seeds) == 3 and len(played.env.actions) == 7 + 4 + 4


@pytest.mark.parametrize("length,unfinished", [(3, 0), (4, 0), (5, 2), (6, 2)])
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_an_episode_may_take_as_many_steps_as_its_bound(mode: str, length: int, unfinished: int) -> None:
    played = endless([[(length, "terminated"), (2, "truncated")]], 2, autoreset=mode)
    found = played.play()
    assert list(found) == ([4.0, 4.0] if unfinished else [float(length), 2.0])
    assert found.unfinished == unfinished and len(played.env.seeds) == 1 + unfinished // 2


@pytest.mark.parametrize("mode,steps", [("next_step", 8), ("same_step", 7)])
def test_an_episode_that_ends_after_its_bound_counts_once(mode: str, steps: int) -> None:
    """With what it had at its bound; the next one of that environment counts again, and nothing begins anew."""
    played = endless([[(5, "terminated"), (2, "truncated")], [(3, "terminated")]], 4, autoreset=mode)
    found = played.play()
    assert list(found) == [4.0, 2.0, 6.0, 6.0] and found.unfinished == 1
    assert played.env.seeds == [5] and len(played.env.actions) == steps


def test_an_evaluation_without_time_counts_what_it_has() -> None:
    """Neither what has not begun nor what is over; nothing more is played."""
    played = endless([[ENDLESS], [(1, "terminated")], [(1, "terminated"), ENDLESS]], 9, 10)
    for _ in range(3):
        played.step()
    assert [len(of) for of in played.episodes] == [0, 2, 1]
    found = played.play(-1.0)
    assert played.done and len(played.env.actions) == 4
    assert [len(of) for of in played.episodes] == [1, 2, 2], "the second is about to begin its third"
    assert (found.unfinished, found.asked) == (6, 9)
    assert found.why == (
        "6 of 9 episodes did not end within -1 s, and 4 of them did not begin: their returns so far count"
    )
    late = endless([[ENDLESS], [(3, "terminated")]], 2, 2)
    late.step()
    late.step()
    assert late.play(-1.0).unfinished == 2 and late.done


def test_episodes_that_were_cut_before_the_time_was_over_are_unfinished_too() -> None:
    played = endless([[ENDLESS], [ENDLESS]], 6)
    for _ in range(5):
        played.step()
    assert [len(of) for of in played.episodes] == [1, 1] and played.unfinished == 2
    found = played.play(-1.0)
    assert [[e.length for e in of] for of in played.episodes] == [[4, 2], [4, 2]]
    assert (found.unfinished, found.asked, len(found)) == (6, 6, 4)


def test_an_evaluation_that_has_time_is_played_whole() -> None:
    assert endless([[(3, "terminated")]], 2).play(1e9).unfinished == 0
    last = endless([[(1, "terminated")]], 1)
    assert last.play(-1.0).unfinished == 0, "it was done with the step that took its time"


def test_an_evaluation_says_once_that_no_episode_ends(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluator_module, "WARN_AFTER_SECONDS", -1.0)
    played = endless([[ENDLESS]], 1, 10_000)
    for _ in range(999):
        played.step()
    assert not caplog.records
    for _ in range(2_001):
        played.step()
    (record,) = caplog.records
    assert "no episode of Scripted has ended after 1,000 steps" in record.getMessage()
    caplog.clear()
    some = endless([[(900, "terminated"), ENDLESS]], 2, 10_000)
    monkeypatch.setattr(evaluator_module, "WARN_AFTER_SECONDS", 1e9)
    soon = endless([[ENDLESS]], 1, 10_000)
    for _ in range(1_000):
        some.step()
        soon.step()
    assert not caplog.records


def test_the_bound_of_an_evaluation_is_told(caplog: pytest.LogCaptureFixture) -> None:
    role = evaluator(Clock(100), whole=True, max_steps=4, episodes=3)
    role.env = Going([[ENDLESS], [ENDLESS]])
    counts: list[int] = []
    role.results.add = lambda *args: counts.append(args[-1])
    role.step()
    assert counts == [3] and role.env.seeds == [evaluation_seed(9, 100), evaluation_seed(evaluation_seed(9, 100), 1)]
    assert "evaluation at 100 steps: 3 of 3 episodes did not end within 4 steps" in caplog.text
    caplog.clear()
    ends = evaluator(Clock(100), whole=True)
    ends.step()
    assert not caplog.records and MAX_STEPS == ends.max_steps == 108_000 // 4


def test_environments_play_what_the_role_is_made_with() -> None:
    made: list[int] = []

    def agent(seed: int) -> Any:
        made.append(seed)
        return SummingAgent()

    env, ctx = ScriptedEnvs(SCRIPT), context("evaluator", seed=9, steps=lambda: 70)
    options = dict(every=50, episodes=2, whole=True)
    role: Any = make_evaluator(lambda: env, agent, Results(), options, ctx, Params())
    assert role.env is env and made == [9] and (role.every, role.episodes, role.whole) == (50, 2, True)
    assert role._next == 100
