"""Sums, boards and shared parameters of the serial runtime, and their states, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shoal import api
from shoal.api import Field
from shoal.program import Channel
from shoal.serial.groups import (
    SerialBoard,
    SerialBoardEnd,
    SerialReduce,
    SerialReducer,
    SerialShared,
    SerialSharedEnd,
    SerialSharedReader,
)


def reduce(mean: bool = False, members: int = 2) -> tuple[SerialReduce, list[SerialReducer]]:
    made = SerialReduce(Channel("c", "reduce", {"g": Field((1,))}, mean=mean), members)
    return made, [SerialReducer(made, k) for k in range(members)]


def put(end: SerialReducer, number: float) -> None:
    end.put({"g": np.array([number], np.float32)})


@pytest.mark.parametrize("mean, results", [(False, [6.0, 60.0]), (True, [2.0, 20.0])])
def test_each_member_gets_each_round_once_wherever_the_others_are(mean: bool, results: list[float]) -> None:
    made, ends = reduce(mean, members=3)
    for k, end in enumerate(ends):
        put(end, k + 1.0)
    found = [float(ends[k].get()["g"]) for k in (0, 1)]
    for k in (0, 1):
        put(ends[k], 10.0 * (k + 1))
    state = made.state_dict()
    assert len(state["results"]) == 1 and [end.pending for end in ends] == [True] * 3
    made, ends = reduce(mean, members=3)
    made.load_state_dict(state)
    found.append(float(ends[2].get()["g"]))
    put(ends[2], 30.0)
    found += [float(end.get()["g"]) for end in ends]
    assert found == [results[0]] * 3 + [results[1]] * 3
    assert not made.results, "nobody has to read them any more"
    assert [end.pending for end in ends] == [False] * 3


def test_a_member_that_is_two_rounds_behind_gets_both() -> None:
    made, _ = reduce()
    for number in (1.0, 2.0):
        for member in (0, 1):
            made.put(member, {"g": np.array([number], np.float32)})
    assert [float(made.get(member)["g"][0]) for member in (0, 1, 1, 0)] == [2.0, 2.0, 4.0, 4.0] and not made.results


def test_a_board_goes_on_with_its_rows_and_counts() -> None:
    channel = Channel("c", "board", {"n": Field((), "int64")})
    made, again = SerialBoard(channel, 2), SerialBoard(channel, 2)
    for row, number in ((0, 5), (1, 6), (1, 7), (1, 8)):
        SerialBoardEnd(made, row).put({"n": np.array(number)})
    again.load_state_dict(made.state_dict())
    rows, puts = SerialBoardEnd(again, None).get()
    assert (rows["n"].tolist(), puts.tolist()) == ([5, 8], [1, 3])


def w(number: float) -> api.Tensors:
    return {"w": torch.tensor([float(number)])}


class Momentum:
    """m = m + g; w = w - lr m."""

    def statistics(self, spec: api.Spec) -> api.Spec:
        return spec

    def apply(self, params: api.Tensors, statistics: api.Tensors, gradient: api.Tensors, lr: float) -> None:
        statistics["w"] += gradient["w"]
        params["w"] -= lr * statistics["w"]


def test_shared_parameters_go_on_with_their_statistics_and_steps() -> None:
    channel = Channel("c", "shared", {"w": Field((1,))}, rule=Momentum())
    made = SerialShared(channel, 2)
    one, two = (SerialSharedEnd(made, k) for k in range(2))
    one.offer(w(1.0))
    two.offer(w(9.0))
    assert [end.add(w(1.0), 0.5) for end in (one, two, two)] == [1, 2, 3] and made.version == 4
    reader = SerialSharedReader(made)
    assert reader.latest(newer_than=3) is not None and reader.latest(newer_than=4) is None and reader.newest() == 4
    state = made.state_dict()
    assert state["steps"] == [1, 2] and state["tensors"]["w"].tolist() == [-2.0], "1 - 0.5 - 1 - 1.5"
    again = SerialShared(channel, 2)
    again.load_state_dict(state)
    assert SerialSharedEnd(again, 0).add(w(1.0), 1.0) == 4 and float(again.params["w"]) == -6.0
    assert float(made.params["w"]) == -2.0 and again.state_dict()["steps"] == [2, 2]
