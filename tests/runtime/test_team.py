"""Teams: every member does its work in every run; whoever dies ends the team, and nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from shoal.api import Field, Replay, ShoalError
from shoal.local.workers import Team
from shoal.metering.recorder import Recorder
from shoal.replay import ItemSpec, SequenceSpec, TableSpec
from shoal.shm.ports import ReplayReader

pytestmark = [pytest.mark.timeout(40), pytest.mark.skipif(sys.platform != "linux", reason="teams fork")]

STREAM = {
    "obs": Field((4, 2, 3)), "action": Field((4, 2), "int64"),
    **{name: Field((4, 2)) for name in ("reward", "q_taken", "q_max")},
    **{name: Field((4, 2), "bool") for name in ("first", "terminated", "truncated", "valid")},
}  # fmt: skip


@pytest.fixture
def team() -> Iterator[Team]:
    team = Team(3)
    yield team
    team.close()


def test_each_member_works_once_in_each_run_and_sees_what_was_written_before(team: Team) -> None:
    given, found = team.zeros((2,), torch.int64), team.zeros((3, 2), torch.int64)
    private = torch.zeros(2, dtype=torch.int64)

    def work(number: int) -> None:
        private.add_(1)
        found[number] = 10 * number + given + private

    team.start(work)
    for round in range(1, 200):
        given[:] = torch.tensor([100 * round, 1000 * round])
        team.run()
        assert found.tolist() == [[10 * n + 101 * round, 10 * n + 1001 * round] for n in range(3)]


def test_members_meet_in_their_work(team: Team) -> None:
    """What each wrote before they met, all see after it; however often they meet, and whoever is late."""
    written, seen = team.zeros((3,), torch.int64), team.zeros((3, 3), torch.int64)

    def work(number: int) -> None:
        for round in range(3):
            if number == round:
                time.sleep(0.002)
            written[number] += number + 1
            team.meet(number)
            seen[number] = written
            team.meet(number)

    team.start(work)
    for round in range(1, 40):
        team.run()
        assert seen.tolist() == [[3 * round, 6 * round, 9 * round]] * 3


def test_a_second_start_replaces_the_copies(team: Team) -> None:
    found = team.zeros((3,))
    team.start(lambda number: found.__setitem__(number, os.getpid()))
    team.run()
    before = set(found.tolist())
    team.start(lambda number: found.__setitem__(number, os.getpid()))
    team.run()
    assert before & set(found.tolist()) == {os.getpid()} and len(set(found.tolist())) == 3
    assert not any(psutil.pid_exists(int(pid)) for pid in before - {os.getpid()})


@pytest.mark.parametrize("how", ["killed", "raises"])
def test_a_member_that_dies_is_named(team: Team, how: str, capfd: pytest.CaptureFixture[str]) -> None:
    pids = team.zeros((3,), torch.int64)

    def work(number: int) -> None:
        if number == 2 and pids[2]:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("no share for me")
        pids[number] = os.getpid()

    team.start(work)
    team.run()
    with pytest.raises(ShoalError, match=f"process {pids[2]}, which shared the work of this one") as error:
        team.run()
    assert ("killed by SIGKILL" if how == "killed" else "code 1") in str(error.value)
    assert ("ValueError: no share for me" in capfd.readouterr().err) is (how == "raises")
    assert not any(psutil.pid_exists(int(pid)) for pid in pids[1:])


SCRIPT = """
import os, time, torch
from shoal.local.workers import Team
team = Team(3)
pids = team.zeros((3,), torch.int64)
team.start(lambda number: pids.__setitem__(number, os.getpid()))
team.run()
print(*pids.tolist(), flush=True)
time.sleep(100)
"""


def test_copies_end_with_their_process_however_it_dies() -> None:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True, env=environ)
    assert process.stdout is not None
    with process.stdout as lines:
        pids = [int(n) for n in re.findall(r"\d+", lines.readline())]
    assert pids[0] == process.pid and len(pids) == 3
    process.kill()
    process.wait()
    end = time.monotonic() + 60
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_members_work_although_the_replica_has_used_several_threads(team: Team) -> None:
    """Those of OpenMP are not copied by a fork: an operation of a copy would wait for them for ever."""
    before, many = torch.get_num_threads(), torch.rand(1_000_000)
    torch.set_num_threads(2)
    try:
        wanted = many.exp().sum()
        found = team.zeros((3,))

        def work(number: int) -> None:
            found[number] = many.exp().sum()

        team.start(work)
        team.run()
        torch.testing.assert_close(found, wanted.expand(3))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("table", [
    TableSpec(60_000, n_step=1).build(STREAM, 1, 0), ItemSpec(60_000).build({"obs": Field((4, 16))}, 1, 0),
    SequenceSpec(60_000, length=4, stride=4).build(STREAM, 1, 0),
], ids=["steps", "items", "sequences"])  # fmt: skip
def test_copies_do_not_keep_a_replay(table: Replay) -> None:
    """Nor what any other array of the first member held; its own is as before."""
    replay = max(table.arrays(), key=lambda array: array.nbytes)
    assert replay.nbytes > 2**20
    replay[:] = 1
    consumer = SimpleNamespace(layout=SimpleNamespace(channel=SimpleNamespace(name="steps"), writers=1), reader=0)
    reader = ReplayReader(consumer, table, None, 1, Recorder())  # type: ignore[arg-type]
    team = Team(2, reader.forget)
    found = team.zeros((2,))

    def work(number: int) -> None:
        found[number] = float(replay.mean())

    try:
        team.start(work)
        team.run()
        assert found[0] == 1.0 and found[1] < 0.01, "less than two pages of it"
    finally:
        team.close()
