"""QT-Opt: the labels, the two target networks, the roles between replay and learner, and the worked numbers of its
sheet."""

from __future__ import annotations

import copy
import math
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Snapshots, config, run, spy
from torch import Tensor

from shoal import linear
from shoal.api import Action, Batch, Context, EnvSpec, Observation, UsageError
from shoal.learning.differentiate import differentiate
from shoal.local.runtime import LocalRuntime
from shoal.nets.cem_network import CEMNetwork, Search
from shoal.program import Program
from shoal.runtime.launch import Launch, Stop
from shoal.systems import qt_opt
from shoal.systems.qt_opt.rule import Bellman, CEMAgent, LabelledQ, Offline

ENV = EnvSpec("test", {"obs": Observation((3,), "float32")}, Action("continuous", low=(-1.0,) * 2, high=(1.0,) * 2))
POINT: dict[str, Any] = {"env": "toy:point", "backend": "auto"}


def nets(bounded: bool = False, seed: int = 0) -> CEMNetwork:
    torch.manual_seed(seed)
    return CEMNetwork(ENV, Search(16, 4, 2, 0.01), bounded=bounded, hidden=(8, 8))


def transitions(rows: int = 5) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(1)
    return {
        "obs": torch.randn(rows, 3, generator=rng), "next/obs": torch.randn(rows, 3, generator=rng),
        "action": torch.rand(rows, 2, generator=rng) * 2 - 1,
        "reward": torch.rand(rows, generator=rng) - 0.5, "discount": torch.full((rows,), 0.9),
    }  # fmt: skip


# ----------------------------------------------------------------------------------------- network
def test_the_encoding_of_a_state_serves_all_its_actions() -> None:
    """``critic_outputs`` of an encoding is the critic of observation and action side by side, which is what learns."""
    q, items = nets(), transitions()
    with torch.no_grad():
        actions = torch.rand(5, 7, 2) * 2 - 1
        found = q.critic_outputs(q.encode({"obs": items["obs"]}), actions)
        whole = q.critic(items["obs"].repeat_interleave(7, 0), actions.flatten(0, 1)).view(5, 7)
        assert found.shape == (5, 7)
        torch.testing.assert_close(found, whole)
        taken = q.critic_outputs(q.encode({"obs": items["obs"]}), items["action"].unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(q.outputs(items).values.detach(), taken)


def test_the_state_is_encoded_once_and_two_searches_are_all_that_a_label_costs() -> None:
    """qt-opt.md 4.8: of each network one encoding; of the first 2 x N actions, of the second one."""
    seen: list[tuple[str, tuple[int, ...]]] = []
    bellman = Bellman(nets(), 0)
    for name, net in (("first", bellman.first), ("second", bellman.second)):
        encode, outputs = net.encode, net.critic_outputs

        def encoded(obs: Any, name: str = name, encode: Any = encode) -> Tensor:
            seen.append((name, tuple(obs["obs"].shape)))
            return encode(obs)

        def counted(x: Tensor, actions: Tensor, name: str = name, outputs: Any = outputs) -> Tensor:
            seen.append((name, tuple(actions.shape)))
            return outputs(x, actions)

        net.encode, net.critic_outputs = encoded, counted  # type: ignore[method-assign, assignment]
    bellman.targets(transitions())
    search = [("first", (5, 16, 2))] * 2
    assert sorted(seen) == sorted([("first", (5, 3)), *search, ("second", (5, 3)), ("second", (5, 1, 2))])


@pytest.mark.parametrize("low, high", [((-1.0,), (1.0,)), ((-1.0, 0.0), (1.0, 0.0))])
def test_actions_stay_in_the_box(low: tuple[float, ...], high: tuple[float, ...]) -> None:
    """Also where one side has no length, however much noise there is; a greedy agent repeats itself."""
    env = replace(ENV, action=Action("continuous", low=low, high=high))
    agent = CEMAgent(CEMNetwork(env, Search(16, 4, 2), hidden=(8,)), epsilon=0.5, noise=3.0, seed=0)
    obs, first = {"obs": np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)}, np.zeros(50, bool)
    drawn = agent.act(obs, first, {}).action
    assert (drawn >= np.array(low, np.float32)).all() and (drawn <= np.array(high, np.float32)).all()
    one, other = (agent.act(obs, first, {}, greedy=True).action for _ in range(2))
    assert np.array_equal(one, other) and one.dtype == np.float32


def test_it_explores_as_often_as_it_is_told() -> None:
    obs, first, q = {"obs": np.zeros((4_000, 3), np.float32)}, np.zeros(4_000, bool), CEMNetwork(ENV, Search(64, 6, 4))
    q.encode = lambda obs: torch.zeros(len(obs["obs"]), 1)  # type: ignore[method-assign]
    q.critic_outputs = lambda encoded, actions: actions.sum(-1)  # type: ignore[method-assign]
    act = CEMAgent(q, epsilon=0.25, noise=0.0, seed=0).act(obs, first, {}).action
    share = float((act < 0.9).any(1).mean())
    assert share == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("noise", [0.2, 0.05])
def test_actions_that_are_not_drawn_at_random_have_noise_of_its_deviation_in_half_boxes(noise: float) -> None:
    q = CEMNetwork(ENV, Search(16, 4, 2), hidden=(8,))
    middle = torch.full((4_000, 2), 0.1)
    best = lambda encoded, drawn=None: SimpleNamespace(points=middle)  # noqa: E731
    q.best = best  # type: ignore[method-assign, assignment]
    obs, first = {"obs": np.zeros((4_000, 3), np.float32)}, np.zeros(4_000, bool)
    added = CEMAgent(q, epsilon=0.0, noise=noise, seed=0).act(obs, first, {}).action - 0.1
    assert added.mean() == pytest.approx(0.0, abs=5 * noise / math.sqrt(8_000))
    assert added.std() == pytest.approx(noise, rel=5 / math.sqrt(2 * 8_000))


# ------------------------------------------------------------------------------------------ labels
class Said(Bellman):
    """Both target networks say the same of every action."""

    def __init__(self, one: float, other: float) -> None:
        super().__init__(nets(bounded=True), 0)
        for net, value in ((self.first, one), (self.second, other)):
            logit = float(np.log(value / (1 - value)))

            def fixed(encoded: Tensor, actions: Tensor, logit: float = logit) -> Tensor:
                return torch.full((len(encoded), actions.shape[1]), logit)

            net.critic_outputs = fixed  # type: ignore[method-assign]


def test_item_1() -> None:
    """qt-opt.md 4.1: r = -.05, gamma = .9, Q1 = .8, Q2 = .7 -> .58 (and .67 of the first alone); success -> 1."""
    items = {**transitions(2), "reward": torch.tensor([-0.05, 1.0]), "discount": torch.tensor([0.9, 0.0])}
    target, metrics = Said(0.8, 0.7).targets(items)
    assert target.tolist() == pytest.approx([0.58, 1.0], abs=1e-6)
    assert float(metrics["target_disagreement"]) == pytest.approx(0.1, abs=1e-6)
    assert Said(0.8, 0.8).targets(items)[0][0].item() == pytest.approx(0.67, abs=1e-6)


def test_labels_are_clipped_where_returns_lie_in_the_unit_interval() -> None:
    items = {**transitions(4), "reward": torch.tensor([-0.05, -1.0, 0.9, 0.0]), "discount": torch.full((4,), 0.9)}
    target, metrics = Said(0.5, 0.5).targets(items)
    assert target.tolist() == pytest.approx([0.4, 0.0, 1.0, 0.45], abs=1e-6)
    assert float(metrics["clipped_labels"]) == 0.5


def test_item_2() -> None:
    """qt-opt.md 4.2: label .58 and value .6: a loss of .681121, whose gradient at the logit is .02."""
    q = nets(bounded=True)
    cfg = config("qt-opt", loss="cross-entropy", **POINT)
    algorithm = LabelledQ(cfg, q)
    logit = torch.tensor([float(np.log(0.6 / 0.4))], requires_grad=True)
    batch = algorithm.prepare(Batch({"target": torch.tensor([0.58])}))
    loss, update = algorithm.loss(logit, batch)
    loss.backward()
    floor = -(0.58 * math.log(0.58) + 0.42 * math.log(0.42))
    assert floor == pytest.approx(0.680292, abs=1e-6) and loss.item() > floor
    assert loss.item() == pytest.approx(0.681121, abs=1e-6) and logit.grad is not None
    assert logit.grad.item() == pytest.approx(0.02, abs=1e-6)
    assert float(update.metrics["q_mean"]) == pytest.approx(0.6) and float(update.metrics["td_error"]) == pytest.approx(
        0.02
    )


@pytest.mark.parametrize("bounded", [False, True])
def test_item_7(bounded: bool) -> None:
    """qt-opt.md 4.7: no label is above that of either network alone, and with one network it is the plain target; the
    action is chosen once, by the first."""
    items, one, other = transitions(64), nets(bounded), nets(bounded, seed=3)
    with torch.no_grad():
        for network in (one, other):
            for parameter in network.critic.parameters():
                parameter.mul_(3.0)

    def labels(second: CEMNetwork) -> Tensor:
        bellman = Bellman(copy.deepcopy(one), 5)
        bellman.load(None, second.state_dict())
        return bellman.targets(items)[0]

    plain, both = labels(one), labels(other)
    rng = torch.Generator().manual_seed(5)
    with torch.no_grad():
        best = one.best(one.encode({"obs": items["next/obs"]}), one.draw(64, rng))
        second = other.value(
            other.critic_outputs(other.encode({"obs": items["next/obs"]}), best.points[:, None]).squeeze(1)
        )
    limit = (lambda x: x.clamp(0, 1)) if bounded else (lambda x: x)
    torch.testing.assert_close(plain, limit(items["reward"] + items["discount"] * one.value(best.scores)))
    torch.testing.assert_close(
        both, limit(items["reward"] + items["discount"] * torch.minimum(one.value(best.scores), second))
    )
    assert (both <= plain + 1e-6).all() and (both < plain - 1e-4).any()


def test_with_every_action_tried_and_one_target_it_is_q_learning() -> None:
    """qt-opt.md 6 and the index: enumerated actions and equal target networks are DQN's target."""
    q, items = nets(), transitions(6)
    grid = torch.linspace(-1, 1, 4)
    every = torch.cartesian_prod(grid, grid).view(1, 1, 16, 2)
    bellman = Bellman(copy.deepcopy(q), 0)
    bellman.first.draw = lambda rows, generator: every  # type: ignore[method-assign]
    with torch.no_grad():
        values = q.critic_outputs(q.encode({"obs": items["next/obs"]}), every[0])
    expected = items["reward"] + items["discount"] * values.amax(-1)
    torch.testing.assert_close(bellman.targets(items)[0], expected)


# -------------------------------------------------------------------------------- target networks
def test_the_average_and_its_lagged_copy() -> None:
    """The average moves by 1 - polyak; the second network is the first as it was 24 updates ago, in strides of two."""
    cfg = config("qt-opt", polyak=0.9, target_lag=24, **POINT)
    torch.manual_seed(0)
    q = qt_opt.network(cfg)
    algorithm, (name, weight) = LabelledQ(cfg, q), next(iter(q.named_parameters()))
    expected, past = weight.detach().double().clone(), []
    for step in range(1, 61):
        past.append(expected.clone())
        with torch.no_grad():
            weight.add_(0.1)
        expected = 0.9 * expected + 0.1 * weight.detach().double()
        algorithm.after_step(step)
        torch.testing.assert_close(algorithm.params()[name].double(), expected, rtol=1e-5, atol=1e-5)
        if step % 2 == 0:
            was = past[step - 24] if step >= 24 else past[0]
            torch.testing.assert_close(algorithm.averages.kept[0][name].double(), was, rtol=1e-5, atol=1e-5)


def test_item_4() -> None:
    """qt-opt.md 4.4: of what the average was, .9999^6000 = .548795 is left after 6,000 updates; half after 6,931."""
    q = qt_opt.network(cfg := config("qt-opt", polyak=0.9999, target_lag=0, **POINT))
    algorithm, (name, weight) = LabelledQ(cfg, q), next(iter(q.named_parameters()))
    began = weight.detach().clone()
    with torch.no_grad():
        weight.zero_()
    for step in range(1, 6_932):
        algorithm.after_step(step)
        if step in (6_000, 6_931):
            left = (algorithm.params()[name] * began).sum() / began.square().sum()
            assert left.item() == pytest.approx(0.548795 if step == 6_000 else 0.5, abs=1e-3)


def test_without_a_lag_both_target_networks_are_one() -> None:
    cfg = config("qt-opt", target_lag=0, **POINT)
    algorithm = LabelledQ(cfg, qt_opt.network(cfg))
    for step in range(1, 4):
        with torch.no_grad():
            for parameter in algorithm.nets.parameters():
                parameter.add_(1.0)
        algorithm.after_step(step)
        assert all(torch.equal(algorithm.averages.kept[0][k], v) for k, v in algorithm.params().items())


# ------------------------------------------------------------------------------------------- roles
def test_the_learner_learns_what_updaters_labelled_with_what_it_published() -> None:
    """Every label that is learned from is one that was made, with the parameters of the step that it names; the learner
    works none out again."""
    made: set[tuple[float, ...]] = set()
    learned: list[tuple[float, ...]] = []
    seen = Snapshots()
    cfg = config("qt-opt", updaters=2, actors=2, label_uses=2.0, labels=64, **POINT)
    program = qt_opt.program(cfg)

    def watch(role: Any) -> None:
        label = role.labeller.label

        def labelled(batch: Batch, step: int) -> Any:
            out, metrics = label(batch, step)
            made.update(map(tuple, np.column_stack([out[k] for k in ("obs", "action", "step", "target")])))
            return out, metrics

        role.labeller.label = labelled

    def listen(role: Any) -> None:
        get = role.batches.get

        def got() -> Batch:
            batch: Batch = get()
            learned.extend(
                map(tuple, np.column_stack([batch.items[k].numpy() for k in ("obs", "action", "step", "target")]))
            )
            assert (batch.items["step"] <= role.learner.step).all()
            return batch

        role.batches.get = got

    spy(program, "updater", watch)
    spy(program, "learner", listen)
    report = run(program, 60, observers=[seen])
    assert report.updates == 60 and len(learned) == 60 * cfg.batch
    assert set(learned) <= made
    assert report.params.keys() == {"params", "lagged"}
    assert any(not torch.equal(report.params["params"][k], v) for k, v in report.params["lagged"].items())
    ages = {k for snapshot in seen.seen for k in snapshot.histograms.get("label_age", {})}
    assert ages and min(ages) >= 0 and max(ages) < 30


@pytest.mark.parametrize("fields", [{}, {"replay_servers": 1}, {"learner_processes": 1, "n_step": 3}])
def test_as_many_labels_are_made_and_used_as_is_said(fields: dict[str, Any]) -> None:
    cfg = config("qt-opt", **POINT, updaters=1, samples_per_insert=8.0, label_uses=4.0, labels=128, **fields)
    labelled = 0
    program = qt_opt.program(cfg)

    def count(role: Any) -> None:
        label = role.labeller.label

        def counted(batch: Batch, step: int) -> Any:
            nonlocal labelled
            labelled += 1
            return label(batch, step)

        role.labeller.label = counted

    seen = Snapshots()
    report = run(spy(program, "updater", count), 80, observers=[seen])
    assert labelled == pytest.approx(80 / 4, abs=4)
    records = seen.seen[-1].records  # of transitions alone, which are not the labels
    assert 0 < records["samples_per_insert"] <= 8 / 4 and records["replay_size"] > cfg.labels
    assert 80 * cfg.batch / 8 == pytest.approx(report.steps - cfg.min_replay, abs=3 * cfg.unroll * cfg.envs + cfg.batch)


def killed(program: Program, role: str, when: Any) -> Program:
    """The program, in which the first life of a role is killed once ``when()`` holds."""

    def wrap(make: Any) -> Any:
        def made(ctx: Context, **ports: Any) -> Any:
            built = make(ctx, **ports)
            if ctx.generation == 0:

                def watch() -> None:
                    while not when():
                        threading.Event().wait(0.02)
                    os.kill(os.getpid(), signal.SIGKILL)

                threading.Thread(target=watch, daemon=True).start()
            return built

        return made

    program.roles = [replace(r, make=wrap(r.make)) if r.name == role else r for r in program.roles]
    return program


@pytest.mark.parametrize("role", ["actor", "updater"])
def test_a_killed_role_comes_back(role: str, tmp_path: Path) -> None:
    """An updater fills its part of the replay anew; the learner goes on by the labels that are there."""
    cfg = config("qt-opt", **POINT, steps=10**9, samples_per_insert=4.0)
    program = qt_opt.program(cfg)
    begun = tmp_path / "begun"

    def mark(learner: Any) -> None:
        update = learner.learner.update

        def updated(batch: Batch) -> Any:
            begun.touch()
            return update(batch)

        learner.learner.update = updated

    spy(program, "learner", mark)
    report = LocalRuntime(backoff=0.02).launch(
        killed(program, role, begun.exists), Launch(seed=0, stop=Stop(updates=400, seconds=90))
    )
    assert report.restarts == 1 and report.reason == "updates"


# ------------------------------------------------------------------------------------ offline data
def logged() -> list[Any]:
    """Three episodes of toy:point that nobody would play: every number says whose it is."""
    return [
        (
            np.full((steps + 1, 2), 1_000.0, np.float32),
            np.full((steps, 2), 0.25, np.float32),
            np.zeros(steps),
            False,
            True,
        )
        for steps in (10, 7, 10)
    ]


def shown(share: Any, updates: int = 40) -> list[float]:
    """Of each labelled batch, the share that is not of this run's actors."""
    found: list[float] = []
    program = qt_opt.program(
        config(
            "qt-opt",
            **POINT,
            demonstrations=f"{__name__}:logged",
            online_share=share,
            steps=2_000,
            samples_per_insert=8.0,
        )
    )

    def look(role: Any) -> None:
        label = role.labeller.label

        def labelled(batch: Batch, step: int) -> Any:
            out, metrics = label(batch, step)
            others = float((out["obs"][:, 0] == 1_000.0).mean())
            assert metrics["demonstrations"] == pytest.approx(others)
            found.append(others)
            return out, metrics

        role.labeller.label = labelled

    run(spy(program, "updater", look), updates)
    return found


def test_the_share_of_online_data_rises() -> None:
    """From all offline to none, over the run's 1,000 updates; the share is one of probability, element by element."""
    assert set(shown(0.0)) == {1.0} and set(shown(1.0)) == {0.0}
    rising = shown(linear(0.0, 1.0), 900)
    begin, middle, end = (float(np.mean(part)) for part in np.array_split(rising, 3))
    assert begin > 0.7 > middle > 0.3 > end


class Random:
    """A table of numbers that are drawn when they are asked for."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def sample(self, n: int) -> Batch:
        return Batch({"reward": torch.from_numpy(self.rng.random(n) + 1.0)})

    def state(self) -> dict[str, Any]:
        return {"rows/data": np.zeros(3), "rng": self.rng.bit_generator.state}

    def restore(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]


def test_offline_data_go_on_with_the_draws_of_both_generators() -> None:
    one, other = (Offline(Random(seed), lambda step: 0.5, seed) for seed in (3, 4))  # type: ignore[arg-type]
    batch = Batch({"reward": torch.zeros(64, dtype=torch.float64)})
    for step in range(3):
        one.mix(batch, step)
    other.load_state_dict(one.state_dict())
    for step in range(3):
        (found, share), (again, same) = one.mix(batch, step), other.mix(batch, step)
        assert share == same == float((found.items["reward"] > 0).double().mean()) and 0.0 < share < 1.0
        assert torch.equal(found.items["reward"], again.items["reward"])


def test_offline_actions_outside_of_the_box_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    obs, action, *rest = logged()[0]
    monkeypatch.setitem(globals(), "logged", lambda: [(obs, action * 5, *rest)])
    with pytest.raises(UsageError, match=r"has actions that toy:point does not take"):
        qt_opt.program(config("qt-opt", **POINT, demonstrations=f"{__name__}:logged"))


# ---------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize("fields, says", [
    ({"cem_elites": 1}, r"cem_elites \(1\) must be from 2 to cem_samples \(16\)"),
    ({"cem_elites": 17}, r"cem_elites \(17\) must be from 2 to cem_samples"),
    ({"updaters": 3, "actors": 2}, r"each updater needs an actor: expected at least 3 actors, found 2"),
    ({"replay_servers": 3, "actors": 2}, r"each replay server needs an actor: expected at least 3 actors, found 2"),
    ({"env": "CartPole-v1"}, r"qt-opt supports Box actions; CartPole-v1 has Discrete\(2\)"),
])  # fmt: skip
def test_what_clashes_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        qt_opt.program(config("qt-opt", **{**POINT, **fields}))


def test_more_updaters_than_actors_share_replay_servers() -> None:
    cfg = config("qt-opt", **POINT, updaters=3, replay_servers=1)
    assert run(qt_opt.program(cfg), 9).updates == 9


def test_images_are_read_by_one_encoder() -> None:
    env = replace(ENV, observations={"obs": Observation((1, 20, 20), "uint8", "image")})
    torch.manual_seed(0)
    q = CEMNetwork(env, Search(16, 4, 2), hidden=(8,), precision="fp32")
    items = {**transitions(4), "obs": torch.randint(0, 255, (4, 1, 20, 20), dtype=torch.uint8)}
    algorithm = LabelledQ(config("qt-opt", **POINT), q)
    batch = algorithm.prepare(Batch({**items, "target": torch.ones(4)}))
    differentiate(algorithm, batch)
    assert all(p.grad is not None for p in q.parameters())
