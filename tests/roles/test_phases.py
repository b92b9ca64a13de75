"""What each role says it is doing, step by step: its phases are its signs of life, and where its time went."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import test_actor as actors
import test_collector as collectors
import test_evolution_role as evolution
import test_learner as learners
import test_rank as ranks
import test_replay_shard as shards
import test_waiting_roles as waiting
import test_worker as workers
import torch

KEYS = {"keys": torch.tensor([4]), "size": 9}
ACTED = ["inference", "env", "unroll"]  # of each vector step of an actor
SEGMENT = ["unroll", "params", "unroll", *ACTED * 4, "inference", "unroll"]


def learner() -> Any:
    role = learners.role_of(learners.batch(1.0, **KEYS), params=learners.Params())
    role.start()
    return role


def equal() -> Any:
    role = waiting.equal(waiting.batch(1.0), params=waiting.Params())
    role.start()
    return role


def master() -> Any:
    role = evolution.master((1, 0), (1, 1), (1, 2))
    role.start()
    return role


def served(pieces: int = 1) -> Any:
    given = [waiting.gradient(5.0, waiting.OFFER), *(waiting.gradient(1.0, 1) for _ in range(2))]
    return waiting.server(*given, pieces=pieces)


CASES: dict[str, tuple[Callable[[], Any], list[list[str]]]] = {
    "actor": (lambda: actors.actor("next_step"), [["unroll", "params", "unroll", *ACTED * 5, "inference", "unroll"]]),
    "stream": (lambda: actors.actor("next_step", True), [["unroll", "params", "unroll", *ACTED * 5]]),
    "learner": (learner, [["batch", "learn", "priorities", "publish"]]),
    "equal learner": (equal, [["batch", "learn"], ["learn"], ["learn", "publish"]]),
    "replay": (lambda: waiting.replay(waiting.batch(1.0, size=3)), [["batch", "publish"]]),
    "updater": (lambda: waiting.updater(waiting.batch(1.0)), [["batch", "params", "label", "publish"]]),
    "server": (served, [["batch"], ["batch", "learn"], ["batch", "learn"]]),
    "remote": (
        lambda: waiting.remote(waiting.batch(1.0, **KEYS)), [["batch", "params", "learn", "priorities", "publish"]],
    ),
    "shard": (lambda: shards.shard(1), [["priorities", "batch"], ["publish"]]),
    "worker": (workers.worker, [["params", *SEGMENT, "learn", "publish"]]),
    "target worker": (
        lambda: workers.worker(0, 10, target=target()), [["params", "params", *SEGMENT, "learn", "publish"]],
    ),
    "master": (master, [["batch"], ["batch"], ["batch", "learn", "publish"]]),
    "collector": (lambda: Taking(collectors.collector()), [SEGMENT]),
}  # fmt: skip


def target() -> Any:
    shared = workers.Shared(1.0)
    shared.params[workers.TAKEN] = torch.tensor(0)
    return shared


class Taking:
    """A collector as a role: four steps, and what was taken of them."""

    def __init__(self, collector: Any) -> None:
        self.ctx, self.collector = collector.ctx, collector

    def step(self) -> None:
        self.collector.advance(4)
        self.collector.take()


@pytest.mark.parametrize("case", CASES)
def test_phases_of_a_role_follow_what_it_does(case: str) -> None:
    make, wanted = CASES[case]
    role = make()
    shown: list[str] = []
    role.ctx.metrics.show = shown.append
    for phases in wanted:
        shown.clear()
        role.step()
        assert shown == phases


def test_phases_of_a_rank_follow_what_it_does() -> None:
    """The parts of its rollout, both reductions, and the end of an update."""
    role, shown = ranks.rank(ranks.Board(0, 0), steps=2), []  # type: ignore[var-annotated]
    role.ctx.metrics.show = shown.append
    found = []
    for _ in range(5):
        shown.clear()
        role.step()
        found.append(list(shown))
    assert found == [
        ["unroll", "params", "unroll", *ACTED], ["unroll", *ACTED, "inference", "unroll", "learn"], ["learn"],
        ["learn"], ["learn", "publish"],
    ]  # fmt: skip


def test_phases_of_an_evolution_worker_follow_what_it_does() -> None:
    role, shown = evolution.worker(), []  # type: ignore[var-annotated]
    role.ctx.metrics.show = shown.append
    role.step()
    steps = len(role.population.noises)
    assert shown == ["params", "unroll", *["unroll", "inference", "env", "unroll"] * steps]
    shown.clear()
    role.step()
    assert shown == ["params"], "its blocks are done"


def test_steps_are_told_while_they_are_made() -> None:
    """Those of a unit of work that goes on, and none when they are counted at its end."""
    for role, steps in ((actors.actor("next_step"), 5), (Taking(collectors.collector()), 4)):
        made: list[int] = []
        role.ctx.metrics.made = made.append
        role.step()
        assert len(made) == steps + 1 and made[-1] == 0 and made[-2] == role.ctx.metrics.totals["env_steps"]
        assert made[:-1] == sorted(made[:-1]) and made[0] > 0
