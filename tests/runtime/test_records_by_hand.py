"""What is kept and told of a run, worked out by hand: rates, intervals, counts, changes, and states byte by byte."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from shoal.api import Field, ShoalError, UsageError
from shoal.metering.aggregator import Snapshot
from shoal.program import Channel
from shoal.records import checkpoint_state as states, evaluation_files, metric_files
from shoal.records.evaluation_files import EvaluationFiles
from shoal.records.live_file import NAME, LiveFile
from shoal.records.metric_files import append_row, performance_row
from shoal.records.report import Report
from shoal.records.summary import SHOWN, Summary, _around
from shoal.run import changes
from shoal.run.evaluation import Evaluation
from shoal.torchrun.ends import BoardEnd, Remarks
from shoal.torchrun.group import Group


def snapshot(**given: Any) -> Snapshot:
    zeros = dict.fromkeys(("row", "seconds", "steps", "updates", "step_rate", "update_rate", "episodes"), 0)
    return Snapshot(**{**zeros, "episode_return": float("nan"), "episode_length": float("nan"), **given})


# ------------------------------------------------------------------------------------------- figures
def test_items_a_second_are_those_since_the_snapshot_before(tmp_path: Path) -> None:
    live, phases = LiveFile(tmp_path), {"actor": ["env"]}

    def told(**given: Any) -> Any:
        live.update(snapshot(**given))
        return json.loads((tmp_path / NAME).read_text())["items_per_second"]

    live.update(snapshot(seconds=1.0))
    assert not (tmp_path / NAME).exists(), "nothing is told of replicas or channels"
    assert told(seconds=10.0, moved={"a": 4}) == {}, "a serial run has channels alone"
    assert told(seconds=12.0, phases=phases, moved={"a": 9, "b": 1}) == {"a": 2.5, "b": 0.5}
    assert told(seconds=15.0, phases=phases, moved={"a": 9, "b": 5}) == {"a": 0.0, "b": 1.333}
    assert told(seconds=15.0, phases=phases, moved={"a": 10, "b": 5}) == {}, "no time has passed"
    assert told(seconds=16.0, phases=phases, moved={"a": 7, "b": 6}) == {"a": 0.0, "b": 1.0}, "a node was lost"


def test_a_row_of_performance_is_rounded_and_leaves_out_what_is_not_known() -> None:
    row = performance_row(
        snapshot(row=3, steps=50, seconds=1.23456, step_rate=2.34567, update_rate=3.45678, restarts=1)
    )
    assert row == {
        "row": 3, "steps": 50, "seconds": 1.235, "steps_per_second": 2.346, "updates_per_second": 3.457, "restarts": 1,
    }  # fmt: skip
    more = snapshot(byte_rate=0.0, memory=7, fill={"c": 0.123456}, shares={"actor": {"env": 0.65432}})
    added = {"bytes_per_second": 0, "memory": 7, "fill/c": 0.1235, "time/actor/env": 0.6543}
    assert performance_row(more).items() >= added.items()


def test_a_row_is_appended_with_the_header_once_and_a_column_for_each_new_name(tmp_path: Path) -> None:
    file = tmp_path / "f.csv"
    for row in ({"a": 1}, {"a": 2}, {"b": 3, "a": 4}, {"a": 5}):
        append_row(file, row)
    assert file.read_text().splitlines() == ["a,b", "1,", "2,", "4,3", "5,"]
    file.write_text("")  # of a disk that was full
    append_row(file, {"a": 6})
    assert file.read_text().splitlines() == ["a", "6"]


def test_the_begin_of_a_line_is_looked_for_no_further_than_the_longest_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_files, "MAX_LINE", 5)
    data = b"ab\ncdef\nghijkl\n"
    assert [metric_files._begin(data, end) for end in (0, 2, 3, 7, 8, 15)] == [0, 0, 3, 3, 8, 15]
    with pytest.raises(ValueError, match="it has a line of more than 5 bytes"):
        metric_files._begin(data, 14)
    assert metric_files._begin(b"abcde", 5) == 0


def test_the_last_whole_line_is_that_up_to_a_number() -> None:
    data = b"row\n1,x\n2,y\n2,z\n4,w\n5"
    last = {n: metric_files._last(data, 4, n, lambda line: int(line.partition(b",")[0])) for n in (0, 1, 2, 3, 4, 9)}
    assert last == {0: (4, 4), 1: (4, 8), 2: (12, 16), 3: (12, 16), 4: (16, 20), 9: (16, 20)}


@pytest.mark.parametrize(
    ("mean", "std", "count", "told"),
    [(2.0, 1.0, 4, "2 [1.02, 2.98]"), (2.0, 1.0, 2, "2 [0.6141, 3.386]"), (2.0, 1.0, 1, "2")],
)  # fmt: skip
def test_an_interval_is_1_96_standard_errors_around_the_mean(mean: float, std: float, count: int, told: str) -> None:
    assert _around(mean, std, count) == told


def test_an_evaluation_is_a_row_of_its_returns_and_the_newest_is_read_without_infos(tmp_path: Path) -> None:
    files, params = EvaluationFiles(tmp_path, "params"), {"w": torch.zeros(1)}
    assert files.last() is None and files.best() is None and evaluation_files.newest(tmp_path) == {}
    files.add(100, 7, [1.0, 4.0, 4.0, 7.0], params, {"success": 0.5, "mean": 9.0}, unfinished=2)
    row = "100,4,4,2.1213203,1,7,0.5,9,2"
    head = "steps,episodes,mean,std,min,max,success,info/mean,unfinished"
    assert (tmp_path / evaluation_files.FILE).read_text().splitlines() == [head, row]
    wanted = {"steps": 100, "episodes": 4, "mean": 4.0, "std": 2.1213203, "min": 1.0, "max": 7.0, "unfinished": 2}
    assert evaluation_files.newest(tmp_path) == wanted
    assert (files.last(), files.best()) == (100, 4.0)
    facts = json.loads((tmp_path / "best" / "params.json").read_text())
    assert {name: facts[name] for name in ("steps", "updates", "score", "episodes")} == {
        "steps": 100, "updates": 7, "score": 4.0, "episodes": 4,
    }  # fmt: skip
    files.add(200, 9, [3.0], params)
    assert evaluation_files.newest(tmp_path) == {
        "steps": 200, "episodes": 1, "mean": 3.0, "std": 0.0, "min": 3.0, "max": 3.0,
    }  # fmt: skip
    assert (files.last(), files.best()) == (200, 4.0)
    for steps in (99, 100, 200, 12):
        evaluation_files.video(tmp_path, steps).touch()
    for name in ("mine.mp4", ".000000000150.tmp.mp4", "00000000150.mp4"):
        (tmp_path / "videos" / name).touch()
    evaluation_files.forget_after(tmp_path, 200)
    assert files.last() == 200 and len(list((tmp_path / "videos").iterdir())) == 7
    evaluation_files.forget_after(tmp_path, 99)
    assert files.last() is None and evaluation_files.newest(tmp_path) == {}
    assert sorted(film.name for film in (tmp_path / "videos").iterdir()) == [
        "000000000012.mp4", "000000000099.mp4", "00000000150.mp4", "mine.mp4",
    ]  # fmt: skip


def test_a_summary_counts_by_hand(tmp_path: Path) -> None:
    rows = [f"{100 * k},4,{k}.0,1.0,0,9,{'2' if k == 12 else ''}" for k in range(1, 13)]
    (tmp_path / "evaluations.csv").write_text("\n".join(["steps,episodes,mean,std,min,max,unfinished", *rows, ""]))
    summary = Summary(tmp_path, "asked for")
    try:
        assert summary._speed() == ["Nothing has been done yet."] and summary._score()[0] == "No episode has ended."
        summary.update(snapshot(steps=1_000, updates=50, seconds=8.0, restarts=2, new_episodes=[(1.0, 5), (3.0, 5)]))
        assert summary._score()[0] == "Return of the last 2 training episodes: 2 [0.6141, 3.386]"
        evaluated = [
            line for line in summary._score() if line.startswith("| ") and "steps" not in line and "--" not in line
        ]
        assert [line.split(" | ")[0] for line in evaluated] == ["| 300", *(f"| {100 * k:,}" for k in range(4, 13))]
        assert evaluated[-1] == "| 1,200 | 4 (2 did not end) | 12 [11.02, 12.98] |"
        assert summary._speed()[0] == "1,000 steps and 50 updates in 8 s: 125 steps/s, 6.2 updates/s; restarts: 2"
        for k in range(SHOWN):
            summary.note(f"warning {k}")
        summary.note("warning 3")
        assert summary._told()[0] == "- warning 3 (2 times)" and len(summary._told()) == SHOWN
        summary.note("one more")
        assert summary._told()[-1] == "- and 1 others: logs/run.log" and len(summary._told()) == SHOWN + 1
        summary.update(snapshot(new_episodes=[(7.0, 5)] * 100))
        assert summary._score()[0] == "Return of the last 100 training episodes: 7 [7, 7]"
    finally:
        summary.finish(None)


def test_a_report_keeps_every_number_of_its_run() -> None:
    run = snapshot(steps=1, updates=2, seconds=3.45678, episode_return=4.0, episodes=5, restarts=6)
    report = Report.of("steps", run)
    assert Report.from_json(report.to_json()) == Report("steps", 1, 2, 3.457, 4.0, 5, {}, 6)
    evaluated = Report("x", 1, 1, 1.0, 1.0, 1, evaluation={"mean": float("nan"), "std": 2.5})
    assert evaluated.to_json()["evaluation"] == {"mean": None, "std": 2.5}
    found = Report.from_json(evaluated.to_json()).evaluation
    assert np.isnan(found["mean"]) and found["std"] == 2.5


# ------------------------------------------------------------------------------------------- ranks
def test_a_wish_is_said_until_all_have_heard_it_and_the_rest_for_good() -> None:
    counts = {"steps": 3.0, "updates": 1.0}
    mine = Remarks(lambda: counts)
    mine.say(interrupted=1.0, ended=2.0, report=1.0, save=1.0)
    assert mine.said().tolist() == [3.0, 1.0, 1.0, 0.0, 2.0, 1.0, 1.0]
    assert mine.news() is None
    mine.hear(np.array([9.0, 2.0, 1.0, 0.0, 2.0, 1.0, 0.0]))
    counts["steps"] = 4.0
    assert mine.said().tolist() == [4.0, 1.0, 1.0, 0.0, 2.0, 0.0, 1.0], "save was not heard"
    mine.hear(np.array([8.0, 3.0, 0.0, 1.0, 0.0, 0.0, 2.0]))
    heard = {"steps": 9, "updates": 3, "interrupted": 1, "terminated": 1, "ended": 2, "report": 1, "save": 2}
    assert mine.news() == heard and mine.news() is None
    assert mine.said()[-2:].tolist() == [0.0, 0.0]


def test_what_was_heard_is_kept_though_the_sums_are_used_again() -> None:
    mine, sums = Remarks(dict), np.ones(Remarks.size)
    mine.hear(sums)
    sums[:] = 7.0
    assert mine.news() == dict.fromkeys(("steps", "updates", "interrupted", "terminated", "ended", "report", "save"), 1)


class Stored:
    """In place of a group of two ranks, with one store."""

    def __init__(self, rank: int, store: dict[str, bytes]) -> None:
        self.place, self.store = SimpleNamespace(rank=rank, world=2), store

    def set(self, key: str, value: bytes) -> None:
        self.store[key] = value

    def get(self, keys: list[str]) -> list[bytes]:
        return [self.store[key] for key in keys]


def test_a_board_of_ranks_has_each_ones_last_row_and_counts_its_puts() -> None:
    spec, store = {"done": Field((), "int64"), "score": Field((2,))}, dict[str, bytes]()
    ends = [BoardEnd(cast("Group", Stored(rank, store)), Channel("b", "board", spec), "3") for rank in range(2)]
    ends[0].place({"done": np.int64(5), "score": np.zeros(2, np.float32)}, 7)  # as a checkpoint has it
    for k in range(3):
        ends[1].put({"done": np.array(k), "score": np.array([k, 0.5], np.float32)})
    ends[0].put({"done": np.array(6), "score": np.array([1.0, 2.0], np.float32)})
    assert store.keys() == {"board/3/b/0", "board/3/b/1"}
    for end in ends:
        rows, puts = end.get()
        assert (rows["done"].tolist(), rows["score"].tolist(), puts.tolist()) == ([6, 2], [[1, 2], [2, 0.5]], [8, 3])
    assert ends[1].row[1] == 3 and ends[1].row[0]["done"] == 2
    assert len(store["board/3/b/0"]) == 8 + 8 + 2 * 4
    given = {"done": np.array(9), "score": np.zeros(2, np.float32)}
    ends[1].put(given)
    given["score"][:] = 7.0
    assert ends[1].row[0]["score"].tolist() == [0.0, 0.0], "its own"
    store["board/3/b/0"] += b"x"
    with pytest.raises(ShoalError, match="a row of the board 'b' in torchrun's store is damaged"):
        ends[0].get()


# ----------------------------------------------------------------------------------------- changes
def test_what_was_noted_behind_the_step_counts_from_there() -> None:
    facts: Any = {
        "config": {"env": "X", "actors": 2, "rate": 0.5}, "origins": {"rate": "preset", "steps": "flag"},
        "changes": [{"steps": 200, "settings": {"steps": [1, 2]}}, {"steps": 500, "settings": {"steps": [2, 3]}}],
        "resumed": [100, 300, 500, True],
    }  # fmt: skip
    changes.note(facts, {"env": "Y", "actors": 3, "rate": 0.5, "steps": 3}, {"rate": 0.25}, 300)
    assert facts["changes"] == [
        {"steps": 200, "settings": {"steps": [1, 2]}}, {"steps": 300, "settings": {"steps": [2, 3]}},
        {"steps": 300, "settings": {"rate": [0.5, 0.25]}},
    ]  # fmt: skip
    assert facts["config"] == {"env": "X", "actors": 2, "rate": 0.25, "steps": 3}
    assert facts["origins"] == {"rate": "resume", "steps": "flag"} and facts["resumed"] == [100, 300]
    before = facts["config"]
    changes.note(facts, {"rate": 0.25}, {}, 301)
    assert facts["config"] is before and len(facts["changes"]) == 3 and facts["resumed"] == [100, 300, 301]


def test_the_last_thousand_steps_at_which_a_run_went_on_are_kept() -> None:
    facts: Any = {"config": {}, "origins": {}, "resumed": list(range(1_000))}
    changes.note(facts, {}, {}, 1_000)
    assert facts["resumed"] == list(range(1, 1_001))
    facts["resumed"] = list(range(999))
    changes.note(facts, {}, {}, 999)
    assert facts["resumed"] == list(range(1_000))


WAS = {"every": 400, "episodes": 5, "sampled": False}


def test_an_evaluation_changes_in_the_parts_that_are_given() -> None:
    facts: Any = {"evaluation": WAS, "runtime": "local"}
    for same in (None, {}, {"episodes": 5}, Evaluation(every=400, episodes=5)):
        assert changes.evaluation(facts, same, flags=False) == {}
    new = changes.evaluation(facts, {"episodes": 7, "max_steps": 9}, flags=True)
    assert new == {"evaluation": Evaluation(every=400, episodes=7, max_steps=9)}
    assert changes.evaluation(facts, Evaluation(every=3, episodes=5), flags=False) == {
        "evaluation": Evaluation(every=3, episodes=5)
    }


@pytest.mark.parametrize(
    ("was", "new", "runtime", "says"),
    [
        (400, {"every": 0, "episodes": 7}, "local", "cannot begin or end"),
        (0, {"every": 400}, "local", "cannot begin or end"),
        (400, {"every": 500}, "serial", "cannot change when a run goes on, the serial runtime"),
    ],
)
def test_an_evaluation_that_a_run_cannot_go_on_with_is_refused(was: int, new: Any, runtime: str, says: str) -> None:
    facts: Any = {"evaluation": {**WAS, "every": was}, "runtime": runtime}
    with pytest.raises(UsageError, match=f"--eval-every {says}"):
        changes.evaluation(facts, new, flags=True)
    assert changes.evaluation(facts, {"every": was}, flags=True) == {}


# ------------------------------------------------------------------------------------------ states
MIXED = {
    "a": np.array([1, 2, 3], np.uint8), "b": np.array([1.5, -2.5]), "c": torch.tensor([0.5], dtype=torch.bfloat16),
    "d": np.array([7, 8], np.int32),
}  # fmt: skip


def test_a_message_is_its_parts_byte_by_byte() -> None:
    """8 bytes of length, the JSON, and a safetensors file, whose header is padded to 8 bytes and whose largest items
    come first."""
    data = states.to_bytes(MIXED)
    size = int.from_bytes(data[:8], "little")
    tree = json.loads(data[8 : 8 + size])
    assert tree["b"] == {"$": "array", "name": "b"} and tree["c"] == {"$": "tensor", "name": "c"}
    rest = data[8 + size :]
    length = int.from_bytes(rest[:8], "little")
    header = json.loads(rest[8 : 8 + length])
    assert length % 8 == 0 and len(rest) == 8 + length + 29
    assert header == {
        "b": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]},
        "d": {"dtype": "I32", "shape": [2], "data_offsets": [16, 24]},
        "c": {"dtype": "BF16", "shape": [1], "data_offsets": [24, 26]},
        "a": {"dtype": "U8", "shape": [3], "data_offsets": [26, 29]},
    }
    assert rest[8 + length :] == np.array([1.5, -2.5]).tobytes() + np.array([7, 8], np.int32).tobytes() + bytes(
        [0x00, 0x3F, 1, 2, 3]
    )
    assert states.pack(MIXED).nbytes == 29
    found = states.from_bytes(data)
    assert found["a"].tolist() == [1, 2, 3] and found["c"].dtype == torch.bfloat16 and found["c"].item() == 0.5


def test_a_message_without_arrays_is_its_json_alone() -> None:
    data = states.to_bytes([1, "x"])
    assert data == (8).to_bytes(8, "little") + b'[1, "x"]' and states.from_bytes(data) == [1, "x"]
    with pytest.raises(ShoalError, match="16 bytes were expected, 15 came"):
        states.from_bytes(data[:-1])


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 8, 9])
def test_files_are_whole_whatever_a_piece_of_them_holds(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "CHUNK", 4)
    written = states.write(states.pack({"x": np.arange(length, dtype=np.uint8)}), tmp_path, "s")
    for name, told in written.items():
        data = (tmp_path / name).read_bytes()
        assert (told.size, told.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert states.hash_file(tmp_path / name) == told
    assert states.read(tmp_path, "s")["x"].tolist() == list(range(length))


def test_arrays_of_one_path_are_kept_apart() -> None:
    given: Any = {"a/b": np.array([1]), "a": {"b": np.array([2])}, 3: np.array([3]), "3": np.array([4])}
    found = states.from_bytes(states.to_bytes(given))
    assert (found["a/b"], found["a"]["b"], found[3], found["3"]) == (1, 2, 3, 4)
    assert states.from_bytes(states.to_bytes(np.array([5]))).tolist() == [5]
    assert states.from_bytes(states.to_bytes({"$": 1})) == {"$": 1}, "a key that stands for something else"
    assert states.from_bytes(states.to_bytes({"x": np.float32(0.5), "y": float("-inf"), "z": (1, [2])})) == {
        "x": 0.5, "y": float("-inf"), "z": (1, [2]),
    }  # fmt: skip
