"""The torchrun runtime: ranks as processes of their own, joined by torch.distributed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import timedelta
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from present import present

sys.path.append(str(Path(__file__).parents[1] / "systems"))
from helpers import config, run, spy

from shoal.api import RoleFailed, Stopped, UsageError
from shoal.local import processes
from shoal.local.runtime import LocalRuntime
from shoal.records import checkpoint, checkpoint_state as state_files
from shoal.records.checkpoint import Checkpoint, SaveOptions, Unloadable
from shoal.run import RunOptions
from shoal.runtime.all_reduce import completed
from shoal.runtime.interrupts import Interrupts
from shoal.runtime.launch import Launch, Stop
from shoal.systems import dd_ppo, load
from shoal.torchrun import checkpoint as torchrun, group as group_module
from shoal.torchrun.group import Group
from shoal.torchrun.place import Place, place
from shoal.torchrun.runtime import TorchrunRuntime, _Rank

ROOT = Path(__file__).parents[2]
SMALL = dict(env="CartPole-v1", device="cpu", precision="fp32", sync_frac=2.0, check_every=1)


def environ(rank: int, world: int, port: int) -> dict[str, str]:
    """What torchrun sets for one of its processes, whose store it holds."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
    own = {"TORCHELASTIC_RUN_ID": "t", "TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "127.0.0.1"}
    return {**own, **{k: str(v) for k, v in numbers.items()}}


def enter(blob: bytes, settings: dict[str, str], pipe: Any) -> None:
    os.environ.update(settings)
    try:
        result = cloudpickle.loads(blob)()
    except Exception as error:  # noqa: BLE001 - told to the test
        result = type(error), str(error)
    pipe.send_bytes(cloudpickle.dumps(result))
    os._exit(0)


def ranks(world: int, call: Callable[[], Any]) -> list[Any]:
    """What ``call`` returns or raises in each of so many ranks; None: the process died."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes.prepare()
    pipes, started = [], []
    for rank in range(world):
        ours, theirs = Pipe(duplex=False)
        settings = {**os.environ, **environ(rank, world, store.port)}
        started.append(processes.start(enter, (cloudpickle.dumps(call), settings, theirs), f"rank-{rank}"))
        theirs.close()
        pipes.append(ours)
    out: list[Any] = []
    for pipe in pipes:
        assert pipe.poll(240), "a rank hangs"
        try:
            out.append(cloudpickle.loads(pipe.recv_bytes()))
        except EOFError:
            out.append(None)
    for process in started:
        process.join()
    return out


def launch(updates: int, folder: Path | None = None, number: int = 0, resume: Checkpoint | None = None) -> Launch:
    saving = SaveOptions(folder, launch=number) if folder is not None else None
    return Launch(seed=0, stop=Stop(updates=updates), saving=saving, resume=resume)


def test_two_processes_are_two_ranks_bit_for_bit() -> None:
    """The same program with the same seeds, in one process and in two."""
    cfg = config("dd-ppo", **SMALL, core="lstm", core_size=8)
    here = run(dd_ppo.program(cfg), 4)
    first, second = ranks(2, lambda: TorchrunRuntime().launch(dd_ppo.program(cfg), launch(4)))
    assert first.reason == second.reason == "updates" and first.updates == second.updates == 4
    assert first.steps == second.steps >= here.steps, "it may have begun the next rollout"
    for name, value in here.params["params"].items():
        assert torch.equal(first.params["params"][name], value), name
    assert not second.params, "the first rank has them"


def test_ranks_of_one_machine_reduce_over_its_loopback_interface() -> None:
    def call() -> tuple[str | None, set[str]]:
        joined = Group(present(place()), 0.0)
        joined.join(torch.device("cpu"))
        joined.wait(present(joined.reduce(torch.ones(3))))
        listening = [c.laddr.ip for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN]
        joined.exchange(None)  # the others have looked, too
        return os.environ.get("GLOO_SOCKET_IFNAME"), set(listening)

    for name, listening in ranks(2, call):
        assert name in ("lo", "lo0") and listening <= {"127.0.0.1", "::1"}


def test_runs_go_on_on_the_other_runtime_and_back(tmp_path: Path) -> None:
    """``check_every`` raises if the states that the ranks go on from do not belong together."""
    folder = tmp_path / "checkpoints"
    program = dd_ppo.program(config("dd-ppo", **SMALL, normalise_obs=True))
    first, _ = ranks(2, lambda: TorchrunRuntime().launch(program, launch(3, folder)))
    saved = checkpoint.newest(folder)
    assert first.reason == "updates" and (saved.manifest["updates"], saved.steps) == (3, first.steps)
    second = LocalRuntime().launch(program, launch(6, folder, 1, saved))
    between = checkpoint.newest(folder)
    assert second.updates == 6 and between.manifest["updates"] == 6
    third, _ = ranks(2, lambda: TorchrunRuntime().launch(program, launch(9, folder, 2, between)))
    assert third.updates == 9 and third.steps > between.steps > saved.steps
    assert checkpoint.newest(folder).manifest["launch"] == 2
    board = checkpoint.newest(folder).read("channel-progress")
    assert (np.asarray(board["rows"]["rollouts"]) >= 9).all()


def test_ranks_that_were_saved_before_and_after_a_put_go_on_together(tmp_path: Path) -> None:
    """The first has put an item that the second has not put yet; both begin with the first one's parameters."""
    program = dd_ppo.program(config("dd-ppo", **SMALL))
    ranks(2, lambda: TorchrunRuntime().launch(program, launch(1, tmp_path)))
    saved = checkpoint.newest(tmp_path)

    def call() -> list[np.ndarray]:
        joined, cpu = Group(present(place()), 0.0), torch.device("cpu")
        joined.join(cpu)
        with Interrupts() as interrupts:
            rank = _Rank(program, launch(2, resume=saved), joined, interrupts, cpu)
            end, load = next(end for end in rank.ends.reducers.values() if not end.channel.mean), torchrun.load

            def apart(*args: Any) -> None:
                load(*args)
                slots = [{name: np.full_like(array, 2) for name, array in s.items()} for s in end.state_dict()["slots"]]
                states = [{"puts": puts, "gets": 0, "slots": slots} for puts in (1, 0)]
                end.load_state_dict(states[joined.rank], lambda: states)

            torchrun.load = apart  # type: ignore[assignment]  # of this process
            rank._begin()
            if joined.rank == 1:
                with end.slot() as arrays:
                    for array in arrays.values():
                        array[...] = 4
            return [value.numpy().copy() for value in end.get().values()]

    one, two = ranks(2, call)
    for sums in (one, two):
        assert sums and all((values == 6).all() for values in sums)


class Late:
    """A reduction that is complete, in time or not, after a wait of limited time that was in vain."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails

    def wait(self, limit: Any = None) -> None:
        if limit is not None:
            raise RuntimeError("Operation timed out!")
        if self.fails:
            raise RuntimeError("Connection closed by peer")

    def is_completed(self) -> bool:
        return True


def test_a_reduction_that_ends_just_after_the_time_limit_is_complete() -> None:
    limit: Any = timedelta(seconds=1)
    works: list[Any] = [Late(fails=False), Late(fails=True)]
    assert completed(works[0], limit, on_gpu=False)
    with pytest.raises(ConnectionError, match="closed by peer"):
        completed(works[1], limit, on_gpu=False)


def test_checkpoints_before_any_parameters_and_of_what_fails_to_be_saved(tmp_path: Path) -> None:
    """The one is complete, the other costs a warning, not the run."""
    folder = tmp_path / "checkpoints"
    program = dd_ppo.program(config("dd-ppo", **SMALL))

    def call() -> tuple[bool, bool]:
        joined, cpu = Group(present(place()), 0.0), torch.device("cpu")
        joined.join(cpu)
        with Interrupts() as interrupts:
            rank = _Rank(program, launch(2, folder), joined, interrupts, cpu)
            rank._save(1)
            whole = checkpoint.newest(folder) is not None

            def fail() -> Any:
                raise KeyError("lost")

            rank.role.state_dict = fail
            rank._save(2)
            return whole, checkpoint.unfinished(SaveOptions(folder, launch=0), 2).exists()

    assert ranks(1, call) == [(True, False)]


def ending(how: Callable[[], None]) -> list[Any]:
    """What becomes of three ranks of which the second ends in its fifth step."""
    cfg = config("dd-ppo", **SMALL, actors=3)

    def mortal(role: Any) -> None:
        step, steps = role.step, iter(range(1_000_000))

        def stepped() -> None:
            step()
            if role.ctx.index == 1 and next(steps) == 4:
                how()

        role.step = stepped

    def call() -> Any:
        return TorchrunRuntime().launch(spy(dd_ppo.program(cfg), "rank", mortal), launch(10_000))

    return ranks(3, call)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def raising() -> None:
    raise ValueError("the simulator is gone")


@pytest.mark.parametrize("how, cause", [(killed, "ended without a word"), (raising, "simulator is gone")])
def test_a_rank_that_is_lost_is_named_with_its_host(how: Callable[[], None], cause: str) -> None:
    first, second, third = ending(how)
    assert first[0] is RoleFailed and first[1].startswith("rank[1] "), first
    assert cause in first[1] and f"on the host {socket.gethostname()}" in first[1]
    assert third[0] in (Stopped, RoleFailed) and "rank[1]" in third[1], "the others end too"
    if how is raising:
        assert second[0] is RoleFailed and "ValueError" in second[1], "and says so itself"


def test_a_rank_without_a_sign_of_life_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the first, an hour of which passes at once."""
    now = [0.0]
    monkeypatch.setattr(group_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    store = dist.HashStore()
    joined = Group.__new__(Group)
    joined.place, joined.role, joined.hang_timeout = Place(0, 2, 0, 1, "localhost", 1), "rank", 45.0
    joined.hosts, joined._pids, joined._store, joined._seen = ["here", "there"], [0, 0], store, {}
    joined._said, joined._beats, joined._beaten = 2, 0, -1.0
    for rank in range(2):
        store.set(f"cause/{rank}", "")
        store.set(f"beat/{rank}", "1")
    for seconds, beat in ((0.0, 1), (45.0, 1), (45.5, 2), (90.5, 2)):
        now[0] = seconds
        store.set("beat/1", str(beat))
        joined.look()
    now[0], joined.hang_timeout = 91.0, 0.0
    joined.look()  # 0: never
    joined.hang_timeout = 45.0
    with pytest.raises(RoleFailed, match=r"(?s)rank\[1\].*on the host there: no sign of life for 46 s"):
        joined.look()
    assert b"no sign of life" in store.get("cause/1"), "the others read it"


# --------------------------------------------------------------------------------------- refusals
@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process, as if torchrun had started it with another."""
    for name, value in environ(0, 2, 1).items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    "system, fields, expected",
    [
        ("dqn", {}, "it without torchrun (dd-ppo is a system of ranks)"),
        ("impala", dict(actors=2), "impala has channels of the kind queue"),
        ("a3c", dict(actors=2), "a3c has channels of the kind shared"),
        ("dd-ppo", dict(actors=3), "has started 2 processes, each of which is a rank, but dd-ppo has 3 ranks"),
    ],
)
def test_what_is_not_made_of_as_many_ranks_is_refused(
    system: str, fields: dict[str, Any], expected: str, started: None
) -> None:
    program = load(system).program(config(system, env="CartPole-v1", device="cpu", **fields))
    with pytest.raises(UsageError) as error:
        TorchrunRuntime().check(program)
    assert expected in str(error.value) and "\n" not in str(error.value)


def test_the_runtime_that_is_meant(started: None) -> None:
    assert RunOptions().runtime == "torchrun"
    with pytest.raises(UsageError, match="--runtime serial expects to be started without it"):
        RunOptions(runtime="serial")


def test_without_torchrun_there_are_no_ranks() -> None:
    assert place({}) is None and RunOptions().runtime == "local"
    with pytest.raises(UsageError, match="torchrun --nproc-per-node N"):
        TorchrunRuntime()


# ------------------------------------------------------------------------------------ the command
def test_the_command(tmp_path: Path) -> None:
    """One run directory, one report, whoever started how many; and it goes on without torchrun."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "shoal"),
        *("train", "dd-ppo", "--env", "toy:bandit-identity", "--preset", "none", "--envs", "4", "--unroll", "8"),
        *("--minibatches", "1", "--steps", "400", "--device", "cpu", "--run-dir", "run"),
    ]
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("saved in run") == 1 and "steps: 4" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    found = RunOptions.from_json({**_facts(tmp_path / "run")})
    assert found.runtime == "local" and checkpoint.newest(tmp_path / "run" / "checkpoints").steps >= 400


def _facts(path: Path) -> dict[str, Any]:
    from shoal.records.damage import read_json

    facts = read_json(path / "config.json", "run")
    assert facts["runtime"] == "torchrun" and facts["actors"] == 2
    return facts


def test_ranks_go_back_together_where_one_of_them_cannot_load_its_state(tmp_path: Path) -> None:
    """The newest checkpoint fits its manifest, and means nothing to the second rank."""
    folder = tmp_path / "checkpoints"
    program = dd_ppo.program(config("dd-ppo", **SMALL))
    ranks(2, lambda: TorchrunRuntime().launch(program, launch(1, folder)))
    older = checkpoint.newest(folder)
    ranks(2, lambda: TorchrunRuntime().launch(program, launch(2, folder, 1, older)))
    newest = checkpoint.newest(folder)
    (part,) = [name for name in newest.manifest["files"] if name.startswith("role-") and name.endswith("-1.json")]
    part = part.removesuffix(".json")
    state = newest.read(part)
    state["role"] = {}
    (aside := tmp_path / "aside").mkdir()
    for name, written in state_files.write(state_files.pack(state), aside, part).items():
        (aside / name).replace(newest.path / name)
        newest.manifest["files"][name] = asdict(written)
    (newest.path / "manifest.json").write_text(json.dumps(newest.manifest))

    def go(went_back: Any) -> Any:
        return TorchrunRuntime().launch(program, replace(launch(3, folder, 2, newest), went_back=went_back))

    alone = ranks(2, lambda: go(None))
    assert alone[0][0] is Unloadable and f"'{part}' does not fit: KeyError" in alone[0][1] and alone[1][0] is Stopped
    assert newest.path.is_dir()
    first, second = ranks(2, lambda: go(lambda source: None))
    assert first.reason == second.reason == "updates" and first.updates == second.updates == 3
    assert not newest.path.exists() and [*folder.glob(f"damaged-{newest.path.name}-*")] and older.path.is_dir()
