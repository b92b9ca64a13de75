"""What a learner makes of its batches on a GPU is what it makes of them on the CPU, up to rounding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from devices import DEVICE, UPDATES
from helpers import ASYNCHRONOUS, config, learning_role, run, spy
from test_snapshots import CASES, RTOL, SEED

from shoal.api import Tensors
from shoal.envs import spec
from shoal.envs.options import EnvOptions
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.precision import Precision
from shoal.systems import load

pytestmark = pytest.mark.cuda
ON_CPU_ONLY = (*ASYNCHRONOUS, "es")
LEARNERS = [case for case, (system, _) in CASES.items() if system not in ON_CPU_ONLY]
OPTIMISERS: dict[str, dict[str, Any]] = {
    "adam": {},
    "rmsprop": {},
    "rmsprop, centred": dict(rmsprop_centred=True),
    "adagrad": {},
    "sgd": dict(momentum=0.5, weight_decay=1e-3),
}
# The observations of r2d3's demonstrations are in the thousands: some gradients are as small as their rounding, and
# Adam would make steps of full size of them
SCALED: dict[str, dict[str, Any]] = {"r2d3": dict(optimiser="sgd")}
IMAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "impala, shallow": ("impala", dict(torso="impala-shallow")),
    "impala, deep, lstm": ("impala", dict(torso="impala-deep", core="lstm", core_size=8)),
    "recurrent-ppo, nature": ("recurrent-ppo", dict(torso="nature", env_kwargs={"screen": 40})),
    "dqn": ("dqn", dict(torso="impala-shallow", dueling=True)),
    "r2d2": ("r2d2", dict(torso="impala-shallow")),
}


@pytest.fixture(autouse=True)
def float32_is_float32() -> Iterator[None]:
    """Without TensorFloat-32, which PyTorch gives convolutions on a GPU, and which has 10 bits of 24."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def learned(system: str, device: str, **fields: Any) -> tuple[Tensors, Tensors]:
    """The learner's parameters before and after ``UPDATES`` of a serial run, and that they lie on ``device``."""
    cfg = config(system, **{"device": device, "precision": "fp32", "steps": 20_000, **fields})
    program, before, held = load(system).program(cfg), {}, set[str]()

    def keep(role: Any) -> None:
        if role.ctx.index == 0:
            before.update({k: v.cpu().double() for k, v in role.learner.params().items()})
            held.update(v.device.type for v in role.learner.params().values())

    spy(program, learning_role(system), keep)
    after = run(program, UPDATES, SEED).params["params"]
    assert held == {torch.device(device).type}
    return before, {k: v.double() for k, v in after.items()}


def assert_learns_the_same(system: str, tolerance: float = RTOL, **fields: Any) -> None:
    """From the same start the parameters move by the same, up to ``tolerance`` of the largest change of the tensor."""
    assert_moved_alike(learned(system, "cpu", **fields), learned(system, DEVICE, **fields), UPDATES, tolerance)


def assert_moved_alike(
    ours: tuple[Tensors, Tensors], theirs: tuple[Tensors, Tensors], updates: int, tolerance: float = RTOL
) -> None:
    (start, here), (same, there) = ours, theirs
    assert here.keys() == there.keys() and any(not torch.equal(start[k], here[k]) for k in here)
    for name, value in here.items():
        assert torch.equal(start[name], same[name]), f"{name} begins with other numbers"
        change = (value - start[name]).abs().max()
        error = (there[name] - value).abs().max()
        rounding = torch.finfo(torch.float32).eps * updates * value.abs().max()
        assert error <= tolerance * change + rounding, f"{name}: off by {error:.3g} of a change by {change:.3g}"


@pytest.mark.parametrize("case", LEARNERS)
def test_a_system_learns_on_the_device_what_it_learns_on_the_cpu(case: str) -> None:
    system, fields = CASES[case]
    assert_learns_the_same(system, **fields, **SCALED.get(system, {}))


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_an_optimiser_moves_parameters_on_the_device_as_on_the_cpu(optimiser: str) -> None:
    own = OPTIMISERS[optimiser]
    assert_learns_the_same("impala", env="CartPole-v1", optimiser=optimiser.partition(",")[0], **own)


@pytest.mark.parametrize("case", IMAGES)
def test_a_system_learns_from_images_on_the_device_as_on_the_cpu(case: str) -> None:
    system, fields = IMAGES[case]
    assert_learns_the_same(system, env="toy:catch", **fields)


@pytest.mark.parametrize("torso", ["impala-shallow", "impala-deep"])
def test_bf16_on_the_device_is_fp32_up_to_its_eight_bits(torso: str) -> None:
    env = spec("toy:catch", EnvOptions())
    networks = {}
    precisions: tuple[Precision, ...] = ("fp32", "bf16")
    for precision in precisions:
        torch.manual_seed(0)
        networks[precision] = ActorCritic(env, torso=torso, precision=precision, device=DEVICE).to(DEVICE)
    rng = torch.Generator().manual_seed(1)
    obs = {
        k: torch.randint(0, 256, (32, *o.shape), generator=rng).to(DEVICE, torch.uint8)
        for k, o in env.observations.items()
    }
    first = torch.zeros(32, dtype=torch.bool, device=DEVICE)
    exact, rounded = (networks[p].step(obs, first, {}) for p in precisions)
    for x, y in zip(exact[:2], rounded[:2], strict=True):
        assert x.dtype == y.dtype == torch.float32 and not torch.equal(x, y)
        assert (x - y).abs().max() <= 0.05 * x.abs().max()


def test_a_system_learns_in_bf16_on_the_device() -> None:
    before, after = learned("impala", DEVICE, env="toy:catch", torso="impala-shallow", precision="bf16")
    assert all(v.isfinite().all() for v in after.values())
    assert any(not torch.equal(before[k], after[k]) for k in after)
