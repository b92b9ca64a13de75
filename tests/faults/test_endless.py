"""Episodes that never end: every evaluation has a bound and says what did not end; a signal is heard meanwhile."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from present import present

import shoal
from shoal import systems
from shoal.api import Context
from shoal.cli.main import main
from shoal.demonstrations.recording import play as demonstrate
from shoal.envs import EnvOptions, make
from shoal.metering.recorder import Recorder
from shoal.policy.policy import episode_limit, play
from shoal.program import Program
from shoal.roles.evaluator import MAX_STEPS
from shoal.runtime.launch import Launch, Stop
from shoal.serial.runtime import SerialRuntime
from shoal.settings.config import resolve
from shoal.systems import dqn, es

HERE = Path(__file__).with_name("endless_env.py")
SOME, NONE = f"{HERE}:some", f"{HERE}:none"
SMALL: dict[str, Any] = dict(actors=1, envs=2, unroll=4, hidden=(8,), steps=64, min_replay=16, replay=64, batch=8)


def config(env: str, **more: Any) -> Any:
    return dqn.Config(env=env, **(SMALL | more))


@pytest.mark.parametrize("envs", [1, 2, 5, 8])
def test_episodes_without_an_end_count_as_they_are(envs: int) -> None:
    returns = play(dqn.agent(config(NONE)), config(NONE), 5, 0, True, envs, max_steps=50)
    assert list(returns) == [25.0] * 5 and (returns.unfinished, returns.asked) == (5, 5)
    assert returns.why == "5 of 5 episodes did not end within 50 steps: their returns so far count"


@pytest.mark.parametrize("envs", [1, 2, 3, 8])
def test_episodes_that_end_and_that_do_not_are_all_played(envs: int) -> None:
    """An environment whose episode has no end goes on with the next when all begin anew."""
    returns = play(dqn.agent(config(SOME)), config(SOME), 8, 0, True, envs, max_steps=30)
    assert len(returns) == 8 and set(returns) == {3.5, 15.0}
    assert returns.unfinished == returns.count(15.0)
    assert returns.why.startswith(f"{returns.unfinished} of 8 episodes did not end within 30 steps")


def test_an_episode_that_ends_after_its_bound_counts_once() -> None:
    """Those of 12 steps end while others still play their 7."""
    cfg = config(f"{HERE}:late")
    returns = play(dqn.agent(cfg), cfg, 40, 0, True, 4, max_steps=10)
    assert len(returns) == 40 and set(returns) == {3.5, 5.0} and returns.unfinished == returns.count(5.0)


def test_an_episode_that_ends_with_its_last_step_has_ended() -> None:
    returns = play(dqn.agent(config(SOME)), config(SOME), 1, 0, True, 1, max_steps=7)  # the first has the seed 1
    assert (list(returns), returns.unfinished, returns.why) == ([3.5], 0, "")


def test_an_evaluation_that_has_no_time_left_counts_what_it_has() -> None:
    cfg = config(NONE)
    returns = play(dqn.agent(cfg), cfg, 5, 0, True, 2, seconds=0.0)
    assert (list(returns), returns.unfinished) == ([0.5, 0.5], 5)
    assert "5 of 5 episodes did not end within 0 s, and 3 of them did not begin" in returns.why


def test_a_limit_of_the_run_that_is_longer_counts() -> None:
    longer = EnvOptions(max_episode_steps=50_000)
    assert [episode_limit(NONE, options) for options in (EnvOptions(), longer)] == [MAX_STEPS, 50_000]
    assert episode_limit(NONE, longer, 10) == 10
    assert episode_limit("ALE/Pong-v5", EnvOptions(frame_skip=1)) == 108_000


@pytest.mark.parametrize("options", [{}, {"last_action_reward": True}, {"reward_scale": 3.0}])
@pytest.mark.parametrize("env", [NONE, "CartPole-v1", "toy:catch"])
def test_a_batch_tells_the_raw_return_of_what_goes_on(env: str, options: dict[str, Any]) -> None:
    batch = make(env, 3, EnvOptions(**options))
    batch.reset(0)
    total, length = np.zeros(3), np.zeros(3)
    for _ in range(12):
        step = batch.step(np.zeros(3, np.int64))
        total += step.reward / options.get("reward_scale", 1.0)
        length += step.valid
        ended = step.terminated | step.truncated
        total[ended] = length[ended] = 0.0
        so_far = batch.so_far()
        assert [e.ret for e in so_far] == pytest.approx(total.tolist(), abs=1e-5)
        assert [e.length for e in so_far] == length.tolist()
    batch.close()


@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_a_run_ends_and_its_files_tell_what_did_not(runtime: str, tmp_path: Path, capsys: Any) -> None:
    how = shoal.Evaluation(every=32, episodes=3, max_steps=40)
    run = shoal.train(
        "dqn", runtime=runtime, run_dir=tmp_path / "run", evaluation=how, env=NONE, quiet=False, preset="none", **SMALL
    )
    with open(tmp_path / "run" / "evaluations.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert run.report is not None and int(rows[-1]["steps"]) == run.report.steps
    assert {(row["episodes"], row["mean"], row["unfinished"]) for row in rows} == {("3", "20", "3")}
    facts = json.loads((tmp_path / "run" / "report.json").read_text())
    last = {"steps": run.report.steps, "episodes": 3, "mean": 20.0, "std": 0.0, "min": 20.0, "max": 20.0}
    assert (
        facts["evaluation"] == {**last, "unfinished": 3} == present(shoal.Run.open(tmp_path / "run").report).evaluation
    )
    summary = (tmp_path / "run" / "summary.md").read_text()
    assert f"| {run.report.steps:,} | 3 (3 did not end) | 20 [20, 20] |" in summary
    told = capsys.readouterr().err
    assert "3 of 3 episodes did not end within 40 steps" in told or runtime == "serial"  # there the role says it
    assert main(["eval", str(tmp_path / "run"), "--episodes", "2", "--eval-max-steps", "9", "--trust"]) == 0
    out = capsys.readouterr().out
    assert "returns: 4.5 4.5\n" in out and "2 of 2 episodes did not end within 9 steps" in out
    again = run.policy().evaluate(2, max_steps=9)
    assert (list(again), again.unfinished) == ([4.5, 4.5], 2)


def test_the_episodes_that_score_a_member_of_a_population_have_a_bound(tmp_path: Path, capsys: Any) -> None:
    few = (
        "--of dqn --preset none --actors 1 --envs 2 --unroll 4 --hidden 8 --steps 64 "
        "--min-replay 16 --replay 64 --batch 8 --interval 32 --population 2 --slots 1 --mutate learning_rate"
    )
    words = ["train", "pbt", "--env", NONE, *few.split()]
    assert main([*words, "--eval-max-steps", "40"]) == 2
    assert capsys.readouterr().err == (
        "shoal: --eval-max-steps expects --eval-episodes N beside it: without, no episode is evaluated\n"
    )
    path = tmp_path / "population"
    how = ("--eval-episodes", "3", "--eval-max-steps", "40", "--run-dir", str(path))
    assert main([*words, *how]) == 0
    told = capsys.readouterr().out
    assert told.count("3 of 3 episodes did not end within 40 steps") == 4 and "score 20," in told, "two slices of two"
    assert main(["resume", str(path), "--steps", "96"]) == 0
    assert "3 of 3 episodes did not end within 40 steps" in capsys.readouterr().out


def test_the_evaluation_of_the_unperturbed_policy_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(es, "MAX_STEPS", 60)
    told: list[dict[str, float]] = []
    shoal.train(
        "es", runtime="serial", run_dir=tmp_path / "run", env=NONE, preset="none", steps=200, actors=1, envs=2, pairs=2,
        hidden=(4,), cap=2.0, cap_start=5, max_episode_steps=None, evaluate_every=1, noise_table=1_000,
        observers=lambda row: told.append(dict(row)), seed=1,
    )  # fmt: skip
    assert told and told[-1]["unperturbed_return"] == 30.0


def small_es(env: str) -> Program:
    values = dict(env=env, steps=10_000, actors=1, envs=2, pairs=2, hidden=(4,), cap=0.0, noise_table=1_000,
                  evaluate_every=0)  # fmt: skip
    return es.program(resolve(systems.load("es"), "none", None, values).cfg)


def test_a_signal_is_heard_in_a_generation_that_never_ends() -> None:
    """Nothing of the block that is left in the middle is sent or counted, as it is played again."""
    asked = iter(range(10**9))
    program = small_es(NONE)
    made: list[Any] = []

    def worker(ctx: Context, **ports: Any) -> Any:
        ctx.interrupted = lambda: next(asked) > 20
        made.append(make_worker(ctx, **ports))
        return made[-1]

    (role,) = [role for role in program.roles if role.name == "worker"]
    make_worker = role.make
    object.__setattr__(role, "make", worker)
    SerialRuntime().launch(program, Launch(stop=Stop(steps=1, seconds=1e-9)))
    (only,) = made
    assert only.unfinished and only.done == 0 and only.state_dict()["unfinished"]
    assert isinstance(only.ctx.metrics, Recorder) and only.ctx.metrics.totals.get("env_steps", 0) == 0


def test_a_demonstration_without_an_end_is_cut_off() -> None:
    options = EnvOptions()
    episodes = list(demonstrate(NONE, options, lambda obs, reward, env: np.int64(0), 2, 0, max_steps=20))
    assert [(len(e.rewards), e.terminated, e.truncated) for e in episodes] == [(20, False, True)] * 2
