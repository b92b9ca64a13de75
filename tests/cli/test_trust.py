"""A run directory from somebody else runs no code unasked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.api import UsageError
from shoal.run import trust

from .conftest import Shoal

ENV = """
from pathlib import Path
import gymnasium as gym
import numpy as np
Path(__file__).with_name("imported").touch()
class Mine(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        return np.zeros(2, np.float32), 1.0, True, False, {}
"""
SMALL: dict[str, Any] = dict(runtime="serial", steps=60, preset="none", actors=1, envs=2, hidden=(4,), unroll=5)


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that somebody has trained in an environment of theirs; this user has never trained anything."""
    (tmp_path / "mine.py").write_text(ENV)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "theirs"))
    run = shoal.train("impala", env=f"{tmp_path}/mine.py:Mine", run_dir=tmp_path / "r", **SMALL)
    run.policy().save(tmp_path / "saved.safetensors")
    shoal.Run.open(run.path).policy()  # whoever has trained it may open it
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "ours"))
    monkeypatch.delitem(__import__("sys").modules, "_shoal_env_mine")
    (tmp_path / "imported").unlink()
    return run.path


def test_nothing_is_imported_unasked(stranger: Path, shoal_: Shoal) -> None:
    imported, name = stranger.parent / "imported", f"'{stranger.parent}/mine.py:Mine'"
    more = {"export": ("--to", "safetensors"), "record": ("--out", "own/set-v0")}
    for command in ("eval", "resume", "profile", "export", "record"):
        code, _, told = shoal_(command, str(stranger), *more.get(command, ()))
        assert code == 2 and name in told and "--trust" in told and told.count("\n") == 1, told
    with pytest.raises(UsageError, match="trust=True"):
        shoal.Run.open(stranger).policy()
    with pytest.raises(UsageError, match="trust=True"):
        shoal.load(stranger.parent / "saved.safetensors")
    for command in ("train impala", "train pbt --of impala --mutate learning_rate", "draw impala", "config impala",
                    "profile impala", "train impala --help"):  # fmt: skip
        code, _, told = shoal_(*command.split(), "--config", str(stranger))
        assert code == 2 and name in told and "--trust" in told and told.count("\n") == 1, told
        assert not imported.exists(), command
    facts = json.loads((stranger / "config.json").read_text())
    facts["config"] |= {"env": "CartPole-v1", "env_kwargs": {"inner": name.strip("'"), "size": 1}}
    (stranger.parent / "inner").mkdir()
    (stranger.parent / "inner" / "config.json").write_text(json.dumps(facts))
    size = ("--env-kwargs.size", "2")  # leaves the other entries as they are
    code, _, told = shoal_("draw", "impala", "--config", str(stranger.parent / "inner"), *size)
    assert code == 2 and name in told and "--trust" in told
    with pytest.raises(UsageError, match="trust=True"):
        shoal.train("impala", config=stranger)
    assert not imported.exists()
    mine = ("--env", "CartPole-v1", "--runtime", "serial", "--steps", "60", "--quiet")  # its code is not asked for
    assert shoal_("train", "impala", "--config", str(stranger), *mine, "--run-dir", "one")[0] == 0
    assert not imported.exists()
    assert shoal_("eval", str(stranger), "--episodes", "2", "--trust")[0] == 0
    assert imported.exists()
    assert shoal_("eval", str(stranger), "--episodes", "2")[0] == 2, "once is not for ever"
    assert shoal_("draw", "impala", "--config", str(stranger), "--trust")[0] == 0
    assert shoal.load(stranger.parent / "saved.safetensors", trust=True).act([0.0, 0.0]) in (0, 1)


@pytest.mark.parametrize(
    "field, value",
    [("env", "os:system"), ("torso", "os:system"), ("demonstrations", "os:getcwd"), ("sampler", "os:system")],
)
def test_every_field_that_may_name_a_module_is_looked_at(field: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"'{value}'; if you trust it"):
        trust.check(Path("theirs"), "r2d3", {"env": "CartPole-v1", "torso": "mlp", field: value}, trust=False)
    trust.check(Path("theirs"), "r2d3", {"env": "CartPole-v1", "torso": "mlp", field: value}, trust=True)


def test_what_one_has_trained_with_is_known_by_name_and_file(
    stranger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shoal.train("impala", env="mine.py:Mine", run_dir=tmp_path / "own", **SMALL)
    shoal.Run.open(stranger).policy()
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.py").write_text(ENV)
    facts = json.loads((stranger / "config.json").read_text())
    facts["config"]["env"] = f"{other}/mine.py:Mine"
    (stranger / "config.json").write_text(json.dumps(facts))
    with pytest.raises(UsageError, match="other/mine"):
        shoal.Run.open(stranger).policy()
    assert not (other / "imported").exists()


@pytest.mark.parametrize(
    "changed",
    [
        {"system": "os"}, {"system": "http.server"}, {"config": {"env": "os:system"}},
        {"config": {"env_kwargs": {"env_id": "os:system"}}},
    ],
)  # fmt: skip
def test_names_that_run_something(tmp_path: Path, changed: dict[str, Any], finished: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "r"))
    shoal.Run.open(run).policy()  # nothing but Shoal's own, and registered
    facts = json.loads((run / "config.json").read_text())
    changed = {**facts, **changed, "config": {**facts["config"], **changed.get("config", {})}}
    (run / "config.json").write_text(json.dumps(changed))
    for use in (lambda: shoal.Run.open(run).policy(), lambda: shoal.resume(run, steps=90)):
        with pytest.raises(UsageError, match="neither Shoal's nor registered"):
            use()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "r"
    return shoal.train("impala", env="CartPole-v1", run_dir=path, **SMALL).path


@pytest.fixture
def shoal_(request: pytest.FixtureRequest) -> Shoal:
    """The command line of conftest.py, beside the module of the same name."""
    command: Shoal = request.getfixturevalue("shoal")
    return command
