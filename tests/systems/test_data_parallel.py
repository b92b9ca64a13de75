"""A gradient shared by several processes is the gradient of one."""

from __future__ import annotations

import copy
import math
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
import torch
from helpers import config, ppo_learner, record_batches, run, spy
from present import present

from shoal.api import Batch, Diverged, Observation, RoleFailed, Tensors, Update, UsageError
from shoal.learning import data_parallel
from shoal.learning.algorithm import Algorithm
from shoal.learning.data_parallel import DataParallel
from shoal.learning.gradient_step import GradientStep
from shoal.local.runtime import LocalRuntime
from shoal.local.workers import Team
from shoal.metering.aggregator import Snapshot
from shoal.nets import Encoder, NatureCNN, autocast
from shoal.nets.outputs import Outputs, detached
from shoal.ops import Adam
from shoal.runtime.launch import Launch, Stop
from shoal.systems import apex_dpg, dqn, recurrent_ppo
from shoal.topology import config as settings

pytestmark = [pytest.mark.timeout(100), pytest.mark.skipif(sys.platform != "linux", reason="teams fork")]


@pytest.fixture(params=[False, True], ids=["one moves the weights", "all move them"])
def divided(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(data_parallel, "DIVIDED", 0 if request.param else 10**9)
    return bool(request.param)


@pytest.mark.parametrize("core", ["none", "gru"])
@pytest.mark.parametrize("members", [2, 3])
@pytest.mark.usefixtures("divided")
def test_a_team_learns_what_one_learns(core: str, members: int) -> None:
    """Over several updates, with normalised observations (buffers that change) and rows that do not count. The second
    half is learned by a learner that goes on from the state of the first."""
    cfg = config("recurrent-ppo", env="CartPole-v1", core=core, core_size=8, minibatches=1 if core == "gru" else 2,
                 normalise_obs=True, normalise_reward=True, entropy_cost=0.01, clip_value=True)  # fmt: skip
    batches = record_batches(program := recurrent_ppo.program(cfg))
    run(program, 4)
    first, second = Team(members), Team(members)
    try:
        alone, together, other = ppo_learner(cfg, None), ppo_learner(cfg, first), ppo_learner(cfg, second)
        beats: list[object] = []
        for learner in (alone, together, other):
            learner.gradient_step.beat = partial(beats.append, learner)
        for i, (batch, _) in enumerate(batches):
            given = Batch({k: v.clone() for k, v in batch.items.items()})
            given.items["valid"][3, 1] = False
            if i == len(batches) // 2:
                other.update(given)  # its copies are there when it is given the state
                other.load_state_dict(copy.deepcopy(together.state_dict()))
                together = other
            one, many = alone.update(given), together.update(given)
            assert one.metrics.keys() == many.metrics.keys()
            for name, value in one.metrics.items():
                assert float(many.metrics[name]) == pytest.approx(float(value), rel=1e-3, abs=1e-5), name
        assert other is together
        steps = len(batches) * cfg.epochs * cfg.minibatches
        assert beats.count(alone) == steps and len(beats) > 2 * steps, "a sign of life with every minibatch"
        for name, tensor in alone.params().items():
            torch.testing.assert_close(together.params()[name], tensor, rtol=1e-4, atol=1e-6, msg=name)
        for wanted, found in zip(
            *(x.state_dict()["optimiser"]["state"].values() for x in (alone, together)), strict=True
        ):
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-7)
    finally:
        first.close()
        second.close()


@pytest.mark.usefixtures("divided")
def test_a_member_without_a_column_of_its_own() -> None:
    """Of a minibatch that is one trajectory, with two members."""
    cfg = config("recurrent-ppo", env="CartPole-v1", core="gru", core_size=8, minibatches=4)
    batches = record_batches(program := recurrent_ppo.program(cfg))
    run(program, 1)
    team = Team(2)
    try:
        alone, together = ppo_learner(cfg, None), ppo_learner(cfg, team)
        for learner in (alone, together):
            learner.update(Batch({k: v.clone() for k, v in batches[0][0].items.items()}))
        for name, tensor in alone.params().items():
            torch.testing.assert_close(together.params()[name], tensor, rtol=1e-4, atol=1e-6, msg=name)
    finally:
        team.close()


@pytest.mark.parametrize("core", ["none", "gru"])
def test_minibatches_are_as_many_as_asked_for_and_none_without_a_step(core: str) -> None:
    """32 steps are 12 minibatches of 2 or 3; a batch of nothing but steps between two episodes teaches nothing."""
    cfg = config("recurrent-ppo", env="CartPole-v1", core=core, core_size=8, minibatches=4 if core == "gru" else 12)
    batches = record_batches(program := recurrent_ppo.program(cfg))
    run(program, 1)
    learner, items = ppo_learner(cfg, None), batches[0][0].items
    assert learner.update(Batch(dict(items))).metrics["minibatches"] == cfg.epochs * cfg.minibatches
    before = {k: v.clone() for k, v in learner.params().items()}
    update = learner.update(Batch({**items, "valid": torch.zeros_like(items["valid"])}))
    assert update.metrics["minibatches"] == update.metrics["skipped_updates"] == 0.0
    torch.testing.assert_close(learner.params(), before, rtol=0, atol=0)


@pytest.mark.usefixtures("divided")
def test_a_checkpoint_does_not_see_what_the_team_learns_while_it_is_written() -> None:
    """The process that writes it is a fork, whose private memory stands still; that of a team does not."""
    cfg = config("recurrent-ppo", env="CartPole-v1", normalise_obs=True)
    batches = record_batches(program := recurrent_ppo.program(cfg))
    run(program, 1)
    batch = batches[0][0]
    team = Team(2)
    try:
        together = ppo_learner(cfg, team)
        together.update(batch)
        state = together.state_dict()
        before = copy.deepcopy(state)
        together.update(batch)
        torch.testing.assert_close(state, before, rtol=0, atol=0)
        new = together.state_dict()
        for part in "nets", "optimiser":
            with pytest.raises(AssertionError):
                torch.testing.assert_close(new[part], before[part], rtol=0, atol=0)
    finally:
        team.close()


Images = tuple[torch.nn.Module, DataParallel, GradientStep, Tensors]


@pytest.fixture(params=[1, 2])
def images(request: pytest.FixtureRequest, divided: bool) -> Iterator[Images]:
    """Convolutions that learn the sum of squared errors."""
    torch.manual_seed(0)
    nets = Regression(torch.nn.Sequential(NatureCNN(4, 84, 84), torch.nn.Linear(512, 1)))
    data = {"image": torch.randint(0, 256, (12, 4, 84, 84), dtype=torch.uint8), "target": torch.randn(12)}
    team = Team(request.param) if request.param > 1 else None
    step = GradientStep(Adam(nets.parameters(), lr=1e-3), max_norm=0.5)
    try:
        yield nets, DataParallel(Squares(nets), step, team), step, data
    finally:
        if team is not None:
            team.close()


class Regression(torch.nn.Module):
    """A network that learns, around one of images to a number."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.precision = getattr(inner, "precision", "fp32")

    def outputs(self, items: Tensors) -> Outputs:
        values, backward = detached(self.inner(items["image"]).squeeze(-1))
        values.requires_grad_()
        return Outputs(values, values, backward)


class Squares(Algorithm):
    """The sum of squared errors, times a number that changes from step to step."""

    def loss(self, outputs: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, Update]:
        error = outputs - batch.items["target"]
        return self.scalars[0] * error.square().sum(), Update({"error": error.detach().sum()})


def squares(nets: torch.nn.Module, data: Tensors, rows: torch.Tensor, factor: float) -> torch.Tensor:
    """The same by autograd alone."""
    error = cast(Regression, nets).inner(data["image"][rows]).squeeze(-1) - data["target"][rows]
    return factor * error.square().sum()


def step_on(together: DataParallel, rows: torch.Tensor, factor: float) -> float | None:
    together.algorithm.scalars = [factor]
    return together.step(rows)[0]


def test_the_gradient_of_convolutions_is_in_the_order_of_their_weights(images: Images) -> None:
    """A fused optimiser pairs numbers by their place in memory, and convolutions give theirs with the channels last."""
    nets, together, _, data = images
    plain = copy.deepcopy(nets)
    theirs = torch.optim.Adam(plain.parameters(), lr=1e-3)
    together.load(data)
    for rows in torch.arange(12), torch.arange(7):
        norm = step_on(together, rows, 0.5)
        theirs.zero_grad()
        grads = torch.autograd.grad(squares(plain, data, rows, 0.5), [*plain.parameters()])
        assert any(g.stride() != p.stride() for p, g in zip(plain.parameters(), grads, strict=True)), "else no test"
        for p, grad in zip(plain.parameters(), grads, strict=True):
            p.grad = grad.contiguous()
        assert norm == pytest.approx(float(torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)), rel=1e-4)
        theirs.step()
        moved = [(p.detach(), q.detach()) for p, q in zip(nets.parameters(), plain.parameters(), strict=True)]
        for mine, wanted in moved:  # by Adam, where a gradient near 0 moves as far
            assert float((mine - wanted).abs().mean()) < 2e-5, mine.shape


class Anchored(Squares):
    """Also stays near what two older networks say, which follow the one that learns after every step."""

    def __init__(self, nets: Regression) -> None:
        super().__init__(nets)
        self.older = [copy.deepcopy(nets), copy.deepcopy(nets)]
        self.by_name = {"oldest": copy.deepcopy(nets)}
        self.scalars = [1.0]

    def loss(self, outputs: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, Update]:
        loss, update = super().loss(outputs, batch)
        with torch.no_grad():
            said = [net.inner(batch.items["image"]).squeeze(-1) for net in (*self.older, *self.by_name.values())]
        return loss + sum((outputs - one).square().sum() for one in said), update

    def after_step(self, step: int) -> None:
        for net in (self.older[step % 2], self.by_name["oldest"]):
            net.load_state_dict(self.nets.state_dict())


@pytest.mark.usefixtures("divided")
def test_members_ask_every_network_that_an_algorithm_keeps_as_it_is_now() -> None:
    """Wherever it keeps them: nobody has to say which they are."""
    torch.manual_seed(0)
    nets = Regression(torch.nn.Linear(3, 1))
    data = {"image": torch.randn(6, 3), "target": torch.randn(6)}
    team, found = Team(2), []
    try:
        for one in (None, team):
            algorithm = Anchored(copy.deepcopy(nets))
            together = DataParallel(algorithm, GradientStep(Adam(algorithm.nets.parameters(), lr=0.1), None), one)
            together.load(data)
            losses = []
            for step in range(4):
                losses.append(together.step(torch.arange(6))[1])
                algorithm.after_step(step)
            found.append(losses)
    finally:
        team.close()
    assert found[1] == pytest.approx(found[0], rel=1e-5)


class Rounding(torch.nn.Module):
    """A network whose image torso learns in bfloat16."""

    precision = "bf16"

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder({"obs": Observation((4, 84, 84), "uint8", "image")})
        self.head = torch.nn.Linear(512, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        with autocast("bf16"):
            features = self.encoder({"obs": image})
        return self.head(features)


@pytest.mark.usefixtures("divided", "fast_enabled")
def test_rounded_copies_learn_bit_for_bit_what_autocast_does() -> None:
    """Also after the weights have been replaced, as from a checkpoint."""
    torch.manual_seed(0)
    nets = Regression(Rounding())
    plain, other = copy.deepcopy(nets), copy.deepcopy(nets)
    (first,) = (m for name, m in other.named_modules() if name == "inner.encoder.images.obs.fc.0")
    assert isinstance(first, torch.nn.Linear)
    data = {"image": torch.randint(0, 256, (12, 4, 84, 84), dtype=torch.uint8), "target": torch.randn(12)}
    step = GradientStep(Adam(nets.parameters(), lr=1e-3), max_norm=None)
    theirs = Adam(plain.parameters(), lr=1e-3)
    team = Team(2)
    try:
        together = DataParallel(Squares(nets), step, team)
        together.load(data)
        for turn in range(4):
            if turn == 2:
                torch.nn.init.normal_(first.weight, std=0.02)
                for n in nets, plain:
                    n.load_state_dict(other.state_dict())
                together.restart()
                together.load(data)
            sums = [torch.zeros_like(p) for p in plain.parameters()]
            for rows in range(6), range(6, 12):
                theirs.zero_grad()
                squares(plain, data, torch.tensor(rows), 0.5).backward()
                for total, p in zip(sums, plain.parameters(), strict=True):
                    total += present(p.grad)
            for total, p in zip(sums, plain.parameters(), strict=True):
                p.grad = total
            theirs.step()
            step_on(together, torch.arange(12), 0.5)
            for mine, wanted in zip(nets.parameters(), plain.parameters(), strict=True):
                assert mine.dtype == torch.float32 and torch.equal(mine, wanted), (turn, mine.shape)
        assert torch.bfloat16 in {p.dtype for p in together.worker.nets.parameters()}, "else no test"
    finally:
        team.close()


def test_the_loss_is_tried_once_before_the_copies_are_made(images: Images) -> None:
    """What it calls is then compiled, and imported, by one process instead of by each."""
    _, together, _, data = images
    before, copies = len(psutil.Process().children()), []

    together.algorithm.scalars = [0.5]
    loss = together.worker.loss

    def counted(*given: Any) -> Any:
        copies.append(len(psutil.Process().children()) - before)
        return loss(*given)

    together.worker.loss = counted  # type: ignore[method-assign, assignment]
    together.load(data)
    for _ in range(2):
        together.step(torch.arange(12))
    assert copies == ([0, 0] if together.team is None else [0, 1, 1])


def test_a_step_that_is_not_finite_is_skipped_and_the_tenth_named(images: Images) -> None:
    nets, together, step, data = images
    together.load(data)
    before = [p.detach().clone() for p in nets.parameters()]
    for n in range(1, 10):
        assert step_on(together, torch.arange(12), math.nan) is None and step.skipped == n
    assert all(torch.equal(p, old) for p, old in zip(nets.parameters(), before, strict=True))
    with pytest.raises(Diverged, match="the loss was not finite"):
        step_on(together, torch.arange(12), math.nan)
    assert step_on(together, torch.arange(12), 1.0) is not None and step.skipped == 0
    assert not any(torch.equal(p, old) for p, old in zip(nets.parameters(), before, strict=True))


def test_how_many_processes_share_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(**fields: object) -> int:
        return recurrent_ppo.gradient_processes(recurrent_ppo.Config(**{"device": "cpu", "actors": 2, **fields}))  # type: ignore[arg-type]

    monkeypatch.setattr(settings, "cores", lambda: 4)
    large = dict(envs=512, unroll=16, minibatches=2)
    assert chosen(**large) == 4
    assert chosen(envs=64, unroll=16, minibatches=2) == 2  # 1,024 steps: two shares that pay
    assert chosen(envs=16, unroll=32, minibatches=4) == 1
    assert chosen(**large, core="lstm") == 1
    assert chosen(**large, learner_processes=1) == 1
    assert chosen(**large, learner_processes=3) == 3
    assert chosen(**large, device="cuda") == 1
    assert chosen(**large, device="cuda", learner_processes=1) == 1
    with pytest.raises(UsageError, match=r"learner_processes \(2\) share a .* on the CPU only, and device is cuda"):
        chosen(device="cuda", learner_processes=2)


def test_how_many_processes_share_a_gradient_of_dqn(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(env: str = "toy:catch", **fields: object) -> int:
        return dqn.Config(env=env, **{"device": "cpu", "batch": 32, **fields}).gradient_processes()  # type: ignore[arg-type]

    monkeypatch.setattr(settings, "cores", lambda: 4)
    assert chosen() == 2  # shares of 16 images
    assert chosen(batch=31) == 1
    assert chosen(batch=512) == 4
    assert chosen(env="CartPole-v1", batch=512) == 1
    assert chosen(samples_per_insert=0.0) == 1  # actors keep all cores busy
    assert chosen(learner_processes=1) == 1
    assert chosen(env="CartPole-v1", learner_processes=3) == 3
    assert chosen(device="cuda") == 1


def test_how_many_processes_share_a_gradient_of_dpg(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(**fields: object) -> int:
        return apex_dpg.Config(**{"env": "Pendulum-v1", "device": "cpu", **fields}).gradient_processes()  # type: ignore[arg-type]

    monkeypatch.setattr(settings, "cores", lambda: 4)
    assert chosen() == 2  # 256 rows of two networks of 256-256 units
    assert chosen(hidden=(128, 128), batch=128) == 1
    assert chosen(hidden=(512, 512)) == 4
    assert chosen(hidden=(128, 128), policy_hidden=(400, 300)) == 2
    assert chosen(samples_per_insert=0.0) == 1  # actors keep all cores busy
    assert chosen(learner_processes=1) == 1
    assert chosen(device="cuda") == 1
    assert chosen(env="toy:catch", batch=32) == 2  # by its images, whatever its layers
    monkeypatch.setattr(settings, "cores", lambda: 1)
    assert chosen() == 1


@pytest.mark.parametrize("cfg", [
    recurrent_ppo.Config(env="CartPole-v1", actors=1, envs=8, unroll=16, learner_processes=2),
    dqn.Config(env="CartPole-v1", min_replay=200, learner_processes=2),
], ids=["ppo", "dqn"])  # fmt: skip
def test_a_killed_share_ends_the_run_by_name_and_leaves_nothing(
    cfg: recurrent_ppo.Config | dqn.Config, tmp_path: Path
) -> None:
    told, killed = tmp_path / "learner", list[int]()

    class Kill:
        def update(self, snapshot: Snapshot) -> None:
            if snapshot.updates and not killed:
                (copy,) = psutil.Process(int(told.read_text())).children()
                killed.append(copy.pid)
                copy.kill()

    made = recurrent_ppo.program(cfg) if isinstance(cfg, recurrent_ppo.Config) else dqn.program(cfg)
    program = spy(made, "learner", lambda role: told.write_text(str(os.getpid())))
    with pytest.raises(RoleFailed, match=r"which shared the work of this one, killed by SIGKILL"):
        LocalRuntime().launch(program, Launch(seed=0, stop=Stop(seconds=60), observers=[Kill()], interval=0.05))
    assert len(killed) == 1 and not psutil.pid_exists(killed[0])
    assert not psutil.pid_exists(int(told.read_text()))
