"""Layers, provenance, and types of a configuration."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal import systems
from shoal.api import UsageError
from shoal.records.param_files import load_params
from shoal.settings import yaml_text
from shoal.settings.config import default_values, read_file, resolve
from shoal.settings.field_docs import field_docs
from shoal.settings.flags import coerce, describe, expect, parse_flags, ranged, split
from shoal.settings.kinds import env_kind
from shoal.settings.nearest import nearest
from shoal.settings.ranges import Count, Positive
from shoal.settings.toml_text import to_toml

from .conftest import Shoal


@pytest.fixture
def system(fake: str) -> Any:
    return systems.load(fake)


def test_later_layers_win_and_say_so(system: Any, tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('learning-rate = 0.5\nunroll = 7\nenv = "ALE/Pong-v5"\n')
    resolved = resolve(system, file=file, overrides={"unroll": 9, "steps": 100_000})
    assert (resolved.cfg.envs, resolved.cfg.learning_rate, resolved.cfg.unroll) == (32, 0.5, 9)
    origins = resolved.origins
    assert origins["envs"] == "preset atari" and origins["learning_rate"] == f"file {file}"
    assert origins["unroll"] == "flag" and origins["actors"] == "default"
    assert resolved.cfg.max_grad_norm is None


@pytest.mark.parametrize(
    "env, kind",
    [
        ("ALE/Breakout-v5", "atari"), ("HalfCheetah-v5", "mujoco"), ("InvertedPendulum-v5", "mujoco"),
        ("PongNoFrameskip-v4", "atari"),
        ("Pendulum-v1", "classic"), ("LunarLander-v3", "box2d"), ("CheetahRun-v1", "dm_control"),
        ("HumanoidStand-v1", "dm_control"), ("HumanoidStandup-v5", "mujoco"), ("toy:chain", "toy"),
        ("MinAtar/SpaceInvaders-v1", "minatar"), ("MiniGrid-Empty-5x5-v0", None),
    ],
)  # fmt: skip
def test_kind_of_environment(env: str, kind: str | None) -> None:
    assert env_kind(env) == kind


def test_the_narrowest_kind_that_has_a_preset_gives_it() -> None:
    """MuJoCo's tasks of small rewards have a preset of D4PG's, and none of Ape-X DPG's."""
    envs = ("Hopper-v5", "Reacher-v5", "HalfCheetah-v5", "HopperHop-v1")
    found = {(name, env): resolve(systems.load(name), overrides={"env": env}) for name in ("d4pg", "apex-dpg")
             for env in envs}  # fmt: skip
    shared = {"Hopper-v5": "mujoco_upright", "HalfCheetah-v5": "mujoco", "HopperHop-v1": "dm_control"}
    for env, preset in shared.items():
        assert found["d4pg", env].preset == found["apex-dpg", env].preset == preset
    assert found["d4pg", "Reacher-v5"].preset == "mujoco_small" and found["apex-dpg", "Reacher-v5"].preset == "mujoco"
    assert found["apex-dpg", "Hopper-v5"].cfg.n_step == 5 and found["apex-dpg", "HalfCheetah-v5"].cfg.n_step == 1
    assert found["d4pg", "Hopper-v5"].cfg.n_step == 5 and found["d4pg", "HalfCheetah-v5"].cfg.n_step == 1
    assert found["apex-dpg", "HopperHop-v1"].cfg.layer_norm and not found["d4pg", "HopperHop-v1"].cfg.layer_norm


def test_options_of_atari_are_for_atari(system: Any, tmp_path: Path) -> None:
    """Refused where they would be ignored, not shown there, and taken from files that hold their defaults."""
    given = {"frame_skip": 2, "env": "CartPole-v1"}
    with pytest.raises(UsageError, match="--frame-skip is an option of atari environments, and CartPole-v1 is none"):
        resolve(system, overrides=given)
    atari = resolve(system, overrides={**given, "env": "PongNoFrameskip-v4"})
    assert atari.cfg.frame_skip == 2 and atari.shown()["frame_skip"] == 2 and atari.preset == "atari"
    (tmp_path / "x.toml").write_text("frame_skip = 4\n")
    plain = resolve(system, file=tmp_path / "x.toml", overrides={"env": "CartPole-v1"})
    assert "frame_skip" not in plain.shown() and "frame_skip" not in to_toml(plain, "fake")


def test_automatic_preset_can_be_turned_off(system: Any) -> None:
    assert resolve(system, "none", overrides={"env": "ALE/Pong-v5"}).cfg.envs == 2
    assert resolve(system, overrides={"env": "Hopper-v5"}).preset == "none"


@pytest.mark.parametrize("name", ["a\nb.toml", "a\x01\r.toml", "\u2028.toml"])
def test_a_file_of_any_name_is_where_a_value_of_toml_comes_from(system: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('env = "CartPole-v1"\n')
    text = to_toml(found := resolve(system, file=tmp_path / name), "fake")
    (tmp_path / "again.toml").write_text(text, encoding="utf-8")
    assert resolve(system, file=tmp_path / "again.toml", name="fake").cfg == found.cfg


def test_toml_and_yaml_give_the_same_configuration_again(system: Any, tmp_path: Path) -> None:
    first = resolve(
        system,
        overrides={"env": "ALE/Pong-v5", "env_kwargs": {"mode": 1, "\U0001f41f": 'a "b"'}, "hidden": (3, 4)},
        name="fake",
    )
    (tmp_path / "again.toml").write_text(to_toml(first, "fake"), encoding="utf-8")
    assert resolve(system, file=tmp_path / "again.toml", name="fake").cfg == first.cfg
    (tmp_path / "x.yaml").write_text("learning_rate: 1e-4\nhidden: [8]\nmax_episode_steps: null\n")
    cfg = resolve(system, file=tmp_path / "x.yaml").cfg
    assert cfg.learning_rate == 1e-4 and cfg.hidden == (8,) and cfg.max_episode_steps is None
    assert read_file(tmp_path / "x.yaml")["hidden"] == [8]


def test_flags_are_typed(system: Any) -> None:
    groups = [
        ("--steps", ["1e6"]), ("--learning_rate", ["-1e-3"]), ("--life-loss", []), ("--hidden", ["8", "9"]),
        ("--max-grad-norm", ["none"]), ("--env-kwargs.mode", ["2"]), ("--reward-clip", ["sign"]),
    ]  # fmt: skip
    assert parse_flags(system.Config, groups, "fake") == {
        "steps": 1_000_000, "learning_rate": -1e-3, "life_loss": True, "hidden": (8, 9), "max_grad_norm": None,
        "env_kwargs": {"mode": 2}, "reward_clip": "sign",
    }  # fmt: skip
    assert parse_flags(system.Config, [("--no-life-loss", [])], "fake") == {"life_loss": False}
    assert parse_flags(system.Config, [("--hidden", ["8,9"])], "fake") == {"hidden": (8, 9)}


def env_kwargs(system: Any, file: Path, *words: str) -> Any:
    flags = parse_flags(system.Config, split([*words]), "fake")
    return resolve(system, file=file, overrides=flags).cfg.env_kwargs


def test_a_flag_sets_one_entry_over_the_layer_below(system: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """One that gives a whole dict takes the place of the one below, as do a file and an argument."""
    file = tmp_path / "x.yaml"
    file.write_text("env_kwargs: {goal: 1, sides: {a: 1, b: 2}}")
    assert env_kwargs(system, file, "--env-kwargs.mass", "2") == {"goal": 1, "sides": {"a": 1, "b": 2}, "mass": 2}
    words = ["--env-kwargs.sides.b", "7", "--env-kwargs.goal", "x"]
    assert env_kwargs(system, file, *words) == {"goal": "x", "sides": {"a": 1, "b": 7}}
    assert env_kwargs(system, file, "--env-kwargs", "{mass: 2}") == {"mass": 2}
    assert env_kwargs(system, file, "--env-kwargs", "{mass: 2}", "--env-kwargs.goal", "3") == {"mass": 2, "goal": 3}
    assert resolve(system, file=file, overrides={"env_kwargs": {"mass": 2}}).cfg.env_kwargs == {"mass": 2}
    monkeypatch.setitem(system.PRESETS, "classic", {"env_kwargs": {"wind": 0.5, "goal": 3}})
    assert resolve(system, file=file).cfg.env_kwargs == {"goal": 1, "sides": {"a": 1, "b": 2}}
    flags = parse_flags(system.Config, split(["--env-kwargs.mass", "2"]), "fake")
    assert resolve(system, overrides=flags).cfg.env_kwargs == {"wind": 0.5, "goal": 3, "mass": 2}
    assert system.PRESETS["classic"]["env_kwargs"] == {"wind": 0.5, "goal": 3}


@pytest.mark.parametrize("value", ["ten", 1.5, True, None, [1]])
def test_a_wrong_type_is_named(system: Any, value: Any) -> None:
    with pytest.raises(UsageError, match=r"^'envs' expects an integer from 1 to 4095, found "):
        resolve(system, overrides={"envs": value}, source="argument")


def test_a_value_out_of_its_range_is_named(system: Any) -> None:
    with pytest.raises(UsageError, match=r"^'envs' expects an integer from 1 to 4095, found 0$"):
        resolve(system, overrides={"envs": 0}, source="argument")
    assert resolve(system, overrides={"envs": np.int64(3)}).cfg.envs == 3


def test_a_field_declared_again_keeps_its_range() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Base:
        a: Count = 1
        b: Count = 1
        c: Positive | None = None

    @dataclass(frozen=True, kw_only=True)
    class Own(Base):
        a: int = 2
        b: float = 0.5  # type: ignore[assignment]  # of another type
        c: float | None = 1.0

    assert {k: describe(v) for k, v in ranged(Own).items()} == {
        "a": "an integer of at least 1", "b": "a number", "c": "a finite number above 0 or none",
    }  # fmt: skip


@pytest.mark.parametrize("name", systems.SYSTEMS)
def test_every_default_and_preset_is_in_its_range(name: str) -> None:
    system = systems.load(name)
    hints = ranged(system.Config)
    for values in (default_values(system.Config), *system.PRESETS.values()):
        for field, value in values.items():
            assert coerce(hints[field], value) == value, field


def test_one_value_serves_a_setting_of_several() -> None:
    hint = ranged(systems.load("dqn").Config)["hidden"]
    assert coerce(hint, 64) == (64,) == coerce(hint, [64])
    assert coerce(hint, np.array([8, 4])) == (8, 4) and coerce(hint, np.int64(8)) == (8,)
    for wrong in (0, 6.5, True, "many", None, np.array([[8]])):
        with pytest.raises(UsageError, match="it expects integers of at least 1, found"):
            expect(hint, wrong, "it")
    with pytest.raises(UsageError, match="it expects 2 values, found 64"):
        expect(tuple[int, int], 64, "it")


def test_the_form_of_a_schedule_is_said_where_a_function_or_a_word_is_given() -> None:
    hints = ranged(systems.load("ppo").Config)
    for wrong in (lambda left: left, "auto"):
        with pytest.raises(UsageError, match=r"at least 0 or linear\(a, b\) of two such, found"):
            expect(hints["learning_rate"], wrong, "it")
    with pytest.raises(UsageError, match=r"it expects a number from 0 to 1, found 'auto'"):
        expect(hints["gamma"], "auto", "it")


def test_a_word_of_several_may_have_large_letters() -> None:
    hint = ranged(systems.load("impala").Config)["activation"]
    assert (
        coerce(hint, "Tanh")
        == "tanh"
        == parse_flags(systems.load("impala").Config, [("--activation", ["TANH"])], "")["activation"]
    )
    with pytest.raises(UsageError, match=r"one of tanh, relu, found 'nn\.Tanh'"):
        expect(hint, "nn.Tanh", "it")


def test_nearest_name() -> None:
    names = ["env", "learning_rate", "max_grad_norm", "unroll"]
    wrong = ["lr", "rate", "learning-rte", "max_grad", "unrol", "environment"]
    assert [nearest(n, names) for n in wrong] == [
        "learning_rate", "learning_rate", "learning_rate", "max_grad_norm", "unroll", "env",
    ]  # fmt: skip
    assert [nearest(n, names) for n in ("zzz", "foo", "colour")] == [None, None, None]


def test_field_docs_come_from_all_bases(system: Any) -> None:
    docs = field_docs(system.Config)
    assert docs["learning_rate"] == "Step size of the optimiser." and docs["envs"] == "Environments per actor."


@pytest.mark.parametrize("name", systems.SYSTEMS)
def test_every_preset_of_every_system_resolves(name: str) -> None:
    system = systems.load(name)
    for preset in [*system.PRESETS, "none"]:
        resolve(system, preset, name=name)


def test_a_preset_that_is_asked_for_wins_over_that_of_a_file(shoal: Any) -> None:
    Path("f.toml").write_text("preset = 'none'\n")
    heads = [shoal("config", "dqn", "--config", "f.toml", *more)[1] for more in ((), ("--preset", "auto"))]
    assert "preset none" in heads[0] and "preset classic" in heads[1]
    for text, more in (("preset = ''\n", ()), ("", ("--preset", ""))):
        Path("f.toml").write_text(text)
        code, _, said = shoal("config", "dqn", "--config", "f.toml", *more)
        assert code == 2 and said.startswith("shoal: unknown preset ''")


@pytest.mark.parametrize(
    "kwargs", ["{objs: [{a: 1}]}", "{a: [[1, 2], [b]]}", "{a: {b: [1.5, {c: [true]}]}}", "{a: []}"]
)
def test_what_an_environment_is_given_is_the_same_in_toml(kwargs: str, shoal: Any) -> None:
    code, toml, _ = shoal("config", "dqn", "--env-kwargs", kwargs, "--toml")
    Path("f.toml").write_text(toml)
    assert code == 0 and read_file("f.toml")["env_kwargs"] == yaml_text.read(kwargs)


@pytest.mark.parametrize("kwargs", ["{a: [null]}", "{a: null}", "{a: {b: [{c: null}]}}"])
def test_toml_has_no_null(kwargs: str, shoal: Any) -> None:
    code, _, said = shoal("config", "dqn", "--env-kwargs", kwargs, "--toml")
    assert code == 2 and said.startswith("shoal: TOML has no null, which '") and said.count("\n") == 1


def test_the_configuration_of_a_run_is_that_of_another(shoal: Any, fake: str) -> None:
    words = ["--runtime", "serial", "--seed", "3", "--quiet"]
    given = ["--env", "CartPole-v1", "--steps", "300", "--hidden", "8", "--run-dir", "a"]
    assert shoal("train", fake, *given, *words)[0] == 0
    assert shoal("train", fake, "--config", "a", "--run-dir", "b", *words)[0] == 0
    one, two = (json.loads(Path(name, "config.json").read_text()) for name in "ab")
    assert one["config"] == two["config"] and one["preset"] == two["preset"] and one["config"]["hidden"] == [8]
    assert set(two["origins"].values()) == {"file a"}
    first, second = (load_params(Path(name))[1] for name in "ab")
    assert all((first[k] == second[k]).all() for k in first)
    assert shoal("train", fake, "--config", "a", "--preset", one["preset"], "--run-dir", "c", *words)[0] == 0
    code, _, said = shoal("train", fake, "--config", "a", "--preset", "atari")
    assert code == 2 and f"those of its preset '{one['preset']}': give no other preset" in said
    code, _, said = shoal("train", "dqn", "--config", "a/config.json")
    assert code == 2 and said.startswith("shoal: a/config.json is for the system '") and said.endswith("not 'dqn'\n")
    Path("a", "config.json").write_text("{")
    assert shoal("train", fake, "--config", "a")[2].startswith("shoal: a/config.json is not valid JSON: ")
    Path("a", "config.json").write_text("[]")
    said = shoal("train", fake, "--config", "a")[2]
    assert said == "shoal: a/config.json is no config.json of a run: it has no 'config'\n"
    assert shoal("train", fake, "--config", ".")[2] == "shoal: no such config file: 'config.json'\n"


def test_a_name_of_megabytes_in_a_file_is_not_printed_whole(shoal: Shoal) -> None:
    Path("c.toml").write_text(f'system = "{"x" * 1_000_000}"')
    code, _, err = shoal("config", "impala", "--config", "c.toml")
    assert code == 2 and err.startswith("shoal: c.toml is for the system 'xxx") and len(err) < 400


def test_a_sentence_of_megabytes_is_cut(shoal: Shoal) -> None:
    code, _, err = shoal("x" * 1_000_000)
    assert code == 2 and err.startswith("shoal: unknown command 'xxx") and len(err) < 5_000


@pytest.mark.timeout(60)
def test_nothing_is_suggested_for_a_name_of_megabytes(shoal: Shoal) -> None:
    Path("c.toml").write_text(f'env = "{"e" * 1_000_000}"')
    code, _, err = shoal("config", "dqn", "--config", "c.toml")
    assert code == 2 and err.startswith("shoal: ") and len(err) < 5_000
    assert nearest("learning_rate" * 1_000_000, ["learning_rate"]) is None
