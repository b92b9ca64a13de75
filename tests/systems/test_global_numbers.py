"""Presets give the same learning problem on any number of cores: what an update learns from, how many updates there
are, and how much is in flight between actors and learner."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import pytest

import shoal
from shoal.api import UsageError
from shoal.run.flags import resolve_flags
from shoal.settings.config import coerce_all, resolve
from shoal.settings.flags import split
from shoal.settings.schedule import plain
from shoal.systems import SYSTEMS, dd_ppo, dqn, es, impala, load, r2d2, recurrent_ppo

ENVS = {"mujoco": "Pendulum-v1", "dm_control": "Pendulum-v1", "pointgoal": "pointgoal:depth", "atari": "ALE/Pong-v5"}
PER_RANK = {("dd-ppo", "paper")}  # the paper's own: each rank brings 4 environments more
CELLS = [
    (system, preset)
    for system in SYSTEMS
    for preset, values in load(system).PRESETS.items()
    if "actors" not in values and (system, preset) not in PER_RANK
]


def on(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))


def numbers(system: str, preset: str, **fields: Any) -> dict[str, float | None]:
    """Of the configuration and of the channels of its program."""
    env = {"env": "Pendulum-v1" if system in ("apex-dpg", "d4pg", "qt-opt") else ENVS.get(preset, "CartPole-v1")}
    if (system, preset) == ("d4pg", "dm_control"):
        fields = {"v_min": -2_000.0, **fields}  # Pendulum's rewards are negative
    module = load(system)
    cfg = resolve(module, preset, overrides={**env, **fields}).cfg
    program = module.program(dataclasses.replace(cfg, device="cpu"))
    sent = [c for c in program.channels.values() if c.kind in ("queue", "replay") and "reward" in c.spec]
    flight = [c.capacity * cfg.num_actors() * c.spec["reward"].shape[0] * c.spec["reward"].shape[1] for c in sent]
    if system == "es":
        return {"pairs": cfg.pairs, "envs": cfg.envs}
    return {"envs": cfg.num_actors() * cfg.envs, "updates": cfg.updates(), "steps in flight": sum(flight)}


@pytest.mark.parametrize("system, preset", CELLS)
def test_the_learning_problem_does_not_change_with_the_cores(
    system: str, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, 2)
    wanted = numbers(system, preset)
    for cores in (1, 6, 64):
        on(monkeypatch, cores)
        assert numbers(system, preset) == wanted, cores


@pytest.mark.parametrize("system, preset, batch, updates", [
    ("recurrent-ppo", "atari", 2_048, 1_465), ("recurrent-ppo", "box2d", 4_096, 488), ("dd-ppo", "atari", 1_024, 1_465),
    ("impala", "atari", 80, 62_500), ("impala", "classic", 320, 4_688), ("r2d2", "classic", 640, 12_500),
])  # fmt: skip
def test_two_cores_learn_as_they_did(
    system: str, preset: str, batch: int, updates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps in an update, and updates in a run."""
    on(monkeypatch, 2)
    cfg = resolve(load(system), preset, overrides={"env": ENVS.get(preset, "CartPole-v1")}).cfg
    own = {"recurrent-ppo": 16, "dd-ppo": 8, "r2d2": 16}.get(system, 16 if preset == "atari" else 32)
    assert (cfg.envs, cfg.num_actors()) == (own, 1 if system == "r2d2" else 2)
    learned = cfg.batch * cfg.sequence if system == "r2d2" else (getattr(cfg, "batch", 0) or 2 * cfg.envs) * cfg.unroll
    assert (learned, round(cfg.updates())) == (batch, updates)


def test_who_says_envs_means_each_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, 4)
    env = {"env": "ALE/Pong-v5"}
    preset = resolve(recurrent_ppo, overrides=env)
    assert (preset.cfg.envs, preset.cfg.total_envs, preset.origins["envs"]) == (8, 32, "preset atari")
    own = resolve(recurrent_ppo, overrides={**env, "envs": 16}, source="argument")
    assert (own.cfg.envs, own.cfg.total_envs, own.origins["envs"]) == (16, 0, "argument")
    total = resolve(recurrent_ppo, overrides={**env, "total_envs": 64})
    assert (total.cfg.envs, total.cfg.num_actors()) == (16, 4)
    flags = resolve_flags("recurrent-ppo", recurrent_ppo, split(["--env", "ALE/Pong-v5", "--envs", "2"]), {})[1]
    assert (flags.cfg.envs, flags.cfg.total_envs) == (2, 0)
    again = coerce_all(recurrent_ppo.Config, plain(preset.values()), "config.json")
    assert recurrent_ppo.Config(**{**again, "actors": 4}) == dataclasses.replace(preset.cfg, actors=4)


def test_what_does_not_divide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for, it is refused with the nearest number that does; else the largest number of actors that does is taken,
    and said."""
    on(monkeypatch, 6)
    with pytest.raises(UsageError, match=r"^actors \(6\) must divide total_envs \(32 environments\), as 4 does"):
        resolve(recurrent_ppo, "atari", overrides={"env": "ALE/Pong-v5", "actors": 6})
    with pytest.raises(UsageError, match=r"^actors \(9\) must divide total_envs \(7 environments\), as 7 does"):
        impala.Config(actors=9, total_envs=7)
    cfg = resolve(recurrent_ppo, "atari", overrides={"env": "ALE/Pong-v5"}).cfg
    assert (cfg.num_actors(), cfg.envs) == (4, 8)
    (sentence,) = cfg.remarks()
    assert sentence.startswith("4 actors of 6 share 32 environments evenly; --total-envs 36 would use all")
    assert resolve(r2d2, "classic", overrides={"env": "CartPole-v1"}).cfg.num_actors() == 4  # of 5, beside the learner
    with pytest.raises(UsageError, match="es has no total_envs"):
        es.program(es.Config(total_envs=4))


def test_a_run_of_few_updates_is_said_before_it_starts(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The preset atari made 22 updates on 64 cores, when it had half the steps."""
    on(monkeypatch, 64)
    cfg = resolve(recurrent_ppo, "atari", overrides={"env": "ALE/Pong-v5", "envs": 16}).cfg
    (sentence,) = cfg.remarks()
    assert sentence.startswith("this run makes about 46 updates in its 3,000,000 steps, fewer than 100: ")
    on(monkeypatch, 2)
    for module in (recurrent_ppo, dd_ppo, impala):
        assert resolve(module, "atari", overrides={"env": "ALE/Pong-v5"}).cfg.remarks() == []
    settings: dict[str, Any] = dict(env="CartPole-v1", preset="none", runtime="serial", actors=1, envs=2, unroll=4)
    shoal.train("impala", **settings, steps=64, run_dir=tmp_path / "a", quiet=False)
    told = capsys.readouterr()
    assert told.err == (
        "shoal: this run makes about 8 updates in its 64 steps, fewer than 100: more steps, or smaller values of "
        "unroll, batch, envs or total_envs, make more\n"
    )
    (sentence,) = resolve(dqn, "classic", overrides={"env": "CartPole-v1", "steps": 1_100}).cfg.remarks()
    assert sentence.startswith("this run makes about 25 updates in its 1,100 steps, fewer than 100: "), "min_replay"
    assert sentence.endswith("a larger samples_per_insert, a smaller batch or a smaller min_replay, make more")
    shoal.train("impala", **settings, steps=64, run_dir=tmp_path / "b", quiet=True)
    assert capsys.readouterr().err == ""
