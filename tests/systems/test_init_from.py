"""A run that begins with the parameters of another: every system takes them, whole, and nothing that does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import config, learning_role

import shoal
from shoal.api import UsageError
from shoal.learning.networks import networks_beside
from shoal.records.param_files import load_params
from shoal.run.initial import begin_with
from shoal.runtime.launch import Launch
from shoal.serial.instance import Instance
from shoal.systems import SYSTEMS, load

SMALL: dict[str, Any] = dict(
    preset="none", actors=1, envs=4, unroll=5, hidden=(8,), device="cpu", runtime="serial", checkpoint_every=0.0
)  # fmt: skip


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_learner_begins_with_them(system: str) -> None:
    env = "Pendulum-v1" if system in ("apex-dpg", "d4pg", "qt-opt") else "CartPole-v1"
    ranges: dict[str, dict[str, Any]] = {
        "d4pg": {"v_min": -100.0, "v_max": 100.0},
        "unreal": {"pixel_control": False},
    }  # which is for images
    fields = ranges.get(system, {})
    program = load(system).program(config(system, env=env, **fields))
    generator = torch.Generator().manual_seed(0)
    given = {
        name: torch.rand(field.shape, generator=generator).to(getattr(torch, field.dtype))
        for name, field in program.policy_channel().spec.items()
    }
    begin_with(program, given, "somewhere")
    roles = [r.role for r in Instance(program, Launch()).replicas if r.name == learning_role(system)]
    assert roles
    for role in roles:
        learner: Any = role.learner  # type: ignore[attr-defined]
        held = learner.params()
        for name, tensor in given.items():
            assert name.startswith("task/") or torch.equal(held[name], tensor), name
        algorithm = getattr(learner, "algorithm", None)
        for target in networks_beside(algorithm) if algorithm is not None else ():  # copied from what learns
            own = target.state_dict()
            assert all(torch.equal(own[k], given[k]) for k in own if k in given)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> shoal.Run:
    path = tmp_path_factory.mktemp("runs") / "first"
    return shoal.train("impala", env="CartPole-v1", normalise_obs=True, run_dir=path, steps=400, **SMALL)


def test_a_run_goes_on_from_another_with_other_settings_and_counts_of_its_own(first: shoal.Run, tmp_path: Path) -> None:
    _, before = load_params(first.path)
    first.policy().save(tmp_path / "policy.safetensors")
    for number, source in enumerate((first.path, tmp_path / "policy.safetensors")):
        run = shoal.train(
            "impala", env="CartPole-v1", normalise_obs=True,
            max_episode_steps=50, learning_rate=0.0, init_from=source, run_dir=tmp_path / str(number), steps=200,
            **SMALL,
        )  # fmt: skip
        _, after = load_params(run.path)
        weights = [name for name in before if before[name].dtype == torch.float32]
        assert weights and all(torch.equal(before[name], after[name]) for name in weights)
        (count,) = [name for name in before if name.endswith("count")]
        assert before[count] > 100 and after[count] > before[count]  # the normaliser goes on, too
        assert run.report is not None and run.report.steps < 400 and run.report.updates < 20
        assert json.loads((run.path / "config.json").read_text())["init_from"] == str(source)
    assert shoal.resume(run.path, steps=300).report is not None  # of what it began with nothing is read again


def test_a_new_range_of_returns_is_the_new_runs_and_what_is_lacking_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a critic that is in no channel nothing is known; one that is comes without its range."""
    small = dict(SMALL, env="Pendulum-v1", batch=8, min_replay=50, replay=500)
    for prioritised in (True, False):
        own = dict(small, prioritised=prioritised, samples_per_insert=1.0)
        one = shoal.train("d4pg", run_dir=tmp_path / f"a{prioritised}", steps=100, v_min=-9.0, v_max=0.0, **own)
        caplog.clear()
        two = shoal.train(
            "d4pg", run_dir=tmp_path / f"b{prioritised}", steps=100, v_min=-800.0, v_max=0.0, init_from=one.path, **own
        )
        lacking = [r.getMessage() for r in caplog.records if "init_from has no" in r.getMessage()]
        assert len(lacking) == (0 if prioritised else 1) and all("'critic." in line for line in lacking)
        if prioritised:
            assert load_params(two.path)[1]["returns.atoms"][0] == -800.0


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"hidden": (4,)}, r"is \[8, 4\] there and \[4, 4\] here"),
        ({"env": "Acrobot-v1"}, r"is \[8, 4\] there and \[8, 6\] here|is \[4\] there and \[6\] here"),
        ({"normalise_obs": False}, r"it has 'norms.*', which this network lacks \(see normalise_obs\)"),
        ({"core": "lstm"}, r"it has no 'core.*' \[.*\] \(see core, "),
    ],
)
def test_what_does_not_fit_is_refused_by_its_first_tensor(
    first: shoal.Run, tmp_path: Path, fields: dict[str, Any], says: str
) -> None:
    settings = {**SMALL, "env": "CartPole-v1", "normalise_obs": True, **fields}
    with pytest.raises(UsageError, match=f"init_from '.*' does not fit: .*{says}"):
        shoal.train("impala", init_from=first.path, run_dir=tmp_path / "r", steps=200, **settings)
    assert not (tmp_path / "r").exists()


def test_what_is_no_run_and_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("none")
    for source, says in (("nowhere", "there is no 'nowhere'"), (tmp_path / "text", "is no safetensors file")):
        with pytest.raises(UsageError, match=says):
            shoal.train("impala", env="CartPole-v1", init_from=source, run_dir=tmp_path / "r", steps=200, **SMALL)


@pytest.mark.parametrize("on", [True, False])
def test_the_scale_of_rewards_is_the_new_runs_own(tmp_path: Path, on: bool) -> None:
    """A preset may normalise rewards where another does not: only a learner needs their scale."""
    small: dict[str, Any] = dict(
        actors=1, envs=2, unroll=8, hidden=(8,), runtime="serial", env="CartPole-v1", minibatches=1
    )
    first = shoal.train("recurrent-ppo", run_dir=tmp_path / "a", steps=64, normalise_reward=on, **small)
    second = shoal.train(
        "recurrent-ppo", run_dir=tmp_path / "b", steps=16, normalise_reward=not on, learning_rate=0.0,
        init_from=first.path, **small,
    )  # fmt: skip
    before, after = (load_params(run.path)[1] for run in (first, second))
    common = [name for name in before if name in after]
    assert common and all(torch.equal(before[name], after[name]) for name in common)
    assert any(name.startswith("rewards.") for name in {**before, **after})
