"""Actors whose actions a server chooses: the same unrolls as of actors that choose them by themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from devices import DEVICE
from fakes import Params, ScriptedEnvs, SummingAgent, Writer, context
from noted import noted
from present import present
from tolerance import rounding

import shoal
from shoal.api import ShoalError, UsageError
from shoal.envs import make
from shoal.local.pace import Pace
from shoal.program import Channel
from shoal.roles.actor import ActorRole, unroll_spec
from shoal.roles.inference import ABOUT, LIVES, ServedActorRole, answer_spec, question_spec
from shoal.roles.inference_server import Client, InferenceRole, Loaded, Question, together
from shoal.serial.channels import QueueReader, SerialQueue, SerialWriter
from shoal.serial.divided import DividedQueue, DividedWriter
from shoal.shm.session import Session
from shoal.systems import SYSTEMS, load
from shoal.topology.config import SERVED

SCRIPT = [[(3, "terminated"), (2, "truncated")], [(4, "truncated"), (1, "terminated")], [(2, "terminated truncated")]]
SMALL: dict[str, Any] = dict(envs=3, unroll=6, device="cpu", hidden=(8,), preset=None)
FIELDS: dict[str, dict[str, Any]] = {
    "impala": dict(core="lstm", core_size=8), "impala, no core": {}, "dqn": {}, "apex-dqn": {},
    "rainbow": dict(streams=6, atoms=5), "r2d2": dict(core_size=8),
    "r2d2, zero state": dict(core_size=8, start_state="zero"), "d4pg": dict(env="Pendulum-v1", backend="gymnasium"),
    "apex-dpg": dict(env="Pendulum-v1", backend="gymnasium", random_steps=0),
    "recurrent-ppo": dict(core="gru", core_size=8, minibatches=3),
    "recurrent-ppo, a box": dict(env="Pendulum-v1", backend="gymnasium"),
}  # fmt: skip


class Wires:
    """Questions of ``actors`` and their answers, as the serial runtime has them."""

    def __init__(self, env: Any, spec: Any, envs: int, actors: int, groups: int = 1) -> None:
        self.spec = answer_spec(env, spec, actors, groups)
        asked = Channel("observations", "queue", question_spec(env, envs // groups), LIVES * groups)
        given = Channel("answers", "queue", self.spec, LIVES * groups, divided=1)
        self.questions, self.answers = SerialQueue(asked, actors), DividedQueue(given, 1, actors)
        metrics = context().metrics
        self.asking = [SerialWriter(self.questions, k, metrics) for k in range(actors)]  # type: ignore[arg-type]
        port = asked.reader()
        self.reading = QueueReader(self.questions, port)
        self.answering = DividedWriter(self.answers, [SerialWriter(part, 0, metrics) for part in self.answers.parts])  # type: ignore[arg-type]
        self.hearing = [QueueReader(part, port) for part in self.answers.parts]


def pump(server: Any, *actors: Any, unrolls: int, alone: bool = False) -> None:
    """Step all until every actor has sent so many. alone: no two questions are answered together."""
    while not server.would_wait():
        server.step()
    for _ in range(10_000):
        if all(len(actor.out.items) >= unrolls for actor in actors):
            return
        for actor in actors:
            if actor.answers.ready() and len(actor.out.items) < unrolls:
                actor.step()
            while alone and not server.would_wait():
                server.step()
        while not server.would_wait():
            server.step()
    raise AssertionError("nobody has anything to do")


def same(found: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        for name, array in other.items():
            assert np.array_equal(one[name], array), name


@pytest.mark.parametrize("stack", [1, 2])
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_served_actor_sends_what_one_that_acts_by_itself_does(stream: bool, mode: str, stack: int) -> None:
    """States, values of true last observations, newest frames alone: all of every unroll."""
    extras = dict.fromkeys(("q_taken", "q_max") if stream else ("value",), ((), "float32"))
    env = ScriptedEnvs(SCRIPT, mode, stack)
    spec = unroll_spec(env.spec, 5, len(SCRIPT), extras, {"sum": (1,)}, stream)
    params = Params()
    params.publish({"scale": torch.tensor(2.0)})
    plain: Any = ActorRole(context(seed=11), env, SummingAgent(), Writer(spec), params, spec)
    for _ in range(4):
        plain.step()
    wires = Wires(env.spec, spec, len(SCRIPT), 1)
    server = InferenceRole(
        context("inference"), lambda whose: SummingAgent(), wires.reading, wires.answering, params, wires.spec
    )
    served: Any = ServedActorRole(
        context("actor", seed=11), [ScriptedEnvs(SCRIPT, mode, stack)], wires.asking[0], wires.hearing[0], Writer(spec),
        spec,
    )  # fmt: skip
    served.start()
    pump(server, served, unrolls=4)
    same(served.out.items, plain.out.items)
    assert served.out.versions == plain.out.versions == [1] * 4
    assert served.ctx.metrics.totals == plain.ctx.metrics.totals


@pytest.mark.parametrize("case", FIELDS)
def test_a_server_chooses_the_actions_that_actors_of_a_system_would_bit_for_bit(case: str) -> None:
    """Of each of two actors: exploration, recurrent states, values and policies beside the actions."""
    system = load(case.partition(",")[0])
    cfg = system.Config(**{**{k: v for k, v in SMALL.items() if k != "preset"}, "actors": 2, **FIELDS[case]})
    program = system.program(cfg)
    spec = next(port.channel.spec for port in program.roles[0].ports.values() if port.direction == "write")
    torch.manual_seed(5)
    network: Any = system.network(cfg)  # type: ignore[attr-defined]
    params = Params()
    params.published = [network.state_dict()]
    params.version = 1
    agent: Any = system.agent
    wires, plain, served = Wires(cfg.env_spec(), spec, cfg.envs, 2), [], []
    for k in range(2):
        ctx = context("actor", k, 2, seed=1_000 * k + 7)
        made = make(cfg.env, cfg.envs, cfg), make(cfg.env, cfg.envs, cfg)
        plain.append(ActorRole(ctx, made[0], agent(cfg, ctx.seed, ctx), Writer(spec), params, spec))
        served.append(ServedActorRole(ctx, [made[1]], wires.asking[k], wires.hearing[k], Writer(spec), spec))
    server = InferenceRole(
        context("inference"), lambda whose: agent(cfg, whose.seed, whose), wires.reading, wires.answering, params,
        wires.spec,
    )  # fmt: skip
    for actor in served:
        actor.start()
        server.step()
    pump(server, *served, unrolls=4, alone=True)
    for one, other in zip(served, plain, strict=True):
        for _ in range(4):
            other.step()
        same(one.out.items, other.out.items)  # type: ignore[attr-defined]


@pytest.mark.parametrize("case", FIELDS)
def test_two_groups_of_an_actors_environments_are_acted_for_as_two_actors_of_half_as_many_are(case: str) -> None:
    """Bit for bit, in one unroll: exploration at the rungs of the whole ladder, seeds, recurrent states, values."""
    system = load(case.partition(",")[0])
    cfg = system.Config(**{**{k: v for k, v in SMALL.items() if k != "preset"}, "actors": 2, **FIELDS[case], "envs": 6})
    half = replace(cfg, envs=3)
    torch.manual_seed(5)
    params = Params()
    params.publish(system.network(cfg).state_dict())  # type: ignore[attr-defined]
    agent: Any = system.agent
    spec, halves = (
        next(port.channel.spec for port in system.program(c).roles[0].ports.values() if port.direction == "write")
        for c in (cfg, half)
    )
    wires, served, plain = Wires(cfg.env_spec(), spec, 6, 2, 2), list[ServedActorRole](), list[Any]()
    for k in range(2):
        made = [make(cfg.env, 3, cfg) for _ in range(2)]
        ctx = context("actor", k, 2, seed=1_000 * k + 7)
        served.append(ServedActorRole(ctx, made, wires.asking[k], wires.hearing[k], Writer(spec), spec))
        for g in range(2):
            ctx = context("actor", 2 * k + g, 4, seed=1_000 * k + 7 + 3 * g)
            env, acts = make(cfg.env, 3, cfg), agent(half, ctx.seed, ctx)
            plain.append(ActorRole(ctx, env, acts, Writer(halves), params, halves))
    server = InferenceRole(
        context("inference"), lambda whose: agent(half, whose.seed, whose), wires.reading, wires.answering, params,
        wires.spec, groups=2,
    )  # fmt: skip
    for actor in served:
        actor.start()
        pump(server, unrolls=0)
    pump(server, *served, unrolls=4, alone=True)
    for one in plain:
        for _ in range(4):
            one.step()
    for k, actor in enumerate(served):
        sent = cast(Writer, actor.out).items
        for found, *parts in zip(sent, *(other.out.items for other in plain[2 * k : 2 * k + 2]), strict=True):
            for name, array in found.items():
                axis = 0 if name.startswith("state/") and halves["first"].shape[0] > cfg.unroll else 1
                assert np.array_equal(array, np.concatenate([part[name] for part in parts], axis)), name


def test_a_new_life_of_an_actor_begins_all_its_groups_at_whatever_answer_the_last_one_had_asked_for() -> None:
    """Also where one group had ended its part of an unroll, and had no question under way."""
    made = TwoGroups()
    before, after, fresh = made.actor(11), made.actor(21), made.actor(31)
    before.start()
    while not before.groups[0].done:
        pump(made.server, unrolls=0)
        before.step()
    assert not before.groups[1].done, "the last answer of the unroll is under way"
    pump(made.server, unrolls=0)
    after.load_state_dict(before.state_dict())
    pump(made.server, after, unrolls=2)
    fresh.start()
    pump(made.server, fresh, unrolls=2)
    same(after.out.items, fresh.out.items)


class TwoGroups:
    """An actor with two groups, and its server."""

    def __init__(self) -> None:
        env = ScriptedEnvs(SCRIPT)
        self.spec = unroll_spec(env.spec, 5, 2 * len(SCRIPT), {"value": ((), "float32")}, {"sum": (1,)})
        self.wires, self.params = Wires(env.spec, self.spec, 2 * len(SCRIPT), 1, 2), Params()
        self.params.publish({"scale": torch.tensor(2.0)})
        self.server = InferenceRole(
            context("inference"), lambda whose: SummingAgent(), self.wires.reading, self.wires.answering, self.params,
            self.wires.spec, groups=2,
        )  # fmt: skip

    def actor(self, seed: int) -> Any:
        envs = [ScriptedEnvs(SCRIPT), ScriptedEnvs(SCRIPT)]
        asking, hearing = self.wires.asking[0], self.wires.hearing[0]
        return ServedActorRole(context("actor", seed=seed), envs, asking, hearing, Writer(self.spec), self.spec)


def test_answers_to_an_earlier_life_are_told_apart_where_both_lives_are_at_their_first_question() -> None:
    made = TwoGroups()
    made.actor(11).start()
    pump(made.server, unrolls=0)
    after, fresh = made.actor(21), made.actor(31)
    after.load_state_dict({})
    after.step()
    after.step()
    assert [(group.number, group.t) for group in after.groups] == [(0, 0), (0, 0)], "both answers were to the last life"
    pump(made.server, after, unrolls=2)
    fresh.start()
    pump(made.server, fresh, unrolls=2)
    same(after.out.items, fresh.out.items)


def test_an_unroll_of_two_groups_has_the_older_version_and_counts_the_steps_of_both() -> None:
    made = TwoGroups()
    role = made.actor(11)
    role.start()
    made.server.step()
    made.params.publish({"scale": torch.tensor(3.0)})
    pump(made.server, role, unrolls=1)
    assert [group.versions[0] for group in role.groups] != [1, 1] and role.out.versions == [1]
    valid = int(role.out.items[0]["valid"].sum())
    assert role.ctx.metrics.totals["env_steps"] == valid
    assert role.ctx.metrics.totals["actions"] == 5 * 2 * len(SCRIPT)
    told: list[int] = []
    role.questions.put = lambda items: told.append(int(items[ABOUT][5]))
    role.groups[0].begin()
    assert told == [5 * len(SCRIPT)], "the actions of one group"


def test_the_agent_of_a_group_explores_for_as_many_environments_as_the_group_has(tmp_path: Path) -> None:
    run = shoal.train(
        "apex-dqn", env="CartPole-v1", preset="none", runtime="serial", actors=1, envs=4, unroll=8, hidden=(8,),
        inference="server", double_buffer="on", steps=200, min_replay=32, batch=8, run_dir=tmp_path / "r", quiet=True,
    )  # fmt: skip
    assert present(run.report).steps >= 200


def test_whole_games_stay_in_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load("impala").Config
    monkeypatch.setattr(config, "env_spec", lambda cfg: SimpleNamespace(agents=2))
    made = {envs: config(inference="server", envs=envs, double_buffer="auto", device="cuda") for envs in (2, 4, 6, 8)}
    assert {envs: cfg.env_groups() for envs, cfg in made.items()} == {2: 1, 4: 2, 6: 1, 8: 2}


@pytest.mark.parametrize(
    ("found", "fields", "groups"),
    [
        ("cuda", dict(envs=4), 2), ("cuda", dict(envs=3), 1), ("cuda", dict(envs=4, double_buffer="off"), 1),
        ("cpu", dict(envs=4), 1), ("cpu", dict(envs=4, double_buffer="on"), 2),
    ],
)  # fmt: skip
def test_an_actor_has_two_groups_where_the_server_is_on_a_gpu_and_its_environments_can_be_halved(
    found: str, fields: dict[str, Any], groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: found == "cuda")
    assert load("impala").Config(inference="server", **fields).env_groups() == groups


def test_environments_that_cannot_be_halved_are_refused_and_without_a_server_a_remark_says_that_nothing_is() -> None:
    with pytest.raises(UsageError, match=r"double_buffer is on, and envs \(3 of each actor\) cannot be halved: give 4"):
        load("impala").Config(envs=3, double_buffer="on").env_groups()
    assert any("double_buffer does nothing" in line for line in load("impala").Config(double_buffer="on").remarks())


@pytest.mark.parametrize("case", FIELDS)
def test_questions_answered_together_are_answered_as_each_alone_but_for_rounding(case: str) -> None:
    """Of three actors, one of which has just begun: random numbers, recurrent states and exploration are each its own;
    the order of a sum in float32 may depend on the rows of a batch, so the bound is that of a thousand terms."""
    system = load(case.partition(",")[0])
    cfg = system.Config(**{**{k: v for k, v in SMALL.items() if k != "preset"}, "actors": 3, **FIELDS[case]})
    env, agent = cfg.env_spec(), cast(Any, system).agent
    torch.manual_seed(5)
    params = system.network(cfg).state_dict()  # type: ignore[attr-defined]
    random = np.random.default_rng(3)

    def questions(shared: bool) -> list[Question]:
        made: list[Question] = []
        for k in range(3):
            ctx = context("actor", k, 3, seed=1_000 * k + 7)
            acts = agent(cfg, ctx.seed, ctx)
            if shared and made:
                acts.share(made[0].client.agent)
            else:
                acts.load(params, 1)
            state = {
                name: torch.from_numpy(np.random.default_rng(k).random(tuple(v.shape), np.float32))
                for name, v in acts.initial_state(cfg.envs).items()
            }
            client = Client(0, acts, Loaded(acts), state)
            made.append(Question(k, 0, client, 0, "act", -1, seen[k], np.arange(cfg.envs) == k))
        return made

    seen = [
        {k: random.integers(2, size=(cfg.envs, *leaf.shape)).astype(leaf.dtype) for k, leaf in env.observations.items()}
        for _ in range(3)
    ]
    both = together(questions(shared=True))
    for k, question in enumerate(questions(shared=False)):
        alone, rows = together([question]), slice(k * cfg.envs, (k + 1) * cfg.envs)
        assert both.extras.keys() == alone.extras.keys() and both.state.keys() == alone.state.keys()
        for name, array in (alone.extras | {k: v.numpy() for k, v in alone.state.items()} | {"": alone.action}).items():
            found = both.action if not name else both.extras.get(name)
            found = both.state[name].numpy() if found is None else found
            bound = 0 if array.dtype == np.int64 else rounding(1_000, 1 + np.abs(array))
            assert (np.abs(found[rows] - array) <= bound).all(), name


def test_all_that_wait_are_answered_in_one_pass_up_to_a_size() -> None:
    cfg = load("dqn").Config(env="CartPole-v1", envs=3, unroll=6, device="cpu", hidden=(8,), actors=4)
    system: Any = load("dqn")
    program = system.program(cfg)
    spec = next(port.channel.spec for port in program.roles[0].ports.values() if port.direction == "write")
    params, wires = Params(), Wires(cfg.env_spec(), spec, cfg.envs, 4)
    params.publish(system.network(cfg).state_dict())
    passes: list[int] = []

    class Counted(system.QAgent):
        def respond(self, obs: Any, first: Any, state: Any, drawn: Any) -> Any:
            passes.append(len(first))
            return super().respond(obs, first, state, drawn)

    server = InferenceRole(
        context("inference"), lambda whose: Counted(system.network(cfg), 0.1, whose.seed), wires.reading,
        wires.answering, params, wires.spec,
    )  # fmt: skip
    for k in range(4):
        made = make(cfg.env, cfg.envs, cfg)
        ServedActorRole(
            context("actor", k, 4, seed=k), [made], wires.asking[k], wires.hearing[k], Writer(spec), spec
        ).start()
    server.most = 3
    server.step()
    server.step()
    assert passes == [9, 3]
    assert all(reader.ready() for reader in wires.hearing) and server.would_wait()
    owners = {id(client.agent.nets) for client in server.clients.values()}  # type: ignore[attr-defined]
    assert len(owners) == 1, "one copy of the network serves all"
    paced = Pace(cast(Session, None), server, background=False)
    assert paced.ready(), "where steps wait, nothing rests before one: a question is answered when it comes"


@pytest.mark.cuda
@pytest.mark.parametrize("case", ["impala", "dqn", "rainbow", "r2d2", "d4pg", "recurrent-ppo"])
def test_a_server_answers_on_its_device_what_it_would_on_the_cpu_but_for_rounding(case: str) -> None:
    """In float32; parameters come from the host, recurrent states stay on the device, answers go to the host."""
    system: Any = load(case)
    cfg = system.Config(**{**{k: v for k, v in SMALL.items() if k != "preset"}, "actors": 2, **FIELDS[case]})
    program = system.program(cfg)
    spec = next(port.channel.spec for port in program.roles[0].ports.values() if port.direction == "write")
    torch.manual_seed(5)
    params = Params()
    params.publish(system.network(cfg).state_dict())
    answers, held = [], []
    for device in ("cpu", DEVICE):
        wires = Wires(cfg.env_spec(), spec, cfg.envs, 2)
        server = InferenceRole(
            context("inference"), lambda whose: system.agent(cfg, whose.seed, whose), wires.reading, wires.answering,
            params, wires.spec, device=device, precision="fp32",
        )  # fmt: skip
        for k in range(2):
            ctx, made = context("actor", k, 2, seed=k), make(cfg.env, cfg.envs, cfg)
            asking = ServedActorRole(ctx, [made], wires.asking[k], wires.hearing[k], Writer(spec), spec)
            asking.start()
        server.step()
        assert all(p.device.type == torch.device(device).type for p in server.clients[1, 0].agent.nets.parameters())  # type: ignore[attr-defined]
        held.append([v.device.type for v in server.clients[1, 0].state.values()])
        answers.append([{k: v.numpy().copy() for k, v in reader.get().items.items()} for reader in wires.hearing])
    assert held[1] == [torch.device(DEVICE).type] * len(held[0])
    for here, there in zip(*answers, strict=True):
        for name, array in here.items():
            bound = 0 if array.dtype == np.int64 else rounding(1_000, 1 + np.abs(array))
            assert (np.abs(there[name] - array) <= bound).all(), name


def test_in_lockstep_an_unrolls_first_actions_wait_for_parameters_newer_than_those_of_the_last() -> None:
    """The others of an unroll do not, nor do other actors that are not so far; and the serial runtime is told."""
    env = ScriptedEnvs(SCRIPT)
    spec = unroll_spec(env.spec, 3, len(SCRIPT), {"value": ((), "float32")}, {"sum": (1,)})
    wires, params = Wires(env.spec, spec, len(SCRIPT), 2), Params()
    params.publish({"scale": torch.tensor(2.0)})
    server = InferenceRole(
        context("inference"), lambda whose: SummingAgent(), wires.reading, wires.answering, params, wires.spec
    )
    actors: list[Any] = [
        ServedActorRole(
            context("actor", k, 2, seed=k), [ScriptedEnvs(SCRIPT)], wires.asking[k], wires.hearing[k], Writer(spec),
            spec, lockstep=True,
        )
        for k in range(2)
    ]  # fmt: skip
    for actor in actors:
        actor.start()
    pump(server, actors[0], unrolls=1)
    assert actors[0].groups[0].number == 4 and server.would_wait(), "its next question waits"
    pump(server, actors[1], unrolls=1)
    assert server.would_wait() and not any(actor.answers.ready() for actor in actors)
    server.step()  # what a server of its own process does: it looks again a little later
    params.publish({"scale": torch.tensor(3.0)})
    assert not server.would_wait()
    pump(server, *actors, unrolls=2)
    assert [actor.out.versions for actor in actors] == [[1, 2], [1, 2]]


@pytest.mark.parametrize(
    ("found", "fields", "where"),
    [
        ("cuda", dict(env="toy:catch"), "server"), ("cpu", dict(env="toy:catch"), "actor"),
        ("cuda", {}, "actor"), ("cuda", dict(core="lstm"), "server"), ("cuda", dict(hidden=(512,)), "server"),
        ("cuda", dict(core="lstm", inference="actor"), "actor"), ("cpu", dict(inference="server"), "server"),
    ],
)  # fmt: skip
def test_auto_lets_a_server_act_where_there_is_a_gpu_and_a_network_worth_it(
    found: str, fields: dict[str, Any], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: found == "cuda")
    cfg = load("impala").Config(**fields)
    assert cfg.acts_by_server() == (where == "server")
    told = [line for line in cfg.remarks() if "inference server" in line]
    assert bool(told) == (where == "server" and cfg.inference == "auto")
    assert not load("a3c").Config(device="cpu").acts_by_server()


def served_alone(seed: int = 11) -> tuple[Any, Any, Any]:
    env = ScriptedEnvs(SCRIPT)
    spec = unroll_spec(env.spec, 5, len(SCRIPT), {"value": ((), "float32")}, {"sum": (1,)})
    wires, params = Wires(env.spec, spec, len(SCRIPT), 1), Params()
    params.publish({"scale": torch.tensor(2.0)})

    def server(generation: int) -> InferenceRole:
        ctx = context("inference", seed=4)
        object.__setattr__(ctx, "generation", generation)
        return InferenceRole(ctx, lambda whose: SummingAgent(), wires.reading, wires.answering, params, wires.spec)

    def actor(seed: int) -> Any:
        return ServedActorRole(
            context("actor", seed=seed),
            [ScriptedEnvs(SCRIPT)],
            wires.asking[0],
            wires.hearing[0],
            Writer(spec),
            spec,
        )

    return actor, server, params


def test_what_replaces_a_server_draws_other_numbers_for_the_same_life_of_an_actor() -> None:
    seeds: list[int] = []
    for generation in (0, 1, 0):
        actor, server, _ = served_alone()
        serving, role = server(generation), actor(11)
        serving.agent = lambda whose: noted(seeds, whose.seed, SummingAgent())
        role.start()
        serving.step()
    assert seeds[0] == seeds[2] == 11 and seeds[1] not in (11, 4)


def test_between_two_unrolls_nothing_of_the_last_is_saved() -> None:
    env = ScriptedEnvs(SCRIPT)
    spec = unroll_spec(env.spec, 5, len(SCRIPT), {"value": ((), "float32")}, {"sum": (1,)})
    wires, params, ctx = Wires(env.spec, spec, len(SCRIPT), 1), Params(), context("actor", seed=11)
    params.publish({"scale": torch.tensor(2.0)})
    object.__setattr__(ctx, "exact", True)
    role: Any = ServedActorRole(ctx, [env], wires.asking[0], wires.hearing[0], Writer(spec), spec)
    serving = InferenceRole(
        context("inference"), lambda whose: SummingAgent(), wires.reading, wires.answering, params, wires.spec
    )
    role.start()
    pump(serving, role, unrolls=1)
    assert role.state_dict()["unroll"] is None
    role.step()
    assert role.state_dict()["unroll"].keys() == spec.keys()


def test_an_actor_whose_recurrent_states_died_with_the_server_begins_anew() -> None:
    actor, server, _ = served_alone()
    role = actor(11)
    role.start()
    pump(server(0), role, unrolls=1)
    server_2 = server(1)
    with pytest.raises(ShoalError, match="the recurrent states are lost"):
        pump(server_2, role, unrolls=3)
    successor = actor(12)
    successor.start()
    pump(server_2, successor, unrolls=3)
    assert successor.out.items[0]["state/sum"].tolist() == [[50.0]] * 3, "as every episode begins"


def test_a_successor_is_given_nothing_that_its_predecessor_asked_for() -> None:
    actor, server, _ = served_alone()
    first, again, serving = actor(11), actor(12), server(0)
    first.start()
    again.start()
    pump(serving, again, unrolls=2)
    fresh, alone, _ = served_alone()
    wanted = fresh(12)
    wanted.start()
    pump(alone(0), wanted, unrolls=2)
    same(again.out.items, wanted.out.items)
    assert list(serving.clients) == [(0, 0)] and serving.clients[0, 0].life == 12


def test_an_unroll_has_the_version_of_its_first_actions() -> None:
    actor, server, params = served_alone()
    role, serving = actor(11), server(0)
    role.start()
    serving.step()
    for _ in range(3):
        role.step()
        serving.step()
    params.publish({"scale": torch.tensor(3.0)})
    pump(serving, role, unrolls=2)
    assert role.out.versions == [1, 2]


def test_a_question_says_how_many_actions_an_actor_has_taken_in_all_its_lives() -> None:
    actor, server, _ = served_alone()
    role = actor(11)
    role.ctx.counts["actions"] = 400
    role.start()
    pump(server(0), role, unrolls=1)
    asked = role.questions.target.queues[0] or role.answers.queue.queues[0]
    assert asked
    told = []
    role.questions.put = lambda items: told.append(int(items[ABOUT][5]))
    role.groups[0].begin()
    assert told == [400 + 5 * len(SCRIPT)]


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_has_an_inference_server_or_refuses_it_and_names_those_that_have(name: str) -> None:
    config = load(name).Config
    assert config.has_server == (name in SERVED)
    if name not in SERVED:
        with pytest.raises(
            UsageError, match=f"{name} has no inference server.*impala, recurrent-ppo, dqn.* and d4pg have one"
        ):
            config(inference="server")
