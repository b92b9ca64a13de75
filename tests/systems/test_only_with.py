"""Settings that do nothing beside others: named when a user gives them, and without any effect indeed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import config, run
from modules import module_of

from shoal.api import UsageError
from shoal.settings.config import resolve
from shoal.settings.flags import expect, ranged
from shoal.settings.only_with import idle, needs
from shoal.settings.toml_text import to_toml
from shoal.systems import SYSTEMS, load

SET = {  # values that differ from those of ``config``
    "optimiser_eps": 0.5, "rmsprop_decay": 0.5, "rmsprop_centred": None, "momentum": 0.3, "weight_decay": 0.2,
    "top": 2, "cap_start": 3, "pixel_control_cost": 0.7, "pixel_control_gamma": 0.3, "pixel_cell": 2,
    "reward_prediction_cost": 0.3, "value_replay_cost": 0.3, "core_size": 5, "core_layers": 2, "priority_mix": 0.1,
    "atoms": 7, "v_min": -3.0, "v_max": 3.0, "kappa": 0.3, "td_clip": 0.01, "noisy_sigma": 0.1, "epsilon_start": 0.3,
    "epsilon_end": 0.7, "epsilon_steps": 33, "epsilon_ladder": True, "epsilon_base": 0.9, "epsilon_alpha": 1.0,
    "replay_ratio": 3.0, "sampler": "rank", "priority_exponent": 0.2, "importance_exponent": 0.1,
    "actor_priorities": True, "evict": "fifo", "evict_exponent": 2.0, "online_share": 0.5, "components": 2,
    "mixture_samples": 3, "reward_range": (-1.0, 1.0), "label_uses": 3.0, "max_lag": 1,
    "late_action": True, "activation": "tanh", "novelty_steps": 3, "noise_correlation": 0.5,
}  # fmt: skip
OFF = {  # a value of the other setting with which these do nothing
    "optimiser": "adam", "shaping": "ranks", "core": "none", "returns": "categorical", "critic": "mean",
    "evict": "fifo", "replay": 0, "cap": 0.0, "noisy": False, "demonstrations": "", "samples_per_insert": 0.0,
    "pieces": 2, "hidden": (), "novelty": 0.0, "noise": 0.0,
}  # fmt: skip
FIELDS: dict[str, Any] = {"unreal": dict(core="none"), "rainbow": dict(noisy=False)}


def off(other: str, values: tuple[Any, ...]) -> Any:
    """A value of ``other`` that is none of those needed."""
    if values == (False,):
        return True
    if "adam" in values:
        return "sgd"
    usual = OFF.get(other, False)
    return usual if usual not in values else {"returns": "mean", "critic": "categorical"}[other]


def cases() -> dict[str, tuple[str, str, Any, list[str]]]:
    """Each need once, of the first system that has it; those of one setting together."""
    seen: set[tuple[str, str, tuple[Any, ...]]] = set()
    out: dict[tuple[str, str, Any], list[str]] = defaultdict(list)
    for system in SYSTEMS:
        for need in needs(load(system).Config):
            if need not in seen:
                seen.add(need)
                out[system, need[1], off(*need[1:])].append(need[0])
    return {f"{s}, {other} {value}": (s, other, value, names) for (s, other, value), names in out.items()}


CASES = cases()


def valid(hint: Any, value: Any) -> bool:
    with contextlib.suppress(UsageError):
        return bool(expect(hint, value, "it") == value)
    return False


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_is_named_exists(system: str) -> None:
    Config = load(system).Config
    fields = {f.name for f in dataclasses.fields(Config)}
    for name, other, values in needs(Config):
        assert {name, other} <= fields
        assert off(other, values) not in values


def test_values_exist() -> None:
    """In some system: a3c has one optimiser only."""
    configs = [load(system).Config for system in SYSTEMS]
    found: dict[Any, bool] = defaultdict(bool)
    for Config in configs:
        for need in needs(Config):
            for value in need[2]:
                found[need, value] |= valid(ranged(Config)[need[1]], value)
    assert found and all(found.values())


@pytest.mark.parametrize("case", CASES)
def test_it_does_nothing(case: str) -> None:
    system, other, value, names = CASES[case]
    base = {"device": "cpu", "precision": "fp32", "steps": 20_000, **FIELDS.get(system, {}), other: value}
    plain = config(system, **base)
    changed = {n: not getattr(plain, n) if SET[n] is None else SET[n] for n in names}
    assert all(getattr(plain, name) != value for name, value in changed.items())
    with_them = dataclasses.replace(plain, **changed)
    one, two = (run(load(system).program(cfg), 6, 7).params["params"] for cfg in (plain, with_them))
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_a_user_is_told() -> None:
    dqn, qt_opt = load("dqn"), load("qt-opt")
    given = {"sampler": "rank", "momentum": 0.5, "target_period": 7}
    assert sorted(idle(dqn, resolve(dqn, overrides=given))) == [
        "--momentum does nothing here: optimiser is adam",
        "--sampler does nothing here: prioritised is false",
    ]
    assert not idle(dqn, resolve(dqn, overrides={**given, "prioritised": True, "optimiser": "sgd"}))
    assert not idle(dqn, resolve(dqn)), "nobody asked"
    dpg = load("apex-dpg")
    told = idle(dpg, resolve(dpg, overrides={"prioritised": False, "evict_exponent": -1.0}))
    assert told == ["--evict-exponent does nothing here: prioritised is false"], "by way of --evict"
    told = idle(qt_opt, resolve(qt_opt, overrides={"online_share": 0.5}, source="argument"))
    assert told == ["'online_share' does nothing here: demonstrations is empty"]


def shapes(cfg: Any) -> dict[str, tuple[int, ...]]:
    """Of the parameters of the agent's network."""
    return {name: tuple(value.shape) for name, value in module_of(cfg.system()).agent(cfg).nets.state_dict().items()}


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("shows", [("image",), ("vector",), ("image", "vector")])
def test_what_says_nothing_of_the_network_in_this_environment_is_told(system: str, shows: tuple[str, ...]) -> None:
    """And only that: with it or without it the network has the same layers."""
    box = system in ("apex-dpg", "d4pg", "qt-opt")
    env: dict[str, Any] = dict(
        env=f"{Path(__file__).with_name('shown.py')}:Shown", env_kwargs={"shows": shows, "box": box}
    )
    if system == "unreal":
        env["pixel_control"] = "image" in shows
    for torso in ("auto", "mlp", "nature", "none", f"{Path(__file__)}:own_torso"):
        plain = config(system, **env, torso=torso, device="cpu", hidden=(16,))
        same = shapes(plain) == shapes(dataclasses.replace(plain, hidden=(17,)))
        assert same == ("hidden" in plain.idle()) == ("activation" in plain.idle()), torso
    plain = config(system, **env, device="cpu")
    other = dataclasses.replace(plain, torso="impala-shallow")
    assert (shapes(plain) == shapes(other)) == ("torso" in other.idle()) == ("image" not in shows)


def own_torso(observations: Any) -> torch.nn.Module:
    made = Flat()
    made.features = sum(int(torch.tensor(o.shape).prod()) for o in observations.values())
    return made


class Flat(torch.nn.Module):
    features: int

    def forward(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.cat([value.flatten(1).float() for value in obs.values()], 1)


@pytest.mark.parametrize("system, fields, name, why", [
    ("d4pg", dict(v_min=-1700.0, v_max=0.0, reward_range=(-5.0, 0.0)), "reward_range", "v_min and v_max are given"),
    ("d4pg", dict(v_min=-1700.0, reward_range=(-5.0, 0.0)), "", ""),
    ("gorila", dict(pieces=4, max_lag=10), "max_lag", "pieces is 4"),
    ("qt-opt", dict(samples_per_insert=0.0, label_uses=4.0), "label_uses", "samples_per_insert is 0.0"),
    ("qt-opt", dict(cem_iterations=1, cem_floor=0.5), "cem_floor", "cem_iterations is 1"),
    ("apex-dpg", dict(hidden=(), late_action=True), "late_action", "hidden is empty"),
    ("apex-dpg", dict(hidden=(), layer_norm=True), "layer_norm", "hidden is empty"),
    ("apex-dpg", dict(hidden=(), policy_hidden=(8,), layer_norm=True, activation="tanh"), "", ""),
    ("impala", dict(hidden=(), activation="relu"), "activation", "hidden is empty"),
    ("es", dict(hidden=(), activation="relu"), "activation", "hidden is empty"),
    ("qt-opt", dict(hidden=(), activation="tanh"), "activation", "hidden is empty"),
    ("apex-dpg", dict(hidden=(), activation="tanh"), "activation", "hidden is empty"),
])  # fmt: skip
def test_a_user_is_told_of(system: str, fields: dict[str, Any], name: str, why: str) -> None:
    module = load(system)
    told = idle(module, resolve(module, preset="none", overrides=fields))
    assert told == ([f"--{name.replace('_', '-')} does nothing here: {why}"] if name else [])


def test_a_user_is_told_of_the_network() -> None:
    dqn = load("dqn")
    told = idle(dqn, resolve(dqn, overrides={"env": "CartPole-v1", "torso": "nature", "hidden": (8,)}))
    assert told == ["--torso does nothing here: the environment shows no images"]
    told = idle(dqn, resolve(dqn, overrides={"env": "ALE/Pong-v5", "hidden": (8,)}))
    assert told == ["--hidden does nothing here: the environment shows images alone, which have a torso"]
    assert not idle(dqn, resolve(dqn, overrides={"env": "ALE/Pong-v5", "torso": "impala-deep"}))


@pytest.mark.parametrize("preset", ["none", *load("rainbow").PRESETS])
def test_a_file_of_all_settings_says_nothing_of_its_own(preset: str, tmp_path: Path) -> None:
    rainbow, file = load("rainbow"), tmp_path / "run.toml"
    file.write_text(to_toml(resolve(rainbow, preset), "rainbow"), encoding="utf-8")
    assert not idle(rainbow, resolve(rainbow, file=file, name="rainbow"))
    file.write_text("prioritised = false\nsampler = 'rank'\n", encoding="utf-8")
    (told,) = idle(rainbow, resolve(rainbow, file=file, name="rainbow"))
    assert told == f"'sampler' (file {file}) does nothing here: prioritised is false"
