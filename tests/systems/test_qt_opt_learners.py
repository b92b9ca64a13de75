"""QT-Opt with several learners: a parameter server moves the parameters and both target networks."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Snapshots, UntilBack, config, run, spy
from torch import Tensor

from shoal.api import PART, Batch, Context, UsageError, places, spec_size
from shoal.learning.learner import SGDLearner
from shoal.learning.optimiser import make_optimiser
from shoal.learning.parameter_server import RemoteLearner, Shard
from shoal.local.runtime import LocalRuntime
from shoal.metering.recorder import Recorder
from shoal.records.checkpoint import SaveOptions, newest
from shoal.roles.updater import TargetServerRole
from shoal.systems import qt_opt
from shoal.systems.qt_opt.rule import Averages, LabelledQ, LabelledValue
from shoal.topology.channels import parameters

POINT: dict[str, Any] = {"env": "toy:point", "backend": "auto"}
TWO: dict[str, Any] = {**POINT, "learners": 2, "actors": 2}
SGD: dict[str, Any] = {"optimiser": "sgd", "momentum": 0.0, "weight_decay": 0.0, "max_grad_norm": None}


# -------------------------------------------------------------------------------------- identities
@pytest.mark.parametrize("shards, fields", [
    (1, {}), (3, {"optimiser": "sgd", "target_lag": 24}),
    (2, {"label_uses": 2.0, "polyak": 0.99, "max_grad_norm": 0.01}),
])  # fmt: skip
def test_one_learner_with_a_server_is_the_learner_alone(
    shards: int, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters, both target networks, and so the labels, over 60 updates: bit for bit, by whatever shards."""
    cfg = config("qt-opt", **POINT, shards=shards, **fields)
    alone = run(qt_opt.program(cfg), 60)
    monkeypatch.setattr(qt_opt.Config, "served", lambda cfg: True)
    served = run(qt_opt.program(cfg), 60)
    assert served.steps == alone.steps and served.updates == alone.updates == 60
    for channel in ("params", "lagged"):
        for name, tensor in alone.params[channel].items():
            assert torch.equal(served.params[channel][name], tensor), (channel, name)
    assert any(not torch.equal(served.params["online"][k], v) for k, v in alone.params["params"].items())


class Ends:
    """Ends of a server: the gradients that it is given, all made with its first parameters, and what it publishes."""

    def __init__(self, *gradients: tuple[int, Tensor]) -> None:
        self.left, self.version, self.published = list(gradients), 0, [torch.zeros(0)]

    def get(self) -> Batch:
        version, value = self.left.pop(0)
        return Batch({"gradient": value}, versions=(version,))

    def publish(self, params: Any) -> int:
        self.version += 1
        self.published.append(params[PART].clone())
        return self.version

    @contextlib.contextmanager
    def slot(self) -> Iterator[Any]:
        new = {PART: torch.zeros_like(self.published[-1])}
        yield new
        self.publish(new)


def labelled(rows: int, seed: int) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return {
        "obs": torch.randn(rows, 2, generator=rng), "action": torch.rand(rows, 2, generator=rng) * 2 - 1,
        "target": torch.randn(rows, generator=rng),
    }  # fmt: skip


def test_two_learners_without_delay_at_half_the_rate_are_one_with_their_batches_joined() -> None:
    """Both gradients are made with the same parameters; SGD adds half of each, which is a step along their mean."""
    cfg = config("qt-opt", **POINT, **SGD, learning_rate=0.1)
    torch.manual_seed(0)
    nets = [qt_opt.network(cfg) for _ in range(3)]
    for other in nets[1:]:
        other.load_state_dict(nets[0].state_dict())
    halves = labelled(16, 1), labelled(16, 2)
    whole = {name: torch.cat([half[name] for half in halves]) for name in halves[0]}
    alone = SGDLearner(LabelledQ(cfg, nets[2]), make_optimiser(cfg, nets[2]), progress=lambda update: 0.0)
    began = [p.detach().clone() for p in nets[2].parameters()]
    alone.update(Batch(whole))

    messages: list[tuple[int, Tensor]] = []
    for net, half in zip(nets, halves, strict=False):
        learner = RemoteLearner(LabelledValue(cfg, net))
        if not messages:
            messages.append((0, learner.weights.clone()))
        learner.add(Batch(half))
        messages.append((1, learner.total.clone()))
    spec = parameters("online", lambda: qt_opt.network(cfg)).spec
    half_rate = config("qt-opt", **POINT, **SGD, learning_rate=0.05)
    gradients, online, average, lagged = Ends(*messages), Ends(), Ends(), Ends()
    server = TargetServerRole(
        Context("server", 0, 1, 0, 0, Recorder()), Shard(half_rate, spec, 0, spec_size(spec)), gradients, online,  # type: ignore[arg-type]
        None, 1, targets=lambda part: Averages(cfg, part), average=average, lagged=lagged,  # type: ignore[arg-type]
    )  # fmt: skip
    for _ in messages:
        server.step()
    assert online.version == average.version == 3
    found = torch.cat([p.detach().flatten() for p in nets[2].parameters()])
    moved = found - torch.cat([p.flatten() for p in began])
    got = torch.cat([online.published[-1][first:last] for first, last in places(spec).values()])
    assert moved.abs().max() > 1e-3
    torch.testing.assert_close(got, found, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------ what it does
def test_the_server_applies_every_gradient_and_keeps_both_target_networks() -> None:
    """A plain loop in float64 over the gradients that arrived: the parameters, their average and the average as it was
    24 updates before, of each of two shards. Both learners send gradients, of labels of their own."""
    cfg = config("qt-opt", **TWO, **SGD, learning_rate=0.01, shards=2, polyak=0.9, target_lag=24, labels=64)
    arrived: dict[int, list[tuple[int, np.ndarray]]] = {}
    learned: dict[int, set[bytes]] = {}
    program = qt_opt.program(cfg)

    def listen(role: Any) -> None:
        get, found = role.gradients.get, arrived.setdefault(role.ctx.index, [])

        def got() -> Batch:
            batch: Batch = get()
            found.append((batch.versions[0], batch.items["gradient"].double().numpy().copy()))
            return batch

        role.gradients.get = got

    def watch(role: Any) -> None:
        add, seen = role.learner.add, learned.setdefault(role.ctx.index, set())

        def added(batch: Batch) -> Any:
            seen.update(row.numpy().tobytes() for row in batch.items["obs"])
            return add(batch)

        role.learner.add = added

    seen = Snapshots()
    report = run(spy(spy(program, "server", listen), "learner", watch), 60, observers=[seen])
    assert report.updates == 60 and sorted(arrived) == [0, 1]
    parts: dict[str, list[np.ndarray]] = {"online": [], "params": [], "lagged": []}
    for index in (0, 1):
        (offer, weights), *gradients = arrived[index]
        assert offer == 0 and len(gradients) >= 60
        average, averages = weights.copy(), [weights.copy()]
        for _, gradient in gradients:
            weights = weights - 0.01 * gradient
            average = 0.9 * average + 0.1 * weights
            averages.append(average.copy())
        last = len(gradients) - len(gradients) % 2  # strides of two
        for name, part in (("online", weights), ("params", average), ("lagged", averages[last - 24])):
            parts[name].append(part)
    for name, cut in parts.items():
        flat, at = np.concatenate(cut), 0
        for tensor in report.params[name].values():
            expected = torch.from_numpy(flat[at : at + tensor.numel()]).view(tensor.shape)
            torch.testing.assert_close(tensor.double(), expected, rtol=1e-4, atol=1e-6)
            at += tensor.numel()
    assert sorted(learned) == [0, 1] and min(map(len, learned.values())) > 20
    assert not learned[0] & learned[1], "each has labels of its own updater, which has its own actor"
    ages = {k for snapshot in seen.seen for k in snapshot.histograms.get("label_age", {})}
    assert ages and min(ages) >= 0 and max(ages) < 30


def test_as_many_updaters_serve_as_there_are_learners() -> None:
    program = qt_opt.program(config("qt-opt", **POINT, learners=3, actors=0))
    replicas = {role.name: role.replicas for role in program.roles}
    assert replicas["updater"] == replicas["learner"] == 3 and replicas["actor"] >= 3


@pytest.mark.parametrize("fields, says", [
    ({"updaters": 1}, r"each learner needs an updater: expected at least 2 updaters, found 1"),
    ({"actors": 1}, r"each updater needs an actor: expected at least 2 actors, found 1"),
    ({"learner_processes": 2}, r"learner_processes \(2\) share the gradient of one learner, and there are 2 learners"),
])  # fmt: skip
def test_settings_that_clash_with_several_learners_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        qt_opt.program(config("qt-opt", **{**TWO, **fields}))


def test_settings_of_the_server_are_said_to_do_nothing_for_one_learner() -> None:
    assert config("qt-opt", **POINT).idle()["max_lag"] == "learners is 1"
    assert "max_lag" not in config("qt-opt", **TWO).idle()


# ---------------------------------------------------------------------------------------- processes
@pytest.mark.timeout(100)
@pytest.mark.parametrize("role", ["learner", "server"])
def test_a_killed_learner_or_server_comes_back(role: str, tmp_path: Path) -> None:
    """From the checkpoint; the versions of the average and of the parameters, by which labels tell their age, agree."""
    cfg = config("qt-opt", **TWO, shards=2, steps=10**9, samples_per_insert=0.0)
    saving, back = SaveOptions(tmp_path / "checkpoints", 0.1), tmp_path / "back"

    def mortal(made: Any) -> None:
        step: Callable[[], None] = made.step

        def deadly() -> None:
            saved = list(saving.folder.glob("0*/manifest.json"))
            if saved and made.ctx.index == 1 and made.ctx.generation == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            step()
            if made.ctx.generation:
                back.touch()
            if role == "server":
                assert made.average.version == made.params.version

        made.step = deadly

    report = LocalRuntime(backoff=0.01).launch(
        spy(qt_opt.program(cfg), role, mortal), UntilBack(stepped=back.exists).launch(saving=saving)
    )
    assert report.restarts == 1 and report.reason == "observer"
    assert all(bool(torch.isfinite(p).all()) for p in report.params["params"].values())
    assert newest(saving.folder).manifest["updates"] == report.updates


def test_a_server_killed_between_two_channels_publishes_what_is_missing() -> None:
    """Its first life has published the parameters after an update, and not yet their average."""
    cfg = config("qt-opt", **TWO)
    online, average, lagged = _Kept(3), _Kept(2), _Kept(1)
    spec = parameters("online", lambda: qt_opt.network(cfg)).spec
    size = spec_size(spec)
    for end, value in ((online, 5.0), (average, 3.0), (lagged, 1.0)):
        end.published = [torch.full((size,), value)]
    server = TargetServerRole(
        Context("server", 0, 1, 1, 0, Recorder()), Shard(cfg, spec, 0, size), Ends(), online, None, 1,  # type: ignore[arg-type]
        targets=lambda part: Averages(cfg, part), average=average, lagged=lagged,  # type: ignore[arg-type]
    )  # fmt: skip
    server.start()
    assert (online.version, average.version, lagged.version) == (3, 3, 1)
    assert set(average.published[-1].tolist()) == {3.0}
    assert set(server.targets.kept[0][PART].tolist()) == {1.0}
    assert set(server.shard.params()[PART].tolist()) == {5.0}


class _Kept(Ends):
    """A channel in which an earlier life has published so many versions."""

    def __init__(self, version: int) -> None:
        super().__init__()
        self.version = version

    def state_dict(self) -> Any:
        return {"tensors": {PART: self.published[-1]}}

    def load_state_dict(self, state: Any) -> None: ...
