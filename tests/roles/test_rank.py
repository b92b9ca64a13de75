"""A rank of DD-PPO: when its rollout ends, what it puts, and when it publishes (Wijmans et al. 2020, section 3)."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from fakes import Params, Reducers, ScriptedEnvs, SummingAgent, context

from shoal.api import Diverged, Field, Rows, Update
from shoal.roles.actor import unroll_spec
from shoal.roles.collector import Collector
from shoal.roles.rank import PROGRESS, RankRole


class Board:
    """Rollouts that each rank has ended."""

    def __init__(self, *rollouts: int) -> None:
        self.rollouts = list(rollouts)
        self.puts: list[int] = []
        self.looks = 0

    def ready(self) -> bool:
        return True

    def put(self, row: Any) -> None:
        self.puts.append(int(row[PROGRESS]))

    def get(self) -> Rows:
        self.looks += 1
        return Rows({PROGRESS: np.array(self.rollouts)}, np.array(self.rollouts))


class Learner:
    """Two minibatches an update; its parameters say how many updates it has made."""

    def __init__(self) -> None:
        self.updates, self.minibatch = 0, 0
        self.seen: list[Any] = []

    def moments(self, items: Any) -> Any:
        self.seen.append(("moments", {name: tensor.clone() for name, tensor in items.items()}))
        return {"steps": np.array([float(items["valid"].sum())])}

    def begin(self, sums: Any) -> int:
        self.seen.append(("begin", sums["steps"].tolist()))
        return int(sums["steps"][0])

    def gradient(self, out: Any) -> None:
        out["gradient"][:] = 10 * self.updates + self.minibatch

    def descend(self, means: Any) -> bool:
        self.seen.append(("descend", means["gradient"].tolist()))
        self.minibatch = (self.minibatch + 1) % 2
        self.updates += self.minibatch == 0
        return self.minibatch == 0

    def report(self) -> Update:
        return Update({"kl": float(self.updates)})

    def params(self) -> Any:
        return {"scale": torch.tensor(float(1 + self.updates))}

    def state_dict(self) -> Any:
        return {"updates": self.updates, "minibatch": self.minibatch}

    def load_state_dict(self, state: Any) -> None:
        self.updates, self.minibatch = state["updates"], state["minibatch"]


def rank(board: Board, steps: int = 10, sync_frac: float = 0.6, min_fraction: float = 0.25, index: int = 0) -> Any:
    def actor(params: Any) -> Collector:
        env = ScriptedEnvs([[(3, "terminated")], [(100, "terminated")]])
        spec = unroll_spec(env.spec, steps, 2, {"value": ((), "float32")}, {"sum": (1,)})
        return Collector(ctx, env, SummingAgent(), params, spec)

    ctx = context("rank", index, len(board.rollouts), exact=True)
    loaded: list[float] = []
    initial = Params()
    initial.publish({"scale": torch.tensor(5.0)})
    role: Any = RankRole(
        ctx,
        actor,
        Learner(),
        moments=Reducers(),
        gradients=Reducers({"gradient": Field((1,))}),
        progress=board,
        params=Params() if index == 0 else None,
        initial=initial,
        sync_frac=sync_frac,
        min_fraction=min_fraction,
        load=lambda params: loaded.append(float(params["scale"])),
    )
    role.loaded = loaded
    return role


def rollout(role: Any, limit: int = 100) -> int:
    """Steps of the role until it has put its moments; how many environment steps its rollout has."""
    for _ in range(limit):
        role.step()
        if role.moments.pending:
            return len(role._rollout["reward"])
    raise AssertionError("the rollout does not end")


@pytest.mark.parametrize("steps,part", [(10, 1), (32, 1), (33, 2), (128, 4), (129, 5)])
def test_a_rollout_is_collected_in_parts(steps: int, part: int) -> None:
    """32 of them at most, between which it looks at the others."""
    role = rank(Board(0, 0), steps)
    role.step()
    assert role.slice == part and role.collector.taken == min(part, steps)
    assert rollout(role) == steps


@pytest.mark.parametrize(
    "ended,replicas,sync_frac,preempted",
    [
        (2, 4, 0.5, True),
        (1, 4, 0.5, False),
        (3, 5, 0.6, True),
        (2, 5, 0.6, False),
        (3, 4, 0.7, True),
        (3, 4, 0.8, False),
        (3, 4, 2.0, False),
    ],
)
def test_a_rank_is_preempted_as_soon_as_enough_have_ended(
    ended: int, replicas: int, sync_frac: float, preempted: bool
) -> None:
    """``sync_frac`` of all ranks, exactly that included."""
    board = Board(*[1] * ended, *[0] * (replicas - ended))
    role = rank(board, steps=10, sync_frac=sync_frac, min_fraction=0.3, index=replicas - 1)
    assert rollout(role) == (3 if preempted else 10)
    record = role.ctx.metrics.drain().records["rollout_fraction"]
    assert record == ((0.3 if preempted else 1.0), 1)


@pytest.mark.parametrize("min_fraction,steps", [(0.0, 1), (0.25, 3), (0.5, 5), (0.8, 8), (1.0, 10)])
def test_a_rollout_has_its_smallest_fraction(min_fraction: float, steps: int) -> None:
    """Whoever is at it exactly has enough."""
    assert rollout(rank(Board(0, 9), min_fraction=min_fraction, sync_frac=0.5)) == steps


def test_ranks_are_compared_by_the_rollouts_they_have_ended() -> None:
    """One that has ended as many as this one is not ahead of it."""
    board = Board(0, 1, 1)
    role = rank(board, sync_frac=0.5)
    assert rollout(role) == 3 and board.puts == [1]
    role.step()  # begin, and put the first gradient
    role.step()
    role.step()
    board.rollouts = [1, 1, 1]
    assert rollout(role) == 10 and board.puts == [1, 2]
    for _ in range(3):
        role.step()
    board.rollouts = [2, 3, 3]
    assert rollout(role) == 3 and board.puts == [1, 2, 3]


def test_an_update_is_puts_and_gets_in_turn() -> None:
    role = rank(Board(0, 0))
    role.start()
    assert role.publication is not None
    params: Any = role.publication.writer
    assert params.version == 1 and float(params.published[-1]["scale"]) == 1.0
    rollout(role)
    assert role.loaded == [5.0] and role.begun, "all begin with the parameters of rank 0"
    steps = float(role._rollout["valid"].sum())
    assert not role.gradients.pending
    role.step()
    assert not role.moments.pending and role.gradients.puts[-1]["gradient"].tolist() == [0.0]
    role.step()
    assert role.gradients.puts[-1]["gradient"].tolist() == [1.0] and params.version == 1
    role.step()
    assert not role.gradients.pending and params.version == 2 and role.own.version == 1
    assert float(params.published[-1]["scale"]) == 2.0
    assert [what for what, _ in role.learner.seen] == ["moments", "begin", "descend", "descend"]
    assert role.learner.seen[1] == ("begin", [steps]) and role.learner.seen[3] == ("descend", [1.0])
    told = role.ctx.metrics.drain()
    assert told.records["kl"] == (1.0, 1) and told.counts["updates"] == 1
    rollout(role)
    assert role.loaded == [5.0] and role.collector.agent.loaded == [0, 1], "once"
    role.close()
    assert role.collector.env.inner.closed


def test_a_rank_acts_with_what_it_has_learned() -> None:
    role = rank(Board(0, 0))
    role.own.version = 1  # as after the first update
    rollout(role)
    assert role.collector.agent.scale == 1.0
    for _ in range(3):
        role.step()
    role.step()
    assert role.collector.agent.scale == 2.0 and role.collector.agent.loaded == [1, 2]


def test_a_rank_that_publishes_nothing_tells_nothing() -> None:
    role = rank(Board(0, 0), index=1)
    role.start()
    rollout(role)
    for _ in range(3):
        role.step()
    told = role.ctx.metrics.drain()
    assert "updates" not in told.counts and "kl" not in told.records and role.own.version == 1


def test_without_first_parameters_it_keeps_its_own() -> None:
    role = rank(Board(0, 0))
    role.initial.latest = lambda newer_than=-1: None
    role.step()
    assert role.begun and role.loaded == []


@pytest.mark.parametrize("after", [0, 4, 12, 25])
def test_the_state_of_a_rank(after: int) -> None:
    """Saved anywhere outside an update, the next rollout is the same, and it is compared with the same number."""
    first, second = rank(Board(0, 0)), rank(Board(0, 0))
    for _ in range(after):
        first.step()
    while first.moments.pending or first.gradients.pending:
        first.step()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert (second.rollouts, second.begun, second.own.version) == (first.rollouts, first.begun, first.own.version)
    assert second.learner.updates == first.learner.updates
    for role in (first, second):
        role.progress.puts.clear()
        rollout(role)
    assert second.progress.puts == first.progress.puts and second.loaded == ([] if after else [5.0])
    for name, tensor in first._rollout.items():
        assert tensor.equal(second._rollout[name]), name


def test_a_divergence_is_explained() -> None:
    role = rank(Board(0, 0))
    role.own.version = 6
    rollout(role)
    role.step()

    def diverges(means: Any) -> bool:
        raise Diverged("not finite")

    role.learner.descend = diverges
    with pytest.raises(Diverged) as error:
        role.step()
    assert error.value.facts == {"role": "rank-0", "update": 6} and "batch/reward" in error.value.tensors
