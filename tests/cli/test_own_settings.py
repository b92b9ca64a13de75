"""What a user's program has set for its own numbers changes nothing of a run, and is as it was afterwards."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shoal
from shoal.api import UsageError
from shoal.local import processes
from shoal.local.runtime import LocalRuntime
from shoal.own_settings import own_settings
from shoal.systems import load

SMALL: dict[str, Any] = dict(env="CartPole-v1", runtime="serial", actors=1, envs=2, unroll=8, hidden=(8,), steps=400)


@contextlib.contextmanager
def default_dtype() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    assert torch.get_default_dtype() == torch.float64
    torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def strict_numpy() -> Any:
    with np.errstate(all="raise"):
        yield
        assert set(np.geterr().values()) == {"raise"}


AROUND: dict[str, Callable[[], Any]] = {
    "nothing": contextlib.nullcontext, "float64": default_dtype, "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode, "NumPy raises": strict_numpy,
    "another device": lambda: torch.device("meta"),
}  # fmt: skip


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    run = shoal.train("impala", run_dir=tmp_path_factory.mktemp("plain") / "r", **SMALL)
    return run.policy().params


@pytest.mark.parametrize("around", AROUND)
def test_a_run_is_the_same_whatever_is_set_around_it(
    around: str, plain: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    with AROUND[around]():
        run = shoal.train("impala", run_dir=tmp_path / "r", **SMALL)
        policy = run.policy()
        policy.act(np.zeros(4, np.float32))
        returns = list(policy.evaluate(2))
        more = shoal.resume(run.path, steps=500)
    assert all(torch.equal(plain[name], policy.params[name]) for name in plain)
    assert returns == list(run.policy().evaluate(2)) and more.report is not None and more.report.steps >= 500


@pytest.mark.parametrize("threads", [1, 3])
def test_a_serial_run_takes_one_thread_and_gives_back_what_there_were(threads: int, tmp_path: Path) -> None:
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(threads)
    try:
        run = shoal.train(
            "impala", run_dir=tmp_path / "r", observers=lambda metrics: seen.append(torch.get_num_threads()),
            **{**SMALL, "steps": 2_000},
        )  # fmt: skip
        run.evaluate(1)
        assert set(seen) == {1} and torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_the_settings_are_given_back_after_an_error() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with contextlib.suppress(KeyError), own_settings(threads=2):
            assert torch.get_default_dtype() == torch.float32
            raise KeyError
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_two_serial_runs_at_once_are_refused_and_the_first_is_what_it_is_alone(
    plain: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    goes, second = threading.Event(), threading.Event()

    def wait(metrics: dict[str, Any]) -> None:
        goes.set()
        second.wait(60)

    longer = {**SMALL, "steps": 1_200}
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(lambda: shoal.train("impala", run_dir=tmp_path / "a", observers=wait, **longer))
        assert goes.wait(60)
        with pytest.raises(UsageError, match="a serial run is going on in this process already, in another thread"):
            shoal.train("impala", run_dir=tmp_path / "b", **SMALL)
        second.set()
        params = first.result().policy().params
    alone = shoal.train("impala", run_dir=tmp_path / "c", **longer).policy().params
    assert all(torch.equal(alone[name], params[name]) for name in alone)
    assert not (tmp_path / "b").exists()


def test_a_daemon_is_told_what_it_may_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    program = load("impala").program(load("impala").Config(hidden=(8,), actors=1))
    with pytest.raises(UsageError, match=r"daemon.*runtime='serial'"):
        LocalRuntime().check(program)
    with pytest.raises(UsageError, match=r"daemon.*runtime='serial'"):
        processes.prepare()


def test_a_copy_of_a_process_by_fork_has_a_server_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    server: Any = type("Server", (), {})()
    server._forkserver_pid, server._forkserver_alive_fd, server._forkserver_address = 7, -1, "somewhere"
    monkeypatch.setattr(processes.forkserver, "_forkserver", server)
    monkeypatch.setattr(processes, "_SERVER_OF", {7: processes.os.getpid()})
    processes._forget_parents()
    assert server._forkserver_pid == 7, "its own"
    processes._SERVER_OF[7] = 1
    processes._forget_parents()
    assert server._forkserver_pid is None and server._forkserver_address is None
