"""Every setting of every system is read: with another value, something that can be observed is something else.

What that is, ``WHERE`` names: the program (channels, tables, ratios, roles), the agent, the network, or what a role is
made with. A setting that it does not name must change what a run learns in a few updates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints
from unittest.mock import patch

import numpy as np
import pytest
import torch
from helpers import config, run, spy
from modules import module_of

from shoal import linear
from shoal.api import UsageError
from shoal.envs import EnvOptions
from shoal.settings.only_with import needs
from shoal.systems import SYSTEMS, load

UPDATES = {
    "": 2, "dqn": 4, "apex-dqn": 4, "r2d2": 4, "r2d3": 4, "es": 6, "d4pg": 6, "gorila": 12, "downpour": 12, "qt-opt": 6,
}  # fmt: skip
SEED = 3
SMALL: dict[str, Any] = {"device": "cpu", "precision": "fp32", "steps": 400}
Q: dict[str, Any] = dict(
    batch=8, min_replay=24, learning_rate=0.3, td_clip=None, epsilon_start=0.6, epsilon_steps=40, unroll=4
)
DPG: dict[str, Any] = dict(learning_rate=0.05, batch=8, min_replay=24, unroll=4, steps=40)
SEGMENTS: dict[str, Any] = dict(epsilon_steps=40, unroll=16)
OF: dict[str, dict[str, Any]] = {  # so that a few updates differ
    "dqn": Q, "apex-dqn": {**Q, "epsilon_steps": 0}, "rainbow": Q,
    "gorila": {**Q, "learning_rate": 0.02}, "downpour": {**Q, "learning_rate": 0.1},
    "r2d2": dict(learning_rate=0.3), "r2d3": dict(learning_rate=0.3), "es": dict(cap_start=20),
    "recurrent-ppo": dict(learning_rate=0.1), "dd-ppo": dict(learning_rate=0.1),
    "apex-dpg": DPG, "d4pg": {**DPG, "v_min": -2_000.0, "v_max": 100.0}, "qt-opt": DPG,
    "unreal": dict(actors=1, envs=1, unroll=12, replay=24, screen=36, torso="mlp", pixel_cell=2),
    "async-q": SEGMENTS, "async-sarsa": SEGMENTS, "async-nstep-q": SEGMENTS,
}  # fmt: skip
BOX = ("apex-dpg", "d4pg", "qt-opt")  # systems of continuous actions
# Values that differ from those of ``config``; where none is named, a number, a switch or a choice changes by itself
SET: dict[str, Any] = {
    "env": {"": "Acrobot-v1", **dict.fromkeys(BOX, "toy:point"), "unreal": "toy:dict"},
    "demonstrations": {"": "helpers:demonstrations", "qt-opt": f"{__name__}:pendulum", "r2d3": ""},
    "activation": {"": "tanh", **dict.fromkeys(("recurrent-ppo", "dd-ppo", "a3c", "unreal", "es"), "relu")},
    "device": "cuda:7", "precision": "bf16", "torso": f"{__name__}:own_torso", "hidden": (8,), "policy_hidden": (8,),
    "total_envs": 6, "learner_processes": 2, "learner_threads": 3, "core": "gru", "reward_scale": -1.0,
    "learning_rate": 0.01, "optimiser_eps": 3.0, "max_grad_norm": 1e-3, "gamma": 0.5, "value_cost": 3.0,
    "entropy_cost": 1.0, "target_kl": 1e-9, "td_clip": 1e-3, "rescale": 0.5, "target_period": 1,
    "epsilon_final": (0.9, 0.8, 0.7), "epsilon_odds": (0.0, 0.0, 1.0), "epsilon_steps": 90, "epsilon_end": 0.9,
    "action_gradient_clip": 1e-6, "v_min": -50.0, "v_max": 50.0, "reward_range": (-1.0, 0.0),
    "max_lag": 1, "outliers": 0.2, "n_fetch": 3, "cem_floor": 5.0, "target_lag": 0, "updaters": 2, "epsilon": 0.9,
    "online_share": 0.9, "sampler": "uniform", "inference": "server", "double_buffer": "on",
    "gradient": "compile",
    "survival_bonus": 2.0, "action_bins": 3, "reference": 9, "cap": 1.0, "cap_start": 3,
}  # fmt: skip
# What a setting needs beside what ``only_with`` says
WITH: dict[str, dict[str, Any]] = {
    "max_grad_norm": dict(max_grad_norm=1.0), "sampler": dict(samples_per_insert=16.0), "queue": dict(actors=1),
    "replay_shards": dict(actors=2), "learners": dict(actors=2), "shards": dict(actors=2),
    "core_size": dict(core="lstm"), "core_layers": dict(core="lstm"), "late_action": dict(hidden=(8, 8)),
    "reward_range": dict(v_min=None, v_max=None), "correction": dict(lag=1), "replay_ratio": dict(replay=8),
    "double": dict(learning_rate=3.0), "demonstrations": dict(demo_ratio=0.5), "eval_epsilon": dict(noisy=False),
    "epsilon_start": dict(epsilon_steps=40), "epsilon_end": dict(epsilon_steps=40), "cap": dict(cap_start=2),
    "action_noise": dict(env="toy:point"), "action_bins": dict(env="toy:point"),
    **{
        f"qt-opt {name}": dict(learners=2, actors=2)
        for name in ("shards", "n_fetch", "n_push", "pieces", "max_lag", "outliers")
    },
    "qt-opt updaters": dict(actors=3), "qt-opt learners": dict(actors=2),
}  # fmt: skip


def own_torso(observations: Any) -> torch.nn.Module:
    class Flat(torch.nn.Module):
        features = sum(int(np.prod(o.shape)) for o in observations.values())

        def forward(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
            return 3 * torch.cat([value.flatten(1).float() for value in obs.values()], 1)

    return Flat()


def pendulum() -> list[Any]:
    """Two episodes that nobody would play."""
    rng = np.random.default_rng(0)
    obs, actions = rng.normal(size=(13, 3)).astype(np.float32), rng.uniform(-1, 1, (12, 1)).astype(np.float32)
    return [(obs, actions, np.arange(12.0), False, True)] * 2


PROGRAMS: dict[tuple[str, str], Any] = {}  # of each system: some have fields that look the same
LEARNED: dict[tuple[str, str], Any] = {}


def program(cfg: Any) -> Any:
    """What a program says of itself, but for the functions in it; or how the settings are refused."""
    key = cfg.system(), repr(cfg)
    if key not in PROGRAMS:
        PROGRAMS[key] = told(cfg)
    return PROGRAMS[key]


def told(cfg: Any) -> Any:
    try:
        made = load(cfg.system()).program(cfg)
    except UsageError as error:
        return str(error)
    channels = [
        (c.name, c.kind, sorted(c.spec.items()), c.capacity, c.ratio, repr(c.table), c.lag, c.mean, repr(c.rule))
        for c in made.channels.values()
    ]
    ports = [{k: (p.count, p.lockstep) for k, p in role.ports.items()} for role in made.roles]
    roles = [(r.name, r.replicas, r.threads, r.device, r.memory, r.on_failure) for r in made.roles]
    return channels, roles, ports


def learned(cfg: Any) -> Any:
    """The parameters after a few updates; or how the settings are refused."""
    key = cfg.system(), repr(cfg)
    if key not in LEARNED:
        try:
            params = run(load(cfg.system()).program(cfg), UPDATES.get(cfg.system(), UPDATES[""]), SEED).params["params"]
            LEARNED[key] = {name: value.numpy().tobytes() for name, value in params.items()}
        except UsageError as error:
            LEARNED[key] = str(error)
    return LEARNED[key]


def policy(cfg: Any) -> Any:
    """What an agent for evaluation is."""
    agent = load(cfg.system()).agent(cfg)
    epsilon = getattr(agent, "epsilon", None)
    return repr(epsilon(0) if callable(epsilon) else epsilon), repr(getattr(agent, "nets", None))


def network(cfg: Any) -> Any:
    """The network of an environment that shows images."""
    kwargs = {"shows": ("image",), "box": cfg.system() in BOX}
    env = f"{Path(__file__).with_name('shown.py')}:Shown"
    nets = module_of(cfg.system()).agent(dataclasses.replace(cfg, env=env, env_kwargs=kwargs, torso="nature")).nets
    return repr(nets), getattr(nets, "precision", None), {k: v.shape for k, v in nets.state_dict().items()}


def of(role: str, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What a role of the program has been made with."""

    def look(cfg: Any) -> Any:
        made, seen = load(cfg.system()).program(cfg), []
        spy(made, role, lambda built: seen.append(read(built)))
        run(made, 1, SEED)
        return seen

    return look


def compiles(cfg: Any) -> bool:
    """Whether a run is about to compile its network."""
    with patch("shoal.learning.differentiate.compile_encoders") as found:
        run(load(cfg.system()).program(cfg), 1, SEED)
    return found.called


WHERE: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(
        (
            "device", "inference", "learner_threads", "learner_processes", "queue", "lag", "labels", "evict_every",
            "replay", "evict", "evict_exponent", "staleness", "noise_table", "min_replay", "samples_per_insert",
            "label_uses", "shards", "es precision", "es actors",
        ), program,
    ),
    "eval_epsilon": policy, "precision": network, "virtual_batch_norm": network, "reference": network,
    "double_buffer": lambda cfg: cfg.env_groups(), "gradient": compiles,
    "qt-opt learner_processes": lambda cfg: cfg.gradient_processes(),
    "check_every": of("rank", lambda role: role.learner.rules.check_every),
    "sync_frac": of("rank", lambda role: role.sync_frac), "min_fraction": of("rank", lambda role: role.min_fraction),
    "target_lag": of("learner", lambda role: role.learner.algorithm.averages.kept.maxlen),
    "max_lag": of("server", lambda role: role.max_lag),
    "outliers": of("learner", lambda role: getattr(role.learner.outliers, "deviations", None)),
    "evaluate_every": of("worker", lambda role: role.evaluate_every),
}  # fmt: skip


def altered(system: str, name: str, now: Any, hint: Any) -> Any:
    """Another value."""
    if name in SET:
        value = SET[name]
        return value.get(system, value[""]) if isinstance(value, dict) else value
    if isinstance(now, bool):
        return not now
    if choices := get_args(hint):
        return next(v for v in choices if v != now)
    if isinstance(now, int):
        return now + 1
    assert isinstance(now, float), f"{name}: name another value than {now} in SET"
    return 0.5 * now or 0.5


HINTS = {system: get_type_hints(load(system).Config) for system in SYSTEMS}


def cases() -> list[tuple[str, str]]:
    of_env = {f.name for f in dataclasses.fields(EnvOptions)} - {"reward_scale"}  # read by ``make``, which has tests
    return [
        (s, f.name)
        for s in SYSTEMS
        for f in dataclasses.fields(load(s).Config)
        if f.name not in of_env and len(get_args(HINTS[s][f.name])) != 1  # there is another value
    ]


@pytest.mark.parametrize("system, name", cases())
def test_another_value_shows(system: str, name: str) -> None:
    Config = load(system).Config
    hint = HINTS[system][name]
    base: dict[str, Any] = {**SMALL, **OF.get(system, {})}
    if name == "steps":
        base["learning_rate"] = linear(0.1, 0.0)
    fields = {f.name for f in dataclasses.fields(Config)}
    wanted = [name]
    while wanted:
        setting = wanted.pop()
        for one, other, values in needs(Config):
            if one == setting and other not in base:
                usual = getattr(config(system, **base), other)
                if usual not in values if values else not usual:
                    base[other] = values[0] if values else altered(system, other, usual, None)
                    wanted.append(other)
        for key in (setting, f"{system} {setting}"):
            base |= {k: v for k, v in WITH.get(key, {}).items() if k in fields and k != name}
    one = config(system, **base)
    if isinstance(program(one), str):
        return  # what this setting needs is refused: whoever gives it alone is told that it does nothing
    value = altered(system, name, getattr(one, name), hint if get_origin(hint) is Literal else None)
    assert value != getattr(one, name)
    look = WHERE.get(f"{system} {name}") or WHERE.get(name, learned)
    try:
        two = config(system, **{**base, name: value})
    except UsageError:
        return  # refused
    assert look(one) != look(two), f"{name} = {value} changes nothing"
