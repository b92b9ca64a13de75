"""Every program, for every preset, validates, draws and counts its bytes with nothing started and nothing allocated;
presets hold the papers' values; programs compose; and each mistake in the wiring is named."""

from __future__ import annotations

import dataclasses
import multiprocessing.process
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from shoal import fast, linear
from shoal.api import GROUPS, Context, Field, WiringError, spec_nbytes
from shoal.learning.learner import SGDLearner
from shoal.metering.recorder import Recorder
from shoal.program import Channel, Program, draw
from shoal.program.draw_svg import svg
from shoal.replay import Ratio, TableSpec
from shoal.runtime.launch import Launch, Stop
from shoal.serial.runtime import SerialRuntime
from shoal.shm import layout
from shoal.shm.arena import Arena
from shoal.systems import SYSTEMS, load

ENVS = {"none": "CartPole-v1", "classic": "CartPole-v1", "box2d": "CartPole-v1", "mujoco": "Pendulum-v1"}  # else Atari
ENVS |= {"pointgoal": "pointgoal:depth", "minatar": "CartPole-v1"}
CONTINUOUS = {"apex-dpg", "d4pg", "qt-opt"}  # Pendulum for these
DISCRETE_ONLY = {"dqn", "apex-dqn", "r2d2", "r2d3", "rainbow", "gorila", "downpour"}
PRESETS = [(name, preset) for name in SYSTEMS for preset in ("none", *load(name).PRESETS)]


def config(system: str, preset: str, **fields: Any) -> Any:
    module = load(system)
    env = "Pendulum-v1" if system in CONTINUOUS else ENVS.get(preset, "ALE/Pong-v5")
    env = "toy:catch" if (system, preset) == ("unreal", "none") else env  # which wants to see something
    return module.Config(**{"env": env, "device": "cpu", **module.PRESETS.get(preset, {}), **fields})


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test that starts a process, builds a replay table, or takes shared memory."""

    def refuse(what: str) -> Callable[..., Any]:
        def refused(*args: Any, **kwargs: Any) -> Any:
            raise AssertionError(f"{what} while only a picture was asked for")

        return refused

    monkeypatch.setattr(os, "fork", refuse("fork"))
    monkeypatch.setattr(subprocess.Popen, "__init__", refuse("a program was started"))
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refuse("a process was started"))
    monkeypatch.setattr(TableSpec, "build", refuse("a replay table was built"))
    monkeypatch.setattr(Arena, "__init__", refuse("shared memory was taken"))


# ------------------------------------------------------------------------- validate, draw, count
@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("system,preset", PRESETS)
def test_validates_draws_and_counts(system: str, preset: str) -> None:
    costs = dict(v_min=-2_000.0) if (system, preset) == ("d4pg", "dm_control") else {}  # Pendulum's are negative
    program = load(system).program(config(system, preset, **costs))
    program.validate()
    picture, chart, drawing = draw.text(program), draw.mermaid(program), svg(program)
    for role in program.roles:
        assert role.name in picture and role.name in chart and role.name in drawing
    memory = program.memory()
    own = {role.name for role in program.roles if role.memory}
    assert memory.keys() == program.channels.keys() | own
    assert all(size > 0 for size in memory.values())
    for channel in program.channels:
        assert channel in picture and channel in chart and channel in drawing
        assert f"{draw.human_bytes(memory[channel])} in all" in picture
    assert chart.splitlines()[1] == "flowchart LR"
    assert ElementTree.fromstring(drawing).tag.endswith("svg")


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_local_runtime_can_lay_it_out(system: str) -> None:
    """The layout of its shared memory is as big as the program says, but for padding to cache lines."""
    program = load(system).program(config(system, "none", actors=2))
    plan = layout.plan(program)
    for name, size in layout.needed(plan).items():
        if name not in program.channels:  # what a role holds itself
            continue
        channel = program.channels[name]
        told = program.memory()[name]
        buffers = 2 if channel.kind == "params" else channel.capacity * program.writers(channel)
        if channel.kind in GROUPS:
            buffers = told // spec_nbytes(channel.spec)
        padding = buffers * layout.ALIGN * (len(channel.spec) + 1)
        table = 0 if channel.table is None else 0.001 * told
        assert abs(size - told) <= padding + table, name


@pytest.mark.parametrize("system,preset", [pair for pair in PRESETS if pair[1] != "none"])
def test_presets_name_real_fields(system: str, preset: str) -> None:
    module = load(system)
    fields = {f.name for f in dataclasses.fields(module.Config)}
    assert module.PRESETS[preset].keys() <= fields


def test_memory_is_what_the_arrays_take() -> None:
    program = load("dqn").program(config("dqn", "none", replay=500, min_replay=100))
    channel = program.channels["transitions"]
    assert channel.table is not None
    table = channel.table.build(channel.spec, 1, 0)
    inputs = sum(f.nbytes for f in channel.spec.values()) * channel.capacity
    assert program.memory()["transitions"] == inputs + sum(a.nbytes for a in table._arrays.values())  # type: ignore[attr-defined]


def test_a_million_atari_transitions_fit_in_7_5_gb() -> None:
    assert load("dqn").program(config("dqn", "paper")).memory()["transitions"] <= 7.5e9


# --------------------------------------------------------------------------------- paper presets
ATARI = dict(frame_skip=4, noop_max=30, life_loss=True, precision="fp32", sticky_actions=0.0)
DPG = dict(
    envs=1, n_step=5, gamma=0.99, batch=256, learning_rate=1e-4, noise=0.3, target_period=100, replay=1_000_000,
    hidden=(400, 300), policy_hidden=(300, 200), late_action=True, samples_per_insert=0.0,
)  # fmt: skip
PAPER: dict[str, dict[str, Any]] = {
    "dqn": dict(  # Mnih et al. 2015, extended data table 1; update every 4 steps, target every 10,000 steps
        ATARI, actors=1, envs=1, gamma=0.99, batch=32, replay=1_000_000, min_replay=50_000, learning_rate=2.5e-4,
        optimiser="rmsprop", optimiser_eps=0.01, td_clip=1.0, max_grad_norm=None, reduction="sum", n_step=1,
        target_period=10_000 // 4, epsilon_start=1.0, epsilon_end=0.1, epsilon_steps=1_000_000, reward_clip="sign",
        double=False, dueling=False, prioritised=False, frame_stack=4, torso="nature", steps=50_000_000,
    ),
    "apex-dqn": dict(  # Horgan et al. 2018, sections 3.1 and 4.1, appendix C
        ATARI, actors=360, envs=1, unroll=50, n_step=3, gamma=0.99, batch=512, learning_rate=6.25e-5,
        optimiser="rmsprop", optimiser_eps=1.5e-7, max_grad_norm=40.0, td_clip=None, target_period=2_500,
        replay=2_000_000, min_replay=50_000, priority_exponent=0.6, importance_exponent=0.4, epsilon_base=0.4,
        epsilon_alpha=7.0, double=True, dueling=True, prioritised=True, sampler="proportional",
        actor_priorities=True, samples_per_insert=0.0, evict_every=65_000, reward_clip="unit", frame_stack=4,
        steps=22_800_000_000 // 4,
    ),
    "r2d2": dict(  # Kapturowski et al. 2019, section 2.3 and table 2
        dict(ATARI, life_loss=False), actors=256, envs=1, sequence=80, overlap=40, burn_in=40, start_state="stored",
        n_step=5, gamma=0.997, rescale=1e-3, priority_mix=0.9, priority_exponent=0.9, importance_exponent=0.6, batch=64,
        learning_rate=1e-4, optimiser="adam", optimiser_eps=1e-3, max_grad_norm=40.0, target_period=2_500,
        replay=100_000, core="lstm", core_size=512, last_action_reward=True, dueling=True, double=True, hidden=(),
        full_action_space=True,
        epsilon_base=0.4, epsilon_alpha=7.0, samples_per_insert=0.0, reward_clip="none", frame_stack=4,
    ),
    "r2d3": dict(  # Paine et al. 2019, appendix: R2D2's, but for these
        sequence=80, overlap=40, burn_in=40, start_state="zero", n_step=5, gamma=0.997, batch=64, learning_rate=2e-4,
        optimiser_eps=1e-3, target_period=400, priority_mix=0.9, priority_exponent=0.9, importance_exponent=0.6,
        demo_ratio=1 / 256,
    ),
    "apex-dpg": dict(  # Horgan et al. 2018, sections 3.2 and 4.2, appendix D
        DPG, actors=64, prioritised=True, priority_exponent=0.6, importance_exponent=0.4, action_gradient_clip=1.0,
        evict_exponent=-0.4, activation="tanh",
    ),
    "d4pg": dict(  # Barth-Maron et al. 2018, section 4 and algorithm 1
        DPG, actors=32, prioritised=True, importance_exponent=1.0, action_gradient_clip=None, critic="categorical",
        atoms=51, layer_norm=True,
    ),
    "qt-opt": dict(  # Kalashnikov et al. 2018, sections 4 and 5, appendix; tensor2robot, research/qtopt
        actors=7, updaters=1_000, learners=10, cem_samples=64, cem_elites=6, cem_iterations=2, gamma=0.9, n_step=1,
        batch=32, loss="cross-entropy", optimiser="sgd", learning_rate=1e-4, momentum=0.9, weight_decay=7e-5,
        polyak=0.9999, target_lag=6_000, online_share=linear(0.01, 0.5), samples_per_insert=0.0,
    ),
    "rainbow": dict(  # Hessel et al. 2018, table 1; 80,000 frames before learning, target every 32,000 frames
        ATARI, actors=1, envs=1, gamma=0.99, batch=32, replay=1_000_000, min_replay=80_000 // 4, learning_rate=6.25e-5,
        optimiser="adam", optimiser_eps=1.5e-4, max_grad_norm=10.0, reduction="mean", n_step=3,
        target_period=32_000 // 4 // 4, reward_clip="sign", double=True, dueling=True, prioritised=True,
        sampler="proportional", priority_exponent=0.5, importance_exponent=linear(0.4, 1), returns="categorical",
        atoms=51,
        v_min=-10.0, v_max=10.0, noisy=True, noisy_sigma=0.5, frame_stack=4, torso="nature", streams=512,
        samples_per_insert=8.0, steps=200_000_000 // 4,
    ),
    "gorila": dict(  # Nair et al. 2015, sections 4 and 5: 1 M updates of epsilon are 4 M steps
        ATARI, actors=100, learners=100, shards=31, optimiser="adagrad", optimiser_eps=1e-8, batch=32, gamma=0.99,
        replay=1_000_000, target_period=60_000, epsilon_start=1.0, epsilon_end=0.1, epsilon_steps=4_000_000,
        torso="nature",
    ),
    "impala": dict(  # Espeholt et al. 2018, section 5 and appendix G, Atari
        ATARI, unroll=20, batch=32, learning_rate=linear(6e-4, 0), optimiser="rmsprop", optimiser_eps=0.01,
        entropy_cost=0.01, value_cost=0.5, gamma=0.99, rho_bar=1.0, c_bar=1.0, trace_lambda=1.0, max_grad_norm=40.0,
        reduction="sum", reward_clip="unit", frame_stack=4, torso="impala-deep", core="none", queue=1,
        steps=200_000_000 // 4,
    ),
    "a3c": dict(  # Mnih et al. 2016, section 4; a3c-unreal sheet, section 3
        actors=16, envs=1, unroll=5, optimiser="rmsprop", optimiser_eps=0.1, rmsprop_decay=0.99, max_grad_norm=40.0,
        entropy_cost=0.01, value_cost=0.5, gamma=0.99, reward_clip="unit", torso="impala-shallow", core_size=256,
    ),
    "async-q": dict(  # the same, section 5.1; 40,000 and 4 M frames of 4 each
        actors=16, envs=1, unroll=5, optimiser_eps=0.1, gamma=0.99, target_period=10_000, epsilon_steps=1_000_000,
        epsilon_start=1.0, epsilon_final=(0.1, 0.01, 0.5), epsilon_odds=(0.4, 0.3, 0.3), reward_clip="unit",
    ),
    "unreal": dict(  # Jaderberg et al. 2017, section 4 and appendix
        actors=32, envs=1, unroll=20, value_cost=0.5, optimiser_eps=0.1, rmsprop_decay=0.99, max_grad_norm=40.0,
        gamma=0.99, core="lstm", core_size=256, last_action_reward=True, replay=2_000, pixel_control_gamma=0.9,
        pixel_cell=4,
        reward_prediction_cost=1.0, value_replay_cost=1.0, reward_clip="unit", torso="impala-shallow",
    ),
    "es": dict(  # Salimans et al. 2017, section 4.1; the authors' configurations/humanoid.json
        pairs=5_000, noise_std=0.02, noise_table=250_000_000, noise_seed=123, optimiser="adam", learning_rate=0.01,
        weight_decay=0.005, shaping="ranks", action_noise=0.01, normalise_obs=True, hidden=(64, 64), activation="tanh",
        cap=2.0, steps=1_000_000_000,
    ),
    "dd-ppo": dict(  # Wijmans et al. 2020, section 5 and appendix; habitat-baselines, ddppo_pointnav.yaml
        envs=4, unroll=128, epochs=2, minibatches=2, clip=0.2, learning_rate=2.5e-4, optimiser_eps=1e-5,
        max_grad_norm=0.2, value_cost=0.5, entropy_cost=0.01, gamma=0.99, gae_lambda=0.95, core="lstm", core_size=512,
        normalise_advantage=False, sync_frac=0.6, min_fraction=0.25, steps=2_500_000_000,
    ),
    "recurrent-ppo": dict(  # Schulman et al. 2017, table 5; Huang et al. 2022, details of the LSTM
        ATARI, actors=1, envs=8, unroll=128, epochs=3, minibatches=4, learning_rate=linear(2.5e-4, 0),
        optimiser_eps=1e-5, clip=linear(0.1, 0), clip_value=False, gamma=0.99, gae_lambda=0.95, value_cost=2.0,
        entropy_cost=0.01, max_grad_norm=0.5, torso="nature", core="lstm", core_size=128, frame_stack=1,
        reward_clip="sign", steps=40_000_000 // 4,
    ),
}  # fmt: skip
MUJOCO = dict(  # Schulman et al. 2017, table 3; Huang et al. 2022, details of continuous actions
    actors=1, envs=1, unroll=2048, epochs=10, minibatches=32, learning_rate=linear(3e-4, 0), optimiser_eps=1e-5,
    clip=0.2, gamma=0.99, gae_lambda=0.95, value_cost=0.5, entropy_cost=0.0, max_grad_norm=0.5, hidden=(64, 64),
    activation="tanh", separate_critic=True, normalise_obs=True, normalise_reward=True, steps=1_000_000,
)  # fmt: skip


@pytest.mark.parametrize(
    "system,preset,values", [*((s, "paper", v) for s, v in PAPER.items()), ("recurrent-ppo", "mujoco", MUJOCO)]
)
def test_paper_presets_hold_the_papers_values(system: str, preset: str, values: dict[str, Any]) -> None:
    cfg = config(system, preset)
    assert {name: getattr(cfg, name) for name in values} == values


@pytest.mark.parametrize(
    "system,expected",
    [
        ("dqn", dict(lr=2.5e-4, decay=0.95, eps=0.01, centred=True, momentum=0.0)),
        ("apex-dqn", dict(lr=6.25e-5, decay=0.95, eps=1.5e-7, centred=True, momentum=0.0)),
        ("r2d2", dict(lr=1e-4, eps=1e-3, betas=(0.9, 0.999))),
        ("r2d3", dict(lr=2e-4, eps=1e-3, betas=(0.9, 0.999))),
        ("apex-dpg", dict(lr=1e-4, eps=1e-8, betas=(0.9, 0.999))),
        ("d4pg", dict(lr=1e-4, eps=1e-8, betas=(0.9, 0.999))),
        ("qt-opt", dict(lr=1e-4, momentum=0.9, weight_decay=7e-5)),
        ("rainbow", dict(lr=6.25e-5, eps=1.5e-4, betas=(0.9, 0.999))),
        ("impala", dict(lr=6e-4, decay=0.99, eps=0.01, centred=False, momentum=0.0)),
        ("recurrent-ppo", dict(eps=1e-5, betas=(0.9, 0.999))),
    ],
)
def test_paper_presets_make_the_papers_optimiser(system: str, expected: dict[str, Any]) -> None:
    """What no field says: decay, centring, momentum."""
    env = "Pendulum-v1" if system in CONTINUOUS else "CartPole-v1"
    one = {"learners": 1} if system == "qt-opt" else {}
    program = load(system).program(config(system, "paper", env=env, torso="mlp", **one))
    (role,) = [r for r in program.roles if r.name == "learner"]

    class End:
        def publish(self, params: Any) -> int:
            return 1

    ctx = Context("learner", 0, 1, 0, 0, Recorder())
    learner = role.make(ctx, **dict.fromkeys(role.ports, End())).learner  # type: ignore[attr-defined]
    assert isinstance(learner, SGDLearner) or system == "recurrent-ppo"
    (group,) = learner.optimiser.param_groups
    assert {name: group[name] for name in expected} == expected


def test_the_paper_learns_every_fourth_step() -> None:
    """A batch of 32 and 8 samples per insert: one update in 4 agent steps."""
    cfg = config("dqn", "paper")
    assert cfg.batch / cfg.samples_per_insert == 4


# ---------------------------------------------------------------------------------- composition
ITEM = {"n": Field((1,), "int64", 0)}


class Count:
    """Puts 1, 2, 3, ..."""

    def __init__(self, ctx: Context, out: Any) -> None:
        self.ctx, self.out, self.n = ctx, out, 0

    def step(self) -> None:
        self.n += 1
        self.out.put({"n": np.array([self.n])})


class Collect:
    """Publishes the sum of what it got."""

    def __init__(self, ctx: Context, inp: Any, params: Any) -> None:
        import torch

        self.ctx, self.inp, self.params, self.total = ctx, inp, params, torch.zeros((), dtype=torch.int64)

    def step(self) -> None:
        self.total = self.total + self.inp.get().items["n"].sum()
        self.params.publish({"total": self.total})
        self.ctx.metrics.count("updates")


class Watch:
    """Reads what the collector publishes."""

    def __init__(self, ctx: Context, params: Any) -> None:
        self.params = params

    def step(self) -> None:
        self.params.latest()


def counting() -> Program:
    p = Program("counting")
    items = p.channel(Channel("items", "queue", ITEM))
    total = p.channel(Channel("total", "params", {"total": Field((), "int64")}))
    p.role("count", Count, out=items.writer())
    p.role("collect", Collect, inp=items.reader(), params=total.writer())
    p.role("watch", Watch, params=total.reader())
    return p


def test_two_programs_compose() -> None:
    both = Program("both")
    both.include(counting(), "left")
    both.include(counting(), "right")
    both.validate()
    assert list(both.channels) == ["left/items", "left/total", "right/items", "right/total"]
    names = [f"{side}/{role}" for side in ("left", "right") for role in ("count", "collect", "watch")]
    assert [role.name for role in both.roles] == names
    assert both.memory() == {f"{side}/{k}": v for side in ("left", "right") for k, v in counting().memory().items()}
    assert "left/count" in draw.text(both) and "right/items" in draw.mermaid(both)
    report = SerialRuntime().launch(both, Launch(seed=0, stop=Stop(updates=8)))
    assert {k: int(v["total"]) for k, v in report.params.items()} == {"left/total": 10, "right/total": 10}


def test_a_system_can_be_included_twice() -> None:
    p = Program("population")
    for member in range(2):
        p.include(load("impala").program(config("impala", "none", actors=1)), f"member{member}")
    p.validate()
    assert len(p.roles) == 4


# ------------------------------------------------------------------------------- wiring mistakes
QUEUE = Channel("c", "queue", ITEM)
STREAM = {
    "obs": Field((4, 2, 3)),
    "action": Field((4, 2), "int64"),
    "reward": Field((4, 2)),
    **{name: Field((4, 2), "bool") for name in ("first", "terminated", "truncated", "valid")},
}
REPLAY = Channel("c", "replay", STREAM, table=TableSpec(100))


def wired(channel: Channel, writers: int = 1, readers: int = 1, **reader: Any) -> Program:
    p = Program("p")
    p.channel(channel)
    if writers:
        p.role("writer", Count, replicas=writers, out=channel.writer())
    if readers:
        p.role("reader", Collect, replicas=readers, inp=channel.reader(**reader))
    return p


Kind = TypeVar("Kind", Channel, Ratio)


def replaced(spec: Kind, **fields: Any) -> Kind:
    return dataclasses.replace(spec, **fields)


def stranger() -> Program:
    p = wired(QUEUE)
    p.role("other", Count, out=Channel("elsewhere", "queue", ITEM).writer())
    return p


def negative() -> Program:
    p = wired(QUEUE)
    p.roles[0] = dataclasses.replace(p.roles[0], replicas=0)
    return p


RATIO = Ratio(min_size=8, samples_per_insert=2.0, slack=16.0)  # 8 items an insert: needs (4 + 2 * 8) / 2 = 10


@pytest.mark.parametrize(
    "make,sentence",
    [
        (negative, r"role 'writer' has 0 replicas, expected at least 1"),
        (stranger, r"port 'out' of role 'other' uses channel 'elsewhere', which is not part"),
        (lambda: wired(QUEUE, writers=0), r"channel 'c' has no writer"),
        (lambda: wired(QUEUE, readers=0), r"channel 'c' has no reader"),
        (lambda: wired(replaced(QUEUE, capacity=0)), r"has capacity 0, expected at least 1"),
        (lambda: wired(replaced(QUEUE, kind="params"), writers=2), r"has 2 writers; parameters have exactly one"),
        (lambda: wired(replaced(QUEUE, capacity=3), count=4), r"holds 3 items for each reader, but .* reads 4"),
        (lambda: wired(QUEUE, readers=2), r"has 2 readers but only 1 writers"),
        (lambda: wired(QUEUE, readers=2, each=True), r"has 2 readers but only 1 writers"),
        (lambda: wired(replaced(REPLAY, table=None)), r"is a replay without a table"),
        (lambda: wired(REPLAY, writers=2, readers=3), r"has 3 readers for 2 writers"),
        (lambda: wired(REPLAY, count=0), r"a batch and a min_size of at least 1, got 0 and 1"),
        (lambda: wired(replaced(REPLAY, ratio=Ratio(samples_per_insert=-1.0))), r"must be positive, got -1"),
        (lambda: wired(replaced(REPLAY, ratio=replaced(RATIO, slack=9.0)), count=4), r"a slack of 9 samples deadlocks"),
    ],
)  # fmt: skip
def test_each_mistake_is_named(make: Callable[[], Program], sentence: str) -> None:
    with pytest.raises(WiringError, match=sentence) as error:
        make().validate()
    assert str(error.value).startswith("p: ")


def test_the_same_programs_without_the_mistake_are_valid() -> None:
    for program in (
        wired(QUEUE), wired(QUEUE, writers=2, readers=2), wired(replaced(QUEUE, capacity=4), count=4),
        wired(replaced(QUEUE, kind="params")), wired(REPLAY), wired(replaced(REPLAY, ratio=RATIO), count=4),
    ):  # fmt: skip
        program.validate()


def test_names_are_used_once() -> None:
    p = wired(QUEUE)
    with pytest.raises(WiringError, match="p: two channels are called 'c'"):
        p.channel(QUEUE)
    with pytest.raises(WiringError, match="p: two roles are called 'writer'"):
        p.role("writer", Count, out=QUEUE.writer())


@pytest.mark.skipif(not fast.ENABLED, reason="what torch does, shoal.fast keeps it from doing")
def test_learners_import_no_machinery_of_compilers() -> None:
    """Which torch does at a call or two that look harmless: 75 MB and a second in each learner, also on images."""
    code = """
import sys
from helpers import config, run
from shoal.systems import load
for system in ("dqn", "apex-dqn", "rainbow", "d4pg", "qt-opt", "impala", "recurrent-ppo"):
    for env in ("toy:point",) if system in ("d4pg", "qt-opt") else ("toy:catch", "CartPole-v1"):
        assert run(load(system).program(config(system, env=env, backend="auto")), 2).updates
        assert not {"sympy", "torch._dynamo"} & sys.modules.keys(), f"{system} on {env}"
"""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    subprocess.run([sys.executable, "-c", code], check=True, timeout=90, env={**os.environ, "PYTHONPATH": path})
