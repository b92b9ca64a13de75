"""Whole systems, ended by a real signal or killed, go on: exactly (serial), without a jump (local)."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from helpers import signalled

import shoal
from shoal.api import Context
from shoal.cli.resume import report as ended
from shoal.metering.recorder import Recorder
from shoal.records import checkpoint
from shoal.records.checkpoint import Checkpoint, part
from shoal.records.metric_files import read_curve
from shoal.roles.evaluator import Episodes
from shoal.run.evaluation import Evaluation
from shoal.serial import runtime as serial
from shoal.topology.config import SystemConfig

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
from states import same

SMALL: dict[str, Any] = dict(env="CartPole-v1", preset="none", device="cpu", hidden=(8,), envs=4, unroll=16, seed=3)
REPLAY: dict[str, Any] = dict(batch=16, min_replay=200, replay=600, samples_per_insert=2.0, target_period=20)
SYSTEMS: dict[str, dict[str, Any]] = {
    "dqn": dict(REPLAY, actors=1, prioritised=True, optimiser="rmsprop", epsilon_steps=800),
    "apex-dqn": dict(REPLAY, actors=2, sampler="rank"),
    "r2d2": dict(
        REPLAY, actors=2, batch=4, min_replay=30, replay=80, core_size=8, dueling=False, sequence=8, overlap=4,
        burn_in=4,
    ),
    "r2d3": dict(
        REPLAY, actors=1, batch=4, min_replay=30, replay=80, core_size=8, dueling=False, sequence=8, overlap=4,
        burn_in=4, demonstrations="helpers:demonstrations", demo_ratio=0.3,
    ),
    "apex-dpg": dict(REPLAY, env="Pendulum-v1", actors=2, random_steps=700, noise_correlation=0.85),
    "d4pg": dict(REPLAY, env="Pendulum-v1", actors=1, critic="mixture", prioritised=True),
    "qt-opt": dict(
        env="Pendulum-v1", actors=2, batch=16, min_replay=200, replay=600, samples_per_insert=2.0, updaters=2,
        label_uses=2.0, labels=64, target_lag=10, cem_samples=8, cem_elites=3, optimiser="sgd", momentum=0.5,
    ),
    "qt-opt, two learners": dict(
        env="Pendulum-v1", actors=2, batch=16, min_replay=200, replay=600, samples_per_insert=2.0, learners=2,
        shards=2, n_fetch=2, n_push=3, label_uses=2.0, labels=64, target_lag=10, cem_samples=8, cem_elites=3,
    ),
    "gorila": dict(
        REPLAY, actors=3, shards=3, n_fetch=2, n_push=3, optimiser="rmsprop", outliers=3.0, max_lag=2, prioritised=True,
    ),
    "rainbow": dict(REPLAY, actors=1, streams=8, atoms=11, v_min=0.0, v_max=50.0),
    "impala": dict(actors=2, core="lstm", core_size=8, last_action_reward=True, replay=24),
    "impala, server": dict(actors=2, core="lstm", core_size=8, unroll=7, inference="server"),
    "impala, server, two groups": dict(
        actors=1, core="lstm", core_size=8, unroll=7, inference="server", double_buffer="on"
    ),
    "dqn, server": dict(REPLAY, actors=2, epsilon_steps=800, inference="server"),
    "impala, two learners": dict(actors=3, learners=2, batch=2, replay=24),
    "es": dict(actors=2, pairs=8, evaluate_every=2, noise_table=2**16, unroll=32),
    "a3c": dict(actors=2, core="lstm", core_size=8, optimiser="rmsprop", normalise_obs=True, normalise_reward=True),
    "unreal": dict(actors=2, env="toy:catch", core_size=8, replay=100, hidden=(), optimiser="rmsprop", torso="mlp"),
    "async-sarsa": dict(actors=2, optimiser="rmsprop", normalise_obs=True, target_period=200, epsilon_steps=800),
    "dd-ppo": dict(
        actors=2, core="lstm", core_size=8, minibatches=2, epochs=2, normalise_obs=True, normalise_reward=True,
        target_kl=0.01,
    ),
    "recurrent-ppo": dict(
        actors=2, core="gru", core_size=8, minibatches=2, epochs=2, normalise_obs=True, normalise_reward=True,
        clip="linear(0.2, 0)", entropy_cost="linear(0.01, 0)", max_grad_norm="linear(0.5, 0.1)",
    ),
}  # fmt: skip
FILES = ("metrics.csv", "metrics.jsonl", "episodes.csv")


def newest(run: Path) -> Checkpoint:
    return checkpoint.newest(run / checkpoint.FOLDER)


def trained(run: Path, updates: int) -> Callable[[], bool]:
    """Whether the metrics tell of so many updates."""

    def look() -> bool:
        path = run / "metrics.csv"
        lines = path.read_text().splitlines()[1:] if path.exists() else []
        return bool(lines) and int(lines[-1].split(",")[2] or 0) >= updates

    return look


def states(found: Checkpoint) -> dict[str, Any]:
    """Every part of a checkpoint, but for the clock."""
    out = {name[:-5]: found.read(name[:-5]) for name in found.manifest["files"] if name.endswith(".json")}
    del out["run"]["aggregator"]["seconds"]
    return out


# ----------------------------------------------------------------------------------------- serial
ROWS, CUT, STEPS = 400, 450, 1_000  # steps between two rows, from where a run is ended, and in all


@contextlib.contextmanager
def ended_once_trained() -> Iterator[None]:
    """Sends SIGTERM before a sweep of the serial runtime, between two rows, once there was an update."""
    sweep, sent = serial._Run._sweep, list[Any]()

    def sweep_after_signal(run: Any, replicas: Any) -> None:
        if not sent and run.aggregator.updates >= 1 and run.aggregator.steps >= CUT:
            sent.append(run.aggregator.steps)
            os.kill(os.getpid(), signal.SIGTERM)
        sweep(run, replicas)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serial._Run, "_sweep", sweep_after_signal)
        yield
    assert sent, "the run ended before the signal"


@pytest.mark.parametrize("case", SYSTEMS)
def test_serial_half_and_half_is_the_whole_bit_for_bit(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Networks, optimiser, replay, normalisers, generators, environments, evaluations, metric files."""
    torch.set_num_threads(1)
    monkeypatch.setattr(serial, "ROW_EVERY", ROWS)
    system = case.partition(",")[0]
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    settings = {**SMALL, **SYSTEMS[case], "runtime": "serial", "steps": STEPS}
    settings["evaluation"] = Evaluation(every=ROWS, episodes=2, sampled=True) if system == "impala" else None
    once = shoal.train(system, run_dir=whole, **settings)
    with ended_once_trained():
        first = shoal.train(system, run_dir=halves, **settings)
    assert first.report is not None and first.report.reason == "terminated" and CUT <= first.report.steps < STEPS
    second = shoal.resume(halves)
    assert second.report is not None and second.report.reason == "steps"
    assert once.report is not None and once.report.updates > first.report.updates >= 1, "learns before and after"
    for name in (*FILES, *(["evaluations.csv"] if system == "impala" else [])):
        assert (whole / name).read_bytes() == (halves / name).read_bytes(), name
    same(states(newest(whole)), states(newest(halves)))


def test_serial_an_evaluation_that_is_cut_short_is_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal ends it at once, however long its episodes are; the run goes on as if nothing had been."""
    torch.set_num_threads(1)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    settings = {**SMALL, **SYSTEMS["impala"], "runtime": "serial", "steps": 3_500}
    settings["evaluation"] = Evaluation(every=1_000, episodes=2, sampled=True)
    shoal.train("impala", run_dir=whole, **settings)
    step, steps = Episodes.step, itertools.count()

    def signalling(self: Episodes) -> None:
        step(self)
        if next(steps) == 5:
            self.episodes = [[] for _ in self.episodes]  # one that takes long
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Episodes, "step", signalling)
        first = shoal.train("impala", run_dir=cut, **settings)
    assert first.report is not None and first.report.reason == "terminated" and next(steps) == 6
    assert 1_000 <= first.report.steps < 1_500 and not (cut / "evaluations.csv").exists()
    shoal.resume(cut)
    for name in (*FILES, "evaluations.csv"):
        assert (whole / name).read_bytes() == (cut / name).read_bytes(), name
    same(states(newest(whole)), states(newest(cut)))


@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_a_run_that_reached_its_return_is_finished(runtime: str, tmp_path: Path) -> None:
    run = shoal.train("dqn", **SMALL, **SYSTEMS["dqn"], run_dir=tmp_path / "r", runtime=runtime, until_return=5.0)
    assert run.report is not None and run.report.reason == "episode_return"
    with pytest.raises(shoal.UsageError, match=r"is finished: it has reached its return of 5; .* --until-return 5.5$"):
        shoal.resume(run.path, steps=10**7)
    again = shoal.resume(run.path, until_return=10**6, steps=run.report.steps + 500)
    assert again.report is not None and again.report.reason == "steps"


def test_any_seed_is_one(tmp_path: Path) -> None:
    """Also one that torch and NumPy, or an environment, cannot take."""
    settings = {**SMALL, **SYSTEMS["dqn"], "seed": 2**70 + 3, "runtime": "serial", "steps": 400}
    first, second = (shoal.train("dqn", run_dir=tmp_path / name, **settings) for name in "ab")
    assert (first.path / "metrics.csv").read_bytes() == (second.path / "metrics.csv").read_bytes()
    assert first.policy().evaluate(1, seed=2**70 + 3)


def test_serial_an_environment_that_is_not_deterministic_is_refused(tmp_path: Path) -> None:
    (tmp_path / "noise.py").write_text(
        "import gymnasium as gym, numpy as np, os\n"
        "class Noise(gym.Env):\n"
        "    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        return np.zeros(2, np.float32), {}\n"
        "    def step(self, action):\n"
        "        return np.frombuffer(os.urandom(2), np.int8).astype(np.float32) / 128, 0.0, False, False, {}\n"
    )
    settings = {**SMALL, "env": f"{tmp_path}/noise.py:Noise", "runtime": "serial", "max_episode_steps": 50}
    run = shoal.train("dqn", run_dir=tmp_path / "r", **settings, **SYSTEMS["dqn"], steps=200)
    with pytest.raises(shoal.ShoalError, match="is not deterministic"):
        shoal.resume(run.path, steps=400)


# ------------------------------------------------------------------------------------------ local
def curve(run: Path) -> tuple[list[float], list[float]]:
    """Steps and seconds of every row, which never fall."""
    found = read_curve(run)
    assert [row["row"] for row in found] == list(range(1, len(found) + 1))
    steps, seconds = [row["steps"] for row in found], [row["seconds"] for row in found]
    assert steps == sorted(steps) and seconds == sorted(seconds)
    return steps, seconds


def test_local_goes_on_without_a_jump(tmp_path: Path) -> None:
    """DQN: counters, exploration, learning rate, replay, versions; the curve goes on in the same files."""
    run = tmp_path / "r"
    settings = {**SMALL, **SYSTEMS["dqn"], "replay": 20_000, "learning_rate": 3e-4, "epsilon_steps": 10**6}
    with signalled(trained(run, 20), signal.SIGINT):
        first = shoal.train("dqn", run_dir=run, steps=10**6, **settings)
    assert first.report is not None and first.report.reason == "interrupted"
    before, lines = newest(run), len(read_curve(run))
    learner, table = before.read(part("role", "learner", 0))["role"], before.read(part("channel", "transitions"))
    assert learner["learner"]["step"] == before.manifest["updates"] == first.report.updates > 0
    (run / "evaluations.csv").write_text("steps\nmany\n")
    with pytest.raises(shoal.ShoalError, match="damaged"):
        shoal.resume(run, steps=before.steps + 2_000)
    told = json.loads((run / "report.json").read_text())
    assert told["reason"] == "failed" and told["steps"] == first.report.steps, "nothing was done, nothing is lost"
    (run / "evaluations.csv").unlink()

    second = shoal.resume(run, steps=before.steps + 2_000)
    assert second.report is not None and second.report.reason == "steps"
    assert before.steps + 2_000 <= second.report.steps < before.steps + 4_000
    curve(run)
    later = read_curve(run)[lines:]
    assert later[0]["steps"] >= before.steps and later[0]["updates"] >= before.manifest["updates"]
    assert next(row["replay_size"] for row in later if "replay_size" in row) >= table["table"]["counters"][1] > 200
    assert {row["learning_rate"] for row in later if "learning_rate" in row} == {3e-4}
    after = newest(run)
    again = after.read(part("role", "learner", 0))["role"]
    assert again["learner"]["step"] == after.manifest["updates"] > before.manifest["updates"]
    versions = [found.read(part("params", "params"))["version"] for found in (before, after)]
    assert versions[1] - versions[0] == after.manifest["updates"] - before.manifest["updates"], "no version is skipped"
    actions = [found.read("run")["counts"]["actor"][0][2] for found in (before, after)]
    assert actions[1] > actions[0] > 0, "exploration follows the actions over all lives"


def test_exploration_goes_on_where_earlier_lives_stopped() -> None:
    from shoal.systems import dqn

    cfg = dqn.Config(env="CartPole-v1", epsilon_start=1.0, epsilon_end=0.0, epsilon_steps=1_000)
    agent = dqn.agent(cfg, 0, Context("actor", 0, 1, 1, 0, Recorder(), counts={"actions": 600}))
    assert agent.epsilon(agent.steps) == pytest.approx(0.4)


def test_local_lockstep_with_normalisers_goes_on(tmp_path: Path) -> None:
    """Recurrent PPO: the learning rate falls with its own count of steps, statistics are kept."""
    run = tmp_path / "r"
    settings = {**SMALL, **SYSTEMS["recurrent-ppo"], "learning_rate": shoal.linear(1e-3, 0)}
    with signalled(trained(run, 2)):
        shoal.train("recurrent-ppo", run_dir=run, steps=10**6, **settings)
    before = newest(run)
    saved = before.read(part("role", "learner", 0))["role"]["learner"]
    assert float(saved["nets"]["norms.obs.count"]) == saved["env_steps"] > 0
    with signalled(trained(run, before.manifest["updates"] + 2)):
        shoal.resume(run)
    again = newest(run).read(part("role", "learner", 0))["role"]["learner"]
    assert float(again["nets"]["norms.obs.count"]) == again["env_steps"] > saved["env_steps"]
    rates = [row["learning_rate"] for row in read_curve(run) if "learning_rate" in row]
    assert rates == sorted(rates, reverse=True) and rates[-1] > 0


ENVIRON = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}


def start(run: Path, *words: str) -> subprocess.Popen[str]:
    small = ["--env", "CartPole-v1", "--preset", "none", "--hidden", "8", "--envs", "4", "--steps", "10000000"]
    return subprocess.Popen(
        [sys.executable, "-m", "shoal", "train", "impala", *small, "--run-dir", str(run), *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRON,
    )  # fmt: skip


def test_a_killed_run_goes_on_from_its_newest_whole_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """kill -9 of the parent; the newest checkpoint is damaged besides, which is said."""
    run = tmp_path / "r"
    process = start(run, "--checkpoint-every", "0.5")
    family: list[psutil.Process] = []
    end = time.monotonic() + 100
    while len(list((run / checkpoint.FOLDER).glob("0*"))) < 2 and time.monotonic() < end:
        assert process.poll() is None, process.communicate()[0]
        family = psutil.Process(process.pid).children(recursive=True)
        time.sleep(0.05)

    with pytest.raises(shoal.UsageError, match=rf"is still going on \(process {process.pid}\)"):
        shoal.resume(run)
    process.kill()
    process.communicate()
    psutil.wait_procs(family, timeout=20)

    *_, before, last = sorted((run / checkpoint.FOLDER).glob("0*"))
    (last / "role-learner-0.safetensors").write_bytes(b"torn")
    assert shoal.Run.open(run).policy().version > 0, "a killed run has a policy"
    done = shoal.resume(run, steps=int(before.name) + 3_000)
    assert done.report is not None and done.report.reason == "steps"
    assert f"{last.name}' is damaged: 'role-learner-0.safetensors'" in caplog.text
    curve(run)
    with pytest.raises(shoal.UsageError, match="is finished: it has reached its"):
        shoal.resume(run)


def test_sigterm_ends_with_143_and_a_checkpoint(tmp_path: Path) -> None:
    """Twice within a second (GNU ``timeout`` signals the process and its group), and to every process (systemd)."""
    run = tmp_path / "r"
    process = start(run)
    while not trained(run, 2)():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 4, "the processes of both roles, and the one that they are forked from"
    signalled = [*(each.send_signal for each in family), process.send_signal]
    for send in signalled * 2:
        with contextlib.suppress(psutil.NoSuchProcess):
            send(signal.SIGTERM)
    output, _ = process.communicate(timeout=25)
    assert process.returncode == 143 and f"to go on: shoal resume {shlex.quote(str(run))}" in output, output
    assert "shoal: " not in output and newest(run).steps > 0
    assert not psutil.wait_procs(family, timeout=60)[1], "orphans"


@pytest.mark.parametrize("checkpointed", [True, False])
def test_only_a_run_with_a_checkpoint_is_said_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], checkpointed: bool
) -> None:
    """The second Ctrl-C ends a run at once, which may be before its first checkpoint is whole."""
    run = shoal.train("dqn", run_dir=tmp_path / "r", steps=1_000, **{**SMALL, **SYSTEMS["dqn"]})
    assert run.report is not None
    run.report.reason = "interrupted"
    if not checkpointed:
        shutil.rmtree(run.path / checkpoint.FOLDER)
    capsys.readouterr()
    assert ended(run, quiet=False) == 130
    output = capsys.readouterr().out
    assert (f"to go on: shoal resume {shlex.quote(str(run.path))}" in output) == checkpointed
    assert ("no checkpoint was completed to go on from" in output) != checkpointed
    if not checkpointed:
        with pytest.raises(shoal.ShoalError, match="no checkpoint to resume from"):
            shoal.resume(run.path)


def test_a_replay_beyond_the_limit_is_left_out_and_filled_anew(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = {**SMALL, **SYSTEMS["dqn"], "checkpoint_replay_gb": 1e-6}
    shoal.train("dqn", run_dir=tmp_path / "r", steps=1_000, **settings)
    assert "checkpoints leave out the contents of 'transitions'" in capfd.readouterr().err
    assert not newest(tmp_path / "r").has(part("channel", "transitions"))
    second = shoal.resume(tmp_path / "r", steps=2_500)
    assert "does not hold the contents of 'transitions'" in capfd.readouterr().err
    assert second.report is not None and second.report.reason == "steps"


def test_nothing_to_resume_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(shoal.UsageError, match="no such run directory"):
        shoal.resume(tmp_path / "nowhere")
    with pytest.raises(shoal.UsageError, match="holds no run"):
        shoal.resume(tmp_path)
    assert not list(tmp_path.iterdir()), "nothing was written into a directory that is no run"


@pytest.mark.parametrize("acted", ["server", "actor"])
def test_a_run_goes_on_acting_where_it_did_whatever_auto_means_on_this_machine(
    acted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    small: dict[str, Any] = dict(env="CartPole-v1", actors=2, envs=2, unroll=5, device="cpu", hidden=(8,), quiet=True)
    shoal.train("impala", run_dir=run, runtime="serial", steps=200, inference=acted, **small)
    config = json.loads((run / "config.json").read_text())
    assert config["acting"] == acted
    config["config"]["inference"] = "auto"
    (run / "config.json").write_text(json.dumps(config))
    other = SystemConfig.acts_by_server
    auto = acted == "actor"  # the other one
    monkeypatch.setattr(SystemConfig, "acts_by_server", lambda c: auto if c.inference == "auto" else other(c))
    shoal.resume(run, steps=400, quiet=True)
    assert json.loads((run / "report.json").read_text())["steps"] >= 400
