"""Whole runs on a GPU: they go on elsewhere, are evaluated and exported, share a GPU, and leave nothing on it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from devices import DEVICE, ON_GPU
from helpers import config, spy
from safetensors.torch import load_file

import shoal
from shoal.api import ShoalError, UsageError
from shoal.policy.export import export
from shoal.records.param_files import load_params
from shoal.run.initial import begin_with
from shoal.runtime.devices import check_devices
from shoal.runtime.launch import Launch
from shoal.serial.instance import Instance
from shoal.systems import load

SMALL: dict[str, Any] = dict(
    env="CartPole-v1", preset="none", actors=1, envs=4, unroll=8, hidden=(8,), precision="fp32"
)
OF: dict[str, dict[str, Any]] = {
    "impala": dict(core="lstm", core_size=8, replay=16, normalise_obs=True),
    "recurrent-ppo": dict(minibatches=2, epochs=2, normalise_obs=True, normalise_reward=True, optimiser="rmsprop"),
    "dd-ppo": dict(minibatches=2, epochs=2, normalise_reward=True),
    "dqn": dict(batch=16, min_replay=64, replay=1_000, prioritised=True),
    "r2d2": dict(batch=4, min_replay=10, replay=200, core_size=8, dueling=False, sequence=8, overlap=4, burn_in=4),
}
WAYS = [(DEVICE, "cpu"), ("cpu", DEVICE), (DEVICE, DEVICE)] if ON_GPU else [("cpu", "cpu")]
COMMAND = [sys.executable, "-m", "shoal", "train", "impala", "--env", "CartPole-v1", "--device", DEVICE]


def on_device(path: Path, system: str = "impala", **fields: Any) -> shoal.Run:
    given = {**SMALL, **OF[system], "device": DEVICE, "runtime": "serial", "steps": 300, **fields}
    return shoal.train(system, run_dir=path, **given)


@pytest.mark.cuda
@pytest.mark.parametrize("system", OF)
@pytest.mark.parametrize("before, after", WAYS)
def test_a_run_goes_on_with_every_number_on_another_device(
    system: str, before: str, after: str, tmp_path: Path
) -> None:
    """Steps of rate 0 change no parameter, so what was saved is what is found; then it learns on."""
    first = on_device(tmp_path / "r", system, device=before, checkpoint_every=0.0)
    _, saved = load_params(first.path, "params")
    shoal.resume(first.path, steps=500, device=after, learning_rate=0.0)
    _, found = load_params(first.path, "params")
    weights = [name for name, value in saved.items() if value.dtype == torch.float32]
    assert weights and all(torch.equal(saved[name], found[name]) for name in weights)
    again = shoal.resume(first.path, steps=900, learning_rate=1e-3)
    _, moved = load_params(first.path, "params")
    assert again.report is not None and again.report.steps >= 900
    assert any(not torch.equal(moved[name], found[name]) for name in weights)


@pytest.mark.cuda
def test_a_policy_learned_on_the_device_is_evaluated_and_exported(tmp_path: Path) -> None:
    run = on_device(tmp_path / "r")
    found = run.evaluate(episodes=3)
    assert len(found) == 3 and np.isfinite(found).all()
    export(run.policy(), "safetensors", tmp_path / "exported")
    exported = load_file(tmp_path / "exported" / "model.safetensors")  # whose names are the network's
    _, learned = load_params(run.path)
    assert any(torch.equal(exported[k], learned[k]) for k in exported.keys() & learned.keys())


@pytest.mark.cuda
@pytest.mark.parametrize("before, after", WAYS)
def test_a_run_begins_with_parameters_of_another_device(before: str, after: str, tmp_path: Path) -> None:
    first = on_device(tmp_path / "a", device=before)
    second = on_device(tmp_path / "b", device=after, init_from=first.path, learning_rate=0.0)
    (_, given), (_, found) = load_params(first.path), load_params(second.path)
    weights = [name for name, value in given.items() if value.dtype == torch.float32]
    assert weights and all(torch.equal(given[name], found[name]) for name in weights)


@pytest.mark.cuda
def test_a_target_network_begins_on_the_device_with_the_given_parameters() -> None:
    program = load("dqn").program(config("dqn", device=DEVICE))
    given = {name: torch.rand(f.shape) for name, f in program.policy_channel().spec.items()}
    begin_with(program, given, "somewhere")
    (learner,) = [r.role.learner for r in Instance(program, Launch()).replicas if r.name == "learner"]  # type: ignore[attr-defined]
    for network in (learner.algorithm.nets, learner.algorithm.target):
        held = network.state_dict()
        assert all(v.device.type == torch.device(DEVICE).type for v in held.values())
        assert all(torch.equal(held[k].cpu(), given[k]) for k in held if k in given)


@pytest.mark.cuda
def test_two_runs_share_a_device_and_leave_nothing_on_it(tmp_path: Path) -> None:
    before = used()
    runs = [start(tmp_path / str(i), "--steps", "3000") for i in range(2)]
    for run in runs:
        out, _ = run.communicate(timeout=110)
        assert run.returncode == 0, out
    assert used() <= before + ROOM


@pytest.mark.cuda
def test_a_killed_run_leaves_nothing_on_the_device(tmp_path: Path) -> None:
    """The supervisor is killed outright; its replicas then end by themselves, and the driver frees what they held."""
    before = used()
    run = start(tmp_path / "r", "--steps", "1000000000")
    while not (metrics := tmp_path / "r" / "metrics.csv").exists() or metrics.read_text().count("\n") < 2:
        assert run.poll() is None, run.communicate()[0]
        time.sleep(0.05)
    replicas = psutil.Process(run.pid).children(recursive=True)
    assert replicas
    os.kill(run.pid, signal.SIGKILL)
    run.communicate()
    _, alive = psutil.wait_procs(replicas, timeout=60)
    assert not alive and used() <= before + ROOM


ROOM = 64 * 2**20  # bytes, which other programs may have taken meanwhile; a replica's CUDA context takes hundreds


def used() -> int:
    """Bytes in use on the device by all processes."""
    if not ON_GPU:
        return 0
    free, total = torch.cuda.mem_get_info(DEVICE)
    return total - free


def start(path: Path, *more: str) -> subprocess.Popen[str]:
    small = ["--preset", "none", "--hidden", "8", "--actors", "1", "--envs", "4", "--run-dir", str(path)]
    small += ["--quiet"]
    return subprocess.Popen(
        [*COMMAND, *small, *more], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )  # fmt: skip


@pytest.mark.cuda
def test_a_device_that_is_not_there_is_named_beside_those_that_are() -> None:
    with pytest.raises(UsageError, match=r"expects the device cuda:99, but PyTorch .* finds .*(no CUDA GPU|cuda:0)"):
        check_devices(load("dqn").program(config("dqn", device="cuda:99")))


def out_of_memory(role: Any) -> None:
    def update(batch: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has 1.00 GiB free.\nMore.")

    role.learner.update = update


def test_a_replica_without_memory_on_its_device_says_so_in_one_sentence() -> None:
    """What PyTorch raises there, in a learner of the local runtime."""
    program = spy(load("impala").program(config("impala", env="CartPole-v1", device="cpu")), "learner", out_of_memory)
    with pytest.raises(ShoalError, match=r"no memory is left: CUDA .*Tried to allocate 20.00 GiB") as told:
        shoal.launch(program, updates=2)
    assert "Traceback" not in str(told.value)


@pytest.mark.cuda
@pytest.mark.skipif(not ON_GPU, reason="needs a GPU's memory to fill")
def test_a_full_device_ends_a_run_with_one_sentence(tmp_path: Path) -> None:
    free, _ = torch.cuda.mem_get_info(DEVICE)
    held = torch.empty(max(0, free - 700 * 2**20), dtype=torch.uint8, device=DEVICE)
    wide = start(tmp_path / "r", "--hidden", "8192,8192", "--steps", "1000")
    out, _ = wide.communicate(timeout=110)
    del held
    torch.cuda.empty_cache()
    assert wide.returncode == 1 and "no memory is left: CUDA" in out and "Traceback" not in out
    assert len(re.findall("out of memory", out)) <= 2
