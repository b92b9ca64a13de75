"""Settings that change when a run is resumed: which may, which are refused, and where the change is told."""

from __future__ import annotations

import functools
import json
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal import systems
from shoal.analysis.directories import groups
from shoal.api import UsageError
from shoal.cli.main import main
from shoal.run.changes import MOST_RESUMED, check, evaluation, note, told, wanted
from shoal.run.evaluation import Evaluation
from shoal.settings.config import default_values
from shoal.settings.flags import parse_flags, split

SMALL: dict[str, Any] = dict(
    env="CartPole-v1", preset="none", actors=1, envs=4, unroll=5, hidden=(8,), device="cpu", checkpoint_every=0.0
)  # fmt: skip


@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_a_setting_changes_from_its_step_on(tmp_path: Path, runtime: str) -> None:
    path, rates = tmp_path / "r", []
    first = shoal.train("impala", run_dir=path, runtime=runtime, steps=1_000, learning_rate=1e-3, **SMALL)
    before = first.report.steps if first.report is not None else 0
    again = shoal.resume(
        path, steps=3_000, learning_rate=1e-4, entropy_cost=first.config["entropy_cost"],
        observers=[lambda m: rates.append(m["learning_rate"]) if "learning_rate" in m else None],
    )  # fmt: skip
    assert again.report is not None and again.report.steps >= 3_000
    # what counts is the new rate, not the one in the optimiser's state
    assert rates and rates == [pytest.approx(1e-4)] * len(rates)
    facts = json.loads((path / "config.json").read_text())
    expected = {"learning_rate": [1e-3, 1e-4], "steps": [1_000, 3_000]}
    assert facts["changes"] == [{"steps": before, "settings": expected}] == again.changes
    assert facts["config"]["learning_rate"] == 1e-4 and facts["origins"]["learning_rate"] == "resume"
    shoal.resume(path, steps=3_500)
    opened = shoal.Run.open(path)
    assert json.loads((path / "config.json").read_text())["resumed"] == [before, again.report.steps]
    assert [c["settings"].keys() for c in opened.changes] == [expected.keys(), {"steps"}]
    assert told(opened.changes)[0] == f"learning_rate 0.001 -> 0.0001, steps 1000 -> 3000 at {before:,} steps"


def test_what_was_noted_behind_a_checkpoint_counts_from_there() -> None:
    facts: dict[str, Any] = {
        "config": {"env": "e", "gamma": 0.9}, "origins": {"gamma": "flag"}, "resumed": [50, 100, 170],
        "changes": [{"steps": s, "settings": {"gamma": [s, s + 1]}} for s in (50, 170)],
    }  # fmt: skip
    note(facts, {"env": "e", "gamma": 0.9}, {"gamma": 0.5}, 100)
    assert [change["steps"] for change in facts["changes"]] == [50, 100, 100]
    assert facts["changes"][-1]["settings"] == {"gamma": [0.9, 0.5]}
    assert facts["resumed"] == [50, 100] and facts["origins"] == {"gamma": "resume"}
    assert facts["config"] == {"env": "e", "gamma": 0.5}
    facts["resumed"] = list(range(MOST_RESUMED + 5))
    note(facts, {"env": "e", "gamma": 0.5}, {}, 5_000)
    assert facts["resumed"] == [*range(6, MOST_RESUMED + 5), 5_000], "the last ones"


@pytest.mark.parametrize("was, now, ends", [(0, 0, False), (0, 5, True), (5, 0, True), (5, 7, False)])
def test_evaluations_neither_begin_nor_end_with_a_run_that_goes_on(was: int, now: int, ends: bool) -> None:
    before: dict[str, Any] = {"every": was, "episodes": 3, "sampled": False}
    facts = {"evaluation": before, "runtime": "local"}
    if ends:
        with pytest.raises(UsageError, match="'evaluation' cannot begin or end when a run goes on"):
            evaluation(facts, {"every": now}, flags=False)
        return
    found = evaluation(facts, {"every": now}, flags=False)
    assert found == ({} if was == now else {"evaluation": Evaluation(**before | {"every": now})})
    if was != now:
        with pytest.raises(UsageError, match="--eval-every cannot change when a run goes on"):
            evaluation({**facts, "runtime": "serial"}, {"every": now}, flags=True)


@pytest.mark.parametrize("name", ["envs", "unroll"])
def test_a_serial_run_keeps_its_rollouts(name: str, tmp_path: Path) -> None:
    """Where no message has their shape."""
    system = systems.load("a3c")
    values = {**default_values(system.Config), **{k: v for k, v in SMALL.items() if hasattr(system.Config, k)}}
    check(system, values, {name: 8}, "local", tmp_path, flags=True)
    with pytest.raises(UsageError, match=f"--{name} cannot change when a run goes on, the serial runtime plays"):
        check(system, values, {name: 8}, "serial", tmp_path, flags=True)


def test_an_entry_changes_in_what_the_run_had() -> None:
    system = systems.load("impala")
    had = {**default_values(system.Config), "env_kwargs": {"goal": 1, "mass": 1}}
    flags = parse_flags(system.Config, split(["--env-kwargs.mass", "2"]), "impala")
    assert wanted(system, "impala", had, flags, flags=True) == {"env_kwargs": {"goal": 1, "mass": 2}}
    had = {**had, "env_kwargs": {"goal": {"x": 1, "y": 2}, "mass": 1}}
    for words, goal in ((["--env-kwargs.goal.x", "3"], {"x": 3, "y": 2}), (["--env-kwargs.goal", "{x: 3}"], {"x": 3})):
        flags = parse_flags(system.Config, split(words), "impala")
        assert wanted(system, "impala", had, flags, flags=True) == {"env_kwargs": {"goal": goal, "mass": 1}}
    given = {"env_kwargs": {"mass": 2}}
    assert wanted(system, "impala", had, given, flags=False) == given


def test_options_of_the_run_that_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Any] = []
    wandb: Any = types.ModuleType("wandb")
    kept = types.SimpleNamespace(id="one", log=lambda row, step: rows.append(step), finish=lambda: None)
    wandb.init = lambda **how: kept
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    path = tmp_path / "r"
    how: dict[str, Any] = dict(evaluation=shoal.Evaluation(every=400, episodes=1), **SMALL)
    shoal.train("impala", run_dir=path, runtime="local", steps=500, **how)
    words = (
        "--hang-timeout 300 --checkpoint-every 50 --checkpoint-replay-gb 2 --log wandb --eval-every 300 --eval-sampled"
    )
    assert main(["resume", str(path), "--steps", "1000", "--quiet", *words.split()]) == 0
    facts = json.loads((path / "config.json").read_text())
    assert facts["hang_timeout"] == 300.0 and facts["checkpoint"] == {"every": 50.0, "replay_gb": 2.0}
    assert facts["log"] == ["wandb"] and rows
    assert facts["evaluation"] == {"every": 300, "episodes": 1, "sampled": True, "video": False, "max_steps": 0}
    assert main(["resume", str(path), "--steps", "1200", "--quiet", "--no-eval-sampled", "--log", "none"]) == 0
    facts = json.loads((path / "config.json").read_text())
    assert (facts["evaluation"]["sampled"], facts["log"]) == (False, [])
    shoal.resume(path, steps=1_500, hang_timeout=200, log="wandb", evaluation=shoal.Evaluation(every=300, episodes=2))
    facts = json.loads((path / "config.json").read_text())
    assert (facts["hang_timeout"], facts["log"], facts["checkpoint"]["every"]) == (200.0, ["wandb"], 50.0)
    assert facts["evaluation"]["episodes"] == 2 and [*facts["changes"][-1]["settings"]] == ["steps"]
    with pytest.raises(shoal.ShoalError, match="'evaluation' cannot begin or end when a run goes on: its program has"):
        shoal.resume(path, steps=2_000, evaluation=shoal.Evaluation())


MORE: dict[str, dict[str, Any]] = {
    "impala": {}, "rainbow": dict(batch=8, min_replay=50, replay=500, streams=8, atoms=5),
    "recurrent-ppo": dict(minibatches=1), "a3c": {}, "dd-ppo": dict(minibatches=1, sync_frac=2.0),
    "d4pg": dict(
        env="Pendulum-v1", batch=8, min_replay=50, replay=500, v_min=-100.0, v_max=0.0, samples_per_insert=1.0
    ),
    "gorila": dict(batch=8, min_replay=50, replay=500, outliers=0.0, learners=1), "r2d2": dict(
        batch=4, min_replay=5, replay=60, core_size=4, sequence=8, overlap=4, burn_in=4, dueling=False
    ),
    "unreal": dict(env="toy:catch", hidden=(), core_size=8, replay=100, torso="mlp"),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run of a system, which is trained when it is first asked for."""
    root = tmp_path_factory.mktemp("runs")

    @functools.cache
    def run(system: str) -> Path:
        shoal.train(system, run_dir=root / system, runtime="serial", steps=300, **{**SMALL, **MORE[system]})
        return root / system

    return run


@pytest.mark.parametrize(
    "system, words, says",
    [
        ("impala", "--total-envs 8 --envs 16", "--envs cannot change when a run goes on, it follows from other"),
        ("impala", "--hidden 4", "--hidden cannot change when a run goes on, it changes what was saved (channels/"),
        ("impala", "--learning-rate 1e-5 --unroll 7", "--unroll cannot change when a run goes on, it changes"),
        ("impala", "--actors 2", "(roles/actor: saved 1, now 2)"),
        ("impala", "--optimiser rmsprop", "--optimiser cannot change when a run goes on, what was saved is of"),
        ("impala", "--replay 64", "--replay cannot change"),
        ("impala", "--env Acrobot-v1", "--env cannot change when a run goes on, another environment is another run"),
        ("impala", "--reward-scale 2", "the serial runtime plays its environments again"),
        (
            "impala",
            "--seed 3",
            "--seed is an option of the run, and stays as it was when the run goes on; --hang-",
        ),
        ("impala", "--run_dir x", "--run-dir is an option of the run"),
        ("impala", "--init-from x", "--init-from is an option of the run"),
        ("impala", "--preset none", "--preset is an option of the run"),
        ("impala", "--hang-timeout -1", "--hang-timeout expects a finite number of at least 0, found -1"),
        ("impala", "--log tensorbord", "did you mean 'tensorboard'?"),
        ("impala", "--eval-every 100", "--eval-every cannot begin or end when a run goes on: its program has an"),
        ("impala", "--checkpoint-evry 3", "of shoal resume impala; did you mean '--checkpoint-every'?"),
        ("impala", "--learning-rat 1", "unknown flag '--learning-rat' of shoal resume impala; did you mean '--learni"),
        ("impala", "--learning-rate fast", "--learning-rate expects"),
        ("impala", "--learning-rate -1", "--learning-rate expects a finite number of at least 0"),
        ("a3c", "--unroll 7", "--unroll cannot change when a run goes on, the serial runtime plays its environments"),
        ("a3c", "--envs 2", "--envs cannot change when a run goes on, the serial runtime plays its environments"),
        ("dd-ppo", "--unroll 7", "--unroll cannot change when a run goes on"),
        ("unreal", "--envs 2", "--envs cannot change when a run goes on, the serial runtime plays its environments"),
        ("unreal", "--replay 200", "--replay cannot change when a run goes on, what was saved is of the one it had"),
        ("d4pg", "--critic mixture", "--critic cannot change when a run goes on, what was saved is of the one it had"),
        ("d4pg", "--v-min -500", "--v-min cannot change when a run goes on"),
        ("d4pg", "--late-action true", "--late-action cannot change when a run goes on"),
        ("r2d2", "--rescale none", "--rescale cannot change when a run goes on"),
        ("rainbow", "--returns quantile", "--returns cannot change when a run goes on"),
        ("rainbow", "--v-max 20", "--v-max cannot change when a run goes on, what was saved is of the one it had"),
        ("rainbow", "--n-step 5", "(replays/transitions/n_step: saved"),
        ("rainbow", "--replay 600", "(replays/transitions/capacity: saved 500, now 600): begin another run"),
    ],
)
def test_what_changes_shapes_is_refused(
    runs: Callable[[str], Path], capsys: pytest.CaptureFixture[str], system: str, words: str, says: str
) -> None:
    path = runs(system)
    before = (path / "config.json").read_text()
    capsys.readouterr()
    assert main(["resume", str(path), "--steps", "500", *words.split()]) == 2
    told = capsys.readouterr().err
    assert says in told and told.count("\n") == 1
    assert (path / "config.json").read_text() == before


@pytest.mark.parametrize(
    "given, says",
    [
        (
            {"seed": 3},
            "'seed' is an option of the run, and stays as it was when the run goes on; 'hang_timeout', ",
        ),
        ({"preset": "none"}, "'preset' is an option of the run"),
        ({"hang_timeout": "long"}, "'hang_timeout' expects a finite number of at least 0, found 'long'"),
        ({"evaluation": 100}, "'evaluation' expects shoal.Evaluation(every=N), found 100"),
        ({"log": 5}, "'log' expects words, found 5"),
        ({"observers": 5}, "'observers' expects functions, found 5"),
    ],
)
def test_what_stays_or_is_wrong_in_python(runs: Callable[[str], Path], given: dict[str, Any], says: str) -> None:
    with pytest.raises(shoal.ShoalError) as error:
        shoal.resume(runs("impala"), steps=500, **given)
    assert says in str(error.value)


def test_a_setting_that_fails_only_when_the_state_is_loaded_is_not_kept(
    runs: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r"
    shutil.copytree(runs("d4pg"), path)
    before = (path / "config.json").read_text()
    with monkeypatch.context() as patch:
        patch.setattr("shoal.run.changes.check", lambda *_: None)  # as if nobody had known
        with pytest.raises(shoal.ShoalError, match="does not fit"):
            shoal.resume(path, steps=500, critic="mixture")
    assert (path / "config.json").read_text() == before
    again = shoal.resume(path, steps=500)
    assert again.report is not None and again.report.steps >= 500


@pytest.mark.parametrize(
    "system, words",
    [
        ("gorila", "--outliers 4 --learning-rate 1e-5"),
        ("rainbow", "--learning-rate 1e-5 --gamma 0.9 --target-period 50 --priority-exponent 0.3 --max-grad-norm none"),
        ("recurrent-ppo", "--clip 0.1 --epochs 1 --minibatches 2 --entropy-cost 0.02 --learning-rate linear(1e-3,0)"),
    ],
)
def test_what_changes_none_is_taken_and_told_of(
    runs: Callable[[str], Path], capsys: pytest.CaptureFixture[str], system: str, words: str
) -> None:
    path = str(runs(system))
    capsys.readouterr()
    assert main(["resume", path, "--steps", "600", *words.split(), "--quiet"]) == 0
    assert main(["eval", path, "--episodes", "1"]) == 0
    line, *_ = capsys.readouterr().out.splitlines()
    assert line.startswith("trained with ") and "steps 300 -> 600 at 3" in line
    assert len(line.split(" -> ")) == 2 + words.count("--")
    (group,) = groups([path])
    assert " -> " in group.label and "steps)" in group.label


@pytest.mark.parametrize("system", ["impala", "dqn"])
def test_who_chooses_actions_may_change(system: str, tmp_path: Path) -> None:
    """Nothing of a run lies in the inference server, or between it and the actors."""
    path = tmp_path / "r"
    more: dict[str, Any] = {} if system == "impala" else dict(batch=8, min_replay=20, replay=400)
    shoal.train(system, run_dir=path, steps=200, inference="server", **SMALL, **more)
    replicas = []
    changes: dict[int, dict[str, Any]] = {
        400: dict(inference="actor"),
        600: dict(inference="server", double_buffer="on"),
        800: dict(double_buffer="off"),
    }
    for steps, new in changes.items():
        again = shoal.resume(path, steps=steps, **new)
        assert again.report is not None and again.report.steps >= steps and not again.report.restarts
        roles = json.loads((path / "program.json").read_text())["roles"]
        replicas.append("inference" in {role["name"] for role in roles})
    assert replicas == [False, True, True]


def test_who_chooses_actions_stays_in_a_run_that_repeats(tmp_path: Path) -> None:
    path = tmp_path / "r"
    shoal.train("impala", run_dir=path, runtime="serial", steps=1_000, inference="server", **SMALL)
    with pytest.raises(UsageError, match=r"'inference' cannot change when a run goes on, .*roles/inference: saved 1"):
        shoal.resume(path, steps=2_000, inference="actor")
