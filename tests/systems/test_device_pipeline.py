"""A learner's pipeline on a GPU, shown on a stand-in: what it learns, and how often the host waits for the device."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import devices
import pytest
import torch
from helpers import ASYNCHRONOUS, config, learning_role, run, spy
from stand_in import DEVICE, GARBAGE, StandIn, stand_in
from test_cuda_learning import SCALED, assert_moved_alike
from test_snapshots import CASES, SEED
from torch import Tensor

from shoal import transfer
from shoal.api import Batch, Context, Tensors, Update
from shoal.fast.precomputed import loss_with_gradient, precomputed_gradient
from shoal.learning.algorithm import Algorithm
from shoal.learning.learner import SGDLearner
from shoal.metering.recorder import Recorder
from shoal.ops import SGD, masked_mean, masked_moments, moments
from shoal.roles.learner import LearnerRole
from shoal.systems import load
from shoal.systems.impala import stacks_of

UPDATES = 4
FURTHER: dict[str, tuple[str, dict[str, Any]]] = {
    "recurrent-ppo, normalised": ("recurrent-ppo", dict(normalise_obs=True, normalise_reward=True, target_kl=9.0)),
    "impala, pop-art": ("impala", dict(pop_art=True, normalise_obs=True, env="Pendulum-v1")),
    "impala, images": ("impala", dict(env="toy:catch", torso="impala-shallow", replay=8)),
    "impala, two learners": ("impala", dict(learners=2, actors=2)),
    "apex-dqn, rmsprop": ("apex-dqn", dict(optimiser="rmsprop")),
}
CASES_HERE = {name: case for name, case in {**CASES, **FURTHER}.items() if case[0] not in (*ASYNCHRONOUS, "es")}
# Waits of a step of the role that learns: one for each gradient step, and one to publish (qt-opt: two sets)
WAITS = {
    "qt-opt": 3, "dd-ppo, lstm": 3, "recurrent-ppo": 5, "recurrent-ppo, normalised": 5, "recurrent-ppo, gru": 9,
}  # fmt: skip


def waits_noted(step: Callable[[], None], stand: StandIn, waits: list[list[str]]) -> Callable[[], None]:
    """Return ``step``, after which its waits for the device are noted in ``waits``."""

    def stepped() -> None:
        stand.clear()
        step()
        waits.append(list(stand.waits))

    return stepped


def learned(case: str, device: str, waits: list[list[str]], stand: StandIn | None = None) -> tuple[Tensors, Tensors]:
    """The learner's parameters before and after a serial run; ``waits``: of each step of the role that learns."""
    system, fields = CASES_HERE[case]
    cfg = config(system, **{"device": device, "precision": "fp32", "steps": 20_000, **SCALED.get(system, {}), **fields})
    program, before = load(system).program(cfg), {}

    def keep(role: Any) -> None:
        if role.ctx.index == 0:
            before.update({k: v.detach().cpu().double().clone() for k, v in role.learner.params().items()})
            if stand is not None:
                role.step = waits_noted(role.step, stand, waits)

    spy(program, learning_role(system), keep)
    after = run(program, UPDATES, SEED).params["params"]
    return before, {k: v.double() for k, v in after.items()}


@pytest.mark.parametrize("case", CASES_HERE)
def test_a_system_learns_the_same_on_a_device_and_waits_once_for_each_gradient(case: str) -> None:
    here = learned(case, "cpu", [])
    waits: list[list[str]] = []
    with stand_in() as device:
        there = learned(case, DEVICE.type, waits, device)
    assert_moved_alike(here, there, UPDATES)
    compared = [[w for w in step if "learning/captured.py" in w] for step in waits]
    assert sum(map(len, compared)) <= 2, "each graph is compared with the eager gradient once; PPO has two"
    for step, once in zip(waits[1:], compared[1:], strict=True):  # the first loads what all begin with
        assert len(step) - len(once) <= WAITS.get(case, 2), Counter(step)


class Batches:
    """A reader whose items say which get they are of, in memory that the next get takes."""

    def __init__(self, ready: bool, did: list[str]) -> None:
        self.is_ready, self.did, self.items, self.gets = ready, did, torch.zeros(3), 0
        self.keys, self.told = torch.zeros(3, dtype=torch.int64), list[tuple[list[int], list[float]]]()

    def ready(self) -> bool:
        return self.is_ready

    poll = ready

    def get(self) -> Batch:
        self.gets += 1
        self.did.append(f"get {self.gets}")
        return Batch({"x": self.items.fill_(self.gets)}, self.keys.fill_(self.gets), size=1)

    def reprioritise(self, keys: Tensor, priorities: Tensor) -> None:
        self.told.append((keys.tolist(), priorities.tolist()))


class Params:
    """A channel that keeps what is published."""

    def __init__(self, did: list[str]) -> None:
        self.did, self.published = did, list[list[float]]()

    @property
    def version(self) -> int:
        return len(self.published)

    def publish(self, params: Tensors) -> int:
        self.published.append(params["weight"].tolist())
        self.did.append(f"publish {self.version}")
        return self.version


class Sum(Algorithm):
    """The gradient of ``weight`` is the batch, and so are half the priorities."""

    def loss(self, outputs: Any, batch: Batch) -> tuple[Tensor, Update]:
        x = batch.items["x"]
        return self.nets.weight.dot(x), Update({"mean": x.mean()}, x * 2.0)


class Weight(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3))


def role_of(ready: bool, did: list[str], pipelined: bool = True) -> tuple[LearnerRole, Batches, Params]:
    algorithm = Sum(Weight().to(DEVICE))
    learner = SGDLearner(algorithm, SGD(algorithm.nets.parameters(), 1.0, 0.0), device=DEVICE.type)
    ctx = Context("learner", 0, 1, 0, 0, Recorder(), pipelined=pipelined)
    batches, params = Batches(ready, did), Params(did)
    return LearnerRole(ctx, learner, batches, params), batches, params  # type: ignore[arg-type]


def test_a_learner_fetches_the_next_batch_and_publishes_the_last_version_before_it_waits_for_its_device() -> None:
    did: list[str] = []
    with stand_in() as device:
        role, batches, params = role_of(True, did)
        role.start()
        device.on_wait = lambda: did.append("wait")
        for _ in range(3):
            device.clear()
            role.step()
            assert len(device.waits) == 1, device.waits
        assert role.version == 4 and params.version == 3, "the last version is on its way"
        role.close()
    assert did == [
        "publish 1", "get 1", "get 2", "wait", "wait", "publish 2", "get 3", "wait", "wait", "publish 3", "get 4",
        "wait", "wait", "publish 4",
    ]  # fmt: skip
    assert params.published == [[x] * 3 for x in (0.0, -1.0, -3.0, -6.0)], "as they were, though others followed"
    assert batches.told == [([n] * 3, [2.0 * n] * 3) for n in (1, 2, 3)], "keys of the batch that was learned from"


def test_a_learner_without_a_next_batch_publishes_before_it_waits_for_one() -> None:
    """As actors may wait for those very parameters."""
    did: list[str] = []
    with stand_in():
        role, _, _ = role_of(False, did)
        role.start()
        role.step()
        role.step()
        assert did == ["publish 1", "get 1", "publish 2", "get 2"]
        role.state_dict()
    assert did[-1] == "publish 3", "a state is saved with the version that belongs to it"


def test_a_learner_that_is_not_pipelined_fetches_nothing_ahead_and_publishes_at_once() -> None:
    did: list[str] = []
    with stand_in():
        role, _, _ = role_of(True, did, pipelined=False)
        role.start()
        role.step()
        role.step()
    assert did == ["publish 1", "get 1", "publish 2", "get 2", "publish 3"]


def test_several_minibatches_fetch_one_batch_ahead() -> None:
    did: list[str] = []
    with stand_in():
        role, batches, _ = role_of(True, did)
        role.start()
        for _ in range(3):
            role._meanwhile()
        assert batches.gets == 1
        role.step()
        role.step()
    assert batches.told == [([n] * 3, [2.0 * n] * 3) for n in (1, 2)], "no batch is lost"


def test_a_learner_whose_update_failed_asks_nothing_more_of_its_device() -> None:
    did: list[str] = []
    with stand_in():
        role, _, params = role_of(True, did)
        role.start()
        role.step()
        update = role.learner.update
        role.learner.update = lambda batch: (update(batch), 1 / 0)[0]  # type: ignore[method-assign]
        with pytest.raises(ZeroDivisionError):
            role.step()
        role.learner.params()["weight"].data.add_(1.0)
        assert role.publication is not None
        role.publication.begin(role.learner.params())  # as an update that broke half-way
        published = len(params.published)
        role.close()
        assert len(params.published) == published


def test_the_lag_of_a_batch_counts_the_updates_since_its_version() -> None:
    did: list[str] = []
    with stand_in():
        role, batches, _ = role_of(False, did)
        get = batches.get
        batches.get = lambda: get()._replace(versions=(1,))  # type: ignore[method-assign]
        role.start()
        for _ in range(3):
            role.step()
        role.close()
    tallies = role.ctx.metrics.drain().tallies  # type: ignore[attr-defined]
    assert tallies["policy_lag"] == {0: 1, 1: 1, 2: 1}


def test_a_gradient_that_is_not_finite_moves_nothing_on_a_device() -> None:
    with stand_in():
        role, batches, params = role_of(False, [])
        batches.get = lambda: Batch({"x": torch.full((3,), torch.nan)}, size=1)  # type: ignore[method-assign]
        role.start()
        role.step()
        role.close()
    assert params.published == [[0.0] * 3] * 2


def test_the_stand_in_notices_each_way_to_wait() -> None:
    with stand_in() as device:
        x = torch.arange(4.0).to(DEVICE)
        for wait in (x.sum().item, x.tolist, x.cpu, x.nonzero, lambda: x[x > 1], lambda: bool(x[0])):
            device.clear()
            wait()
            assert device.waits, wait
        device.clear()
        coming = transfer.Download([x])
        assert coming._here[0].tolist() == [GARBAGE] * 4, "nothing has come before somebody waits"
        x += 1.0
        assert coming.take()[0].tolist() == [0.0, 1.0, 2.0, 3.0] and not device.waits and device.covered == 1
        flags = transfer.send(torch.tensor([[True, False], [False, True]]), DEVICE)
        assert transfer.on_host(flags[1:]).tolist() == [[False, True]] and not device.waits


def test_stacks_are_those_of_the_cpu_on_a_device() -> None:
    rng = torch.Generator().manual_seed(0)
    frames = torch.randint(1, 255, (8, 5, 2, 2), generator=rng, dtype=torch.uint8)
    first = torch.rand(6, 5, generator=rng) < 0.3
    with stand_in() as device:
        there = frames.to(DEVICE), first.to(DEVICE)
        device.clear()
        found = stacks_of(*there)
        assert not device.waits
        assert torch.equal(found.cpu(), stacks_of(frames, first))


@pytest.mark.parametrize(
    "given", [2.5, 1e39, torch.tensor(2.5), torch.tensor(2.5, dtype=torch.float64)],
    ids=["number", "huge", "tensor", "double"],
)  # fmt: skip
def test_a_loss_whose_gradient_is_known_lies_where_its_outputs_do_and_is_made_without_a_wait(given: Any) -> None:
    value, gradient = float(given), torch.tensor([1.0, -2.0])
    for place in (torch.device("cpu"), DEVICE):
        with stand_in() as device:
            leaf, by_leaf = torch.zeros(2).to(place).requires_grad_(), gradient.to(place)
            there = given.to(place) if isinstance(given, Tensor) else given
            device.clear()
            loss = loss_with_gradient(leaf, there, by_leaf)
            found = precomputed_gradient(loss, leaf)
            (walked,) = torch.autograd.grad(2.0 * loss, leaf)
            assert not device.waits and loss.device == place and loss.dtype == leaf.dtype
            assert loss.item() == (value if value < 1e38 else math.inf)
            assert found is not None and torch.equal(found.cpu(), gradient)
            assert torch.equal(walked.cpu(), 2.0 * gradient)
            with torch.no_grad():
                loss += 1.0
            assert float(there) == value, "what was given does not change with the loss"


@pytest.mark.parametrize("counted", [0.0, 0.6, 1.0])
def test_moments_of_what_a_mask_counts_are_those_of_its_rows(counted: float) -> None:
    rng = torch.Generator().manual_seed(1)
    x, mask = torch.randn(20, 3, generator=rng, dtype=torch.float64), torch.rand(20, generator=rng) < counted
    for found, expected in zip(masked_moments(x, mask), moments(x[mask]), strict=True):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(masked_mean(x[:, 0], mask), x[:, 0][mask].mean(), equal_nan=True)


@pytest.mark.cuda
@pytest.mark.skipif(not devices.ON_GPU, reason="PyTorch finds the operations that wait on a GPU alone")
@pytest.mark.parametrize("case", ["dqn", "impala", "impala, lstm", "r2d2", "rainbow", "d4pg", "recurrent-ppo"])
def test_no_operation_of_an_update_makes_the_host_wait_for_the_gpu(case: str) -> None:
    """But for waits for an event, which are those that a learner asks for, and which PyTorch does not count."""
    found: list[list[str]] = []

    def watched(role: Any) -> None:
        step = role.step

        def stepped() -> None:
            torch.cuda.set_sync_debug_mode("warn")
            try:
                with warnings.catch_warnings(record=True) as seen:
                    warnings.simplefilter("always")
                    step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
            found.append([str(w.message) for w in seen if "synchroniz" in str(w.message)])

        role.step = stepped

    system, fields = CASES_HERE[case]
    program = load(system).program(config(system, **{"device": "cuda", "precision": "fp32", **fields}))
    run(spy(program, learning_role(system), watched), UPDATES, SEED)
    assert len(found) >= UPDATES and not any(found[1:]), found
