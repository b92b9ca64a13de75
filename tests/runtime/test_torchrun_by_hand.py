"""Ranks of torchrun by hand: one process plays them one after the other, so that what each is told, counts, saves and
goes on from is exact."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from shoal.api import Context, Field
from shoal.metering.aggregator import Aggregator
from shoal.metering.recorder import Recorder
from shoal.program import Channel, Program, RoleSpec
from shoal.records import checkpoint
from shoal.records.checkpoint import SaveOptions
from shoal.runtime.interrupts import Interrupts
from shoal.runtime.launch import Launch, Stop
from shoal.torchrun import runtime
from shoal.torchrun.ends import Remarks
from shoal.torchrun.group import Group
from shoal.torchrun.place import Place, place
from shoal.torchrun.runtime import ENDS, LIVES, _Rank


class InTurn:
    """A group of two ranks, of which the second does everything before the first does."""

    def __init__(self, rank: int, said: dict[Any, Any]) -> None:
        self.place, self.said, self.number = Place(rank, 2, rank, 2, "localhost", 1), said, 0

    def beat(self) -> None: ...

    def share(self, value: Any = None) -> Any:
        return value

    def exchange(self, value: Any) -> list[Any]:
        return [value, value]

    def gather(self, value: Any) -> list[Any] | None:
        self.number += 1
        self.said[self.number, self.place.rank] = value
        return [self.said[self.number, rank] for rank in range(2)] if self.place.first else None

    def set(self, key: str, value: bytes) -> None:
        self.said[key] = value


class Counter:
    """A role with a number as its state."""

    def __init__(self, ctx: Context, progress: Any) -> None:
        self.ctx, self.progress, self.number = ctx, progress, 100 + ctx.index

    def step(self) -> None: ...

    def state_dict(self) -> Any:
        return {"number": self.number}

    def load_state_dict(self, state: Any) -> None:
        self.number = state["number"]


def program() -> Program:
    p = Program("test")
    board = p.channel(Channel("progress", "board", {"done": Field((), "int64")}))
    p.role("rank", Counter, replicas=2, progress=board.member())
    return p


def begun(rank: int, said: dict[Any, Any], **launch: Any) -> _Rank:
    with Interrupts() as interrupts:
        group = cast("Group", InTurn(rank, said))
        return _Rank(program(), Launch(**launch), group, interrupts, torch.device("cpu"))


def test_a_rank_is_made_with_what_its_run_and_its_launch_say(tmp_path: Path) -> None:
    seeds = set()
    for seed in (0, 7):
        for number in (0, 3):
            for index in range(2):
                how = dict(
                    seed=seed, stop=Stop(steps=500), run_dir=tmp_path, saving=SaveOptions(tmp_path, launch=number)
                )
                ctx = begun(index, {}, **how).role.ctx
                assert (ctx.index, ctx.replicas, ctx.generation) == (index, 2, number * LIVES)
                assert (ctx.total_steps, ctx.run_dir, ctx.counts, ctx.steps()) == (500, tmp_path, {}, 0)
                seeds.add(ctx.seed)
    assert len(seeds) == 8, "of its own in each rank of each launch of each run"


def test_ranks_go_on_with_their_own_counts_rows_and_states(tmp_path: Path) -> None:
    folder, said = tmp_path / "checkpoints", dict[Any, Any]()
    for index in (1, 0):
        rank = begun(index, said, saving=SaveOptions(folder))
        rank.role.number += 5
        for k in range(index + 2):
            rank.role.progress.put({"done": np.array(10 * k + index)})
        for name, n in (("env_steps", 30), ("updates", 6), ("actions", 40)):
            rank.recorder.count(name, n + index)
        rank._save(1)
    saved = checkpoint.newest(folder)
    assert (saved.steps, saved.manifest["updates"]) == (61, 13)
    for index in (1, 0):
        rank = begun(index, {}, saving=SaveOptions(folder, launch=1), resume=saved)
        assert rank.role.ctx.counts == {"env_steps": 30 + index, "updates": 6 + index, "actions": 40 + index}
        assert rank.steps == rank.role.ctx.steps() == 61
        rank.recorder.count("env_steps", 4)
        assert rank._now() == {"steps": 34 + index, "updates": 6 + index, "interrupted": False, "terminated": False}
        rank._begin()
        assert rank.role.number == 105 + index
        row, puts = rank.ends.boards["progress"].row
        assert (int(row["done"]), puts) == (10 * (index + 1) + index, index + 2)
        assert rank.aggregator.steps == 61


def test_a_run_ends_in_the_round_in_which_a_limit_is_reached() -> None:
    rank = _Rank.__new__(_Rank)
    rank.launch = Launch(stop=Stop(steps=100, updates=9))
    going = {"steps": 99, "updates": 8, "interrupted": 0, "terminated": 0, "ended": 0}
    assert rank._ended(going) == ""
    assert [rank._ended({**going, name: n}) for name, n in (("steps", 100), ("updates", 9))] == ["steps", "updates"]
    assert [rank._ended({**going, "ended": k}) for k in range(1, len(ENDS) + 1)] == list(ENDS)
    told = {**going, "steps": 100, "interrupted": 1, "terminated": 1}
    assert [rank._ended(told), rank._ended({**told, "interrupted": 0})] == ["interrupted", "terminated"]


@pytest.mark.parametrize("every, saves", [(2.0, [2.5, 5.0, 7.5, 10.0]), (0.0, [])])
def test_ranks_report_and_save_as_often_as_asked_for_and_say_why_they_end(
    every: float, saves: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wish that is said after a step is heard with the next one, half a second later."""
    now, saved, reported = [0.0], list[tuple[int, float]](), list[float]()
    monkeypatch.setattr(runtime, "time", SimpleNamespace(monotonic=lambda: now[0]))
    rank: Any = _Rank.__new__(_Rank)
    rank.launch = Launch(stop=Stop(asked=lambda: now[0] >= 11.0), interval=1.0)
    rank.leads, rank.saving, rank.saved, rank.stepped = True, SaveOptions(tmp_path, every=every), 0, False
    rank.recorder, rank.aggregator, rank.group = Recorder(), Aggregator(), InTurn(0, {})
    rank.remarks = Remarks(lambda: {"steps": 4.0 * now[0]})
    rank._save = lambda number: saved.append((number, now[0]))
    rank._report = lambda: reported.append(now[0])

    def step() -> None:
        now[0] += 0.5
        rank.remarks.hear(rank.remarks.said().copy())

    rank.role = SimpleNamespace(step=step)
    assert rank._run() == "observer"
    assert saved == list(enumerate(saves, 1))
    assert reported == [1.5 * k for k in range(1, 9)]
    assert rank.steps == 4.0 * now[0] == 50, "of all ranks, in the last round"


def test_a_rank_has_as_many_threads_as_its_role_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime.processes, "keep_freed_memory", lambda: None)
    monkeypatch.setattr(runtime, "place", lambda: Place(0, 1, 0, 1, "localhost", 1))
    before = torch.get_num_threads()
    try:
        with runtime._settings(RoleSpec("rank", Counter, {}, threads=before + 2)) as device:
            assert (torch.get_num_threads(), device.type) == (before + 2, "cpu")
    finally:
        torch.set_flush_denormal(False)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("hosted", [True, False])
def test_a_place_is_what_torchrun_says(hosted: bool) -> None:
    told = {
        "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "there",
        "MASTER_PORT": "29", "TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "3",
        "TORCHELASTIC_USE_AGENT_STORE": str(hosted),
    }  # fmt: skip
    assert place(told) == Place(5, 8, 1, 4, "there", 29, "3", hosted)
    assert place({name: value for name, value in told.items() if name != "RANK"}) is None
