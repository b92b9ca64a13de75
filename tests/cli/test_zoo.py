"""The zoo: every policy that ships is what its manifest says, and ``zoo:NAME`` stands where a saved policy may."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import shlex
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from modules import module_of

import shoal as package
from shoal import zoo
from shoal.api import ShoalError, UsageError
from shoal.cli import record
from shoal.policy.policy import Policy
from shoal.records.param_files import load_params
from shoal.settings.schedule import plain
from shoal.systems import SYSTEMS, load

from .conftest import Shoal

ROOT = Path(__file__).parents[2]
NAME = "recurrent-ppo-cartpole"
SOURCE = f"zoo:{NAME}"
EPISODES = 3  # played again of each entry


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("zoo_script", ROOT / "scripts" / "zoo.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -------------------------------------------------------------------------------------- every entry
@pytest.mark.parametrize("name", zoo.names())
def test_a_policy_of_the_zoo_is_what_its_manifest_says(name: str) -> None:
    entry = zoo.entry(name)
    data = entry.file.read_bytes()
    assert hashlib.sha256(data).hexdigest() == entry.sha256 and len(data) < 1_000_000
    words = shlex.split(entry.command)
    assert words[:3] == ["shoal", "train", entry.system] and words[words.index("--env") + 1] == entry.env
    assert words[words.index("--seed") + 1] == str(entry.seed)
    policy = package.load(entry.source)
    assert policy.cfg.system() == entry.system and policy.cfg.env == entry.env
    held = {field: getattr(policy.cfg, field) for field in entry.settings}
    assert json.loads(json.dumps(plain(held))) == entry.settings and entry.settings["env"] == entry.env
    assert str(ROOT).encode() not in data and b"/tmp" not in data and b"/home" not in data


@pytest.mark.parametrize("name", zoo.names())
def test_a_policy_of_the_zoo_scores_what_its_manifest_says(name: str) -> None:
    """A few of the episodes that were scored: their mean is within four standard errors of the difference."""
    entry = zoo.entry(name)
    returns = package.evaluate(entry.source, episodes=EPISODES, envs=EPISODES, seed=entry.score.seed)
    error = entry.score.std * math.sqrt(1 / EPISODES + 1 / entry.score.episodes)
    assert abs(np.mean(returns) - entry.score.mean) <= 4 * error + 1e-6 * abs(entry.score.mean)


def test_the_zoo_has_a_manifest_for_every_file_and_a_file_for_every_manifest() -> None:
    found = {path.name for path in zoo.FOLDER.iterdir()}
    assert found == {f"{name}.{end}" for name in zoo.names() for end in ("json", "safetensors")} and len(found) >= 4


def test_every_system_has_a_policy_in_the_zoo() -> None:
    assert {zoo.entry(name).system for name in zoo.names()} == set(SYSTEMS)


def test_what_a_training_reads_is_made_by_the_command_before_it() -> None:
    for one in zoo.entries():
        given = shlex.split(one.command)
        assert ("--demonstrations" in given) == bool(one.before)
        if one.before:
            words, read = shlex.split(one.before), given[given.index("--demonstrations") + 1]
            assert words[:2] == ["shoal", "record"] and words[words.index("--out") + 1] == read
            assert zoo.located(words[2]).exists()
            assert one.commands.splitlines() == [one.before, one.command]


def test_a_manifest_reads_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = zoo.entry(NAME)
    monkeypatch.setattr(zoo, "FOLDER", tmp_path)
    (tmp_path / f"{NAME}.json").write_text(zoo.manifest(entry))
    assert zoo.entry(NAME) == entry == zoo.entry(SOURCE)
    for damaged in ("{", "[]", "{}", json.dumps({**vars(entry), "score": None}, default=vars)):
        (tmp_path / f"{NAME}.json").write_text(damaged)
        with pytest.raises(ShoalError, match=f"{NAME}.json' is damaged: .*; install Shoal again"):
            zoo.entries()


def test_the_page_of_the_zoo_is_made_from_its_manifests(script: Any) -> None:
    assert script.PAGE.read_text(encoding="utf-8") == script.page(), "run: python scripts/zoo.py page"


@pytest.mark.parametrize(
    "system, fields",
    [
        ("r2d3", dict(env="CartPole-v1", demo_ratio=0.25)),
        ("qt-opt", dict(env="Pendulum-v1", online_share=0.5)),
        ("r2d3", dict(env="toy:catch", torso="mlp", demo_ratio=1.0)),
    ],
)
def test_a_saved_policy_does_not_say_where_its_demonstrations_were(
    system: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    module = module_of(system)
    cfg = module.Config(device="cpu", demonstrations=str(tmp_path), **fields)
    saved = Policy(load(system), cfg, {name: t.detach() for name, t in module.network(cfg).named_parameters()})
    saved.save(tmp_path / "own")
    assert str(tmp_path).encode() not in (tmp_path / "own").read_bytes()
    again = package.load(tmp_path / "own")
    assert again.cfg.demonstrations == "" and saved.cfg.demonstrations == str(tmp_path)
    assert all(getattr(again.cfg, name) == value for name, value in fields.items())


# ------------------------------------------------------------------------------------ the script
def test_the_script_trains_scores_and_writes_an_entry(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zoo, "FOLDER", tmp_path)
    monkeypatch.setattr(script, "EPISODES", 4)
    words = "dqn --env CartPole-v1 --preset none --steps 300 --min-replay 100 --runtime serial --seed 5 --device cpu"
    assert not script.make("poor", words.split(), least=1_000.0) and not list(tmp_path.iterdir())
    assert script.make("poor", words.split(), least=0.0)
    entry = zoo.entry("poor")
    assert entry.command == f"shoal train {words}" and entry.seed == 5 and entry.steps >= 300
    assert entry.parameters == "last" and entry.settings["min_replay"] == 100 and entry.preset == "none"
    assert np.mean(package.evaluate("zoo:poor", episodes=4, envs=4, seed=script.SEED)) == entry.score.mean
    assert hashlib.sha256(entry.file.read_bytes()).hexdigest() == entry.sha256


# ---------------------------------------------------------------------------------------- commands
def test_shoal_zoo_lists_every_policy_with_its_score(shoal: Shoal) -> None:
    code, out, _ = shoal("zoo")
    rows = {line.split()[0]: line for line in out.splitlines() if line}
    assert code == 0 and rows.keys() >= {*zoo.names()}
    entry = zoo.entry(NAME)
    assert entry.env in rows[NAME] and f"{entry.score.mean:.4g}" in rows[NAME] and f"{entry.steps:,}" in rows[NAME]
    told = json.loads(shoal("zoo", "--json")[1])
    assert [one["name"] for one in told] == zoo.names()
    code, out, _ = shoal("zoo", NAME)
    assert code == 0 and entry.command in out and entry.sha256 in out
    assert json.loads(shoal("zoo", NAME, "--json")[1]) == told[zoo.names().index(NAME)]


@pytest.mark.parametrize(
    "words",
    [
        ("zoo", "dqn-cartpol"), ("eval", "zoo:dqn-cartpol"), ("record", "zoo:dqn-cartpol", "--out", "x"),
        ("export", "zoo:dqn-cartpol", "--to", "safetensors"),
        ("train", "dqn", "--env", "CartPole-v1", "--init-from", "zoo:dqn-cartpol", "--quiet"),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_an_unknown_policy_of_the_zoo_is_refused_with_the_nearest(shoal: Shoal, words: tuple[str, ...]) -> None:
    code, _, err = shoal(*words)
    assert code == 2 and err.splitlines()[-1] == (
        "shoal: unknown policy 'dqn-cartpol' of the zoo; did you mean 'dqn-cartpole'? (`shoal zoo` lists all)"
    )
    assert not list(Path().iterdir())


@pytest.mark.parametrize("source", ["zoo:", "zoo:../policies/dqn-cartpole", "zoo:/etc/passwd", "zoo:dqn-cartpole.json"])
def test_a_name_of_the_zoo_is_no_path(source: str) -> None:
    with pytest.raises(UsageError, match=r"unknown policy '.*' of the zoo"):
        package.load(source)


def test_a_saved_policy_is_evaluated_and_exported_as_a_run_is(shoal: Shoal) -> None:
    package.load(SOURCE).save("mine.safetensors")
    told = [
        json.loads(shoal("eval", source, "--episodes", "2", "--json")[1]) for source in (SOURCE, "mine.safetensors")
    ]
    assert told[0]["returns"] == told[1]["returns"] and told[0]["run"] == SOURCE
    for source, name in ((SOURCE, NAME), ("mine.safetensors", "mine")):
        code, _, err = shoal("export", source, "--to", "safetensors")
        assert code == 0, err
        assert Path("export", name, "safetensors", "model.safetensors").is_file()


def test_a_saved_policy_is_recorded_like_a_run(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []

    def write(found: Any, *_: Any) -> tuple[Path, list[float]]:
        kept.extend(found)
        return Path("set"), [float(np.sum(episode.rewards)) for episode in kept]

    monkeypatch.setattr(record, "write", write)
    code, out, err = shoal("record", SOURCE, "--out", "cartpole/zoo-v0", "--episodes", "1", "--seed", "3")
    assert code == 0, err
    assert out == "set: 1 episode of CartPole-v1, mean return 500\n" and len(kept) == 1


@pytest.mark.parametrize(
    "words, says",
    [
        (("eval", SOURCE, "--best"), "is one saved policy: only a run has its 'best' parameters"),
        (("record", SOURCE, "--out", "x", "--best"), "is one saved policy"),
        (("record", SOURCE, "--out", "x", "--env", "CartPole-v1"), "--env is not for recording a run"),
        (("plot", SOURCE), "is a saved policy, not the directory of a run"),
    ],
)
def test_what_a_saved_policy_lacks_is_refused_in_a_sentence(shoal: Shoal, words: tuple[str, ...], says: str) -> None:
    code, _, err = shoal(*words)
    assert code == 2 and says in err and err.count("\n") == 1


def test_shoal_evaluate_takes_a_saved_policy_with_its_environment_given_again(tmp_path: Path) -> None:
    def make() -> gym.Env[Any, Any]:
        return gym.make("CartPole-v1", max_episode_steps=7)

    package.train(
        "dqn", env=make, preset="none", steps=200, min_replay=100, runtime="serial", device="cpu", quiet=True,
        run_dir=tmp_path / "run",
    ).policy().save(tmp_path / "own")  # fmt: skip
    assert len(package.evaluate(tmp_path / "own", make, episodes=2)) == 2
    with pytest.raises(UsageError, match="give it again"):
        package.evaluate(tmp_path / "own", episodes=2)
    assert list(package.evaluate(SOURCE, make, episodes=2)) == [7, 7]
    with pytest.raises(UsageError, match="only a run has its 'best' parameters"):
        package.evaluate(SOURCE, which="best")


def test_a_run_begins_with_a_policy_of_the_zoo_and_says_so(tmp_path: Path) -> None:
    run = package.train(
        "recurrent-ppo", env="CartPole-v1", init_from=SOURCE, run_dir=tmp_path / "run", learning_rate=0.0, steps=2_000,
        runtime="serial", device="cpu", quiet=True,
    )  # fmt: skip
    params, (_, after) = package.load(SOURCE).params, load_params(run.path)
    weights = [name for name in params if name.startswith(("encoder.", "policy."))]
    assert weights and all(torch.equal(params[name], after[name]) for name in weights)
    assert package.Run.open(run.path).init_from == SOURCE
    assert run.report is not None and run.report.updates > 0
