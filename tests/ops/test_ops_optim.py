"""The optimisers against torch's Adam, an oracle of RMSProp and the fact sheets' worked numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import oracles
import pytest
import torch

from shoal import fast
from shoal.api import Field
from shoal.ops import SGD, AdaGrad, Adam, Replace, RMSProp, SharedRMSProp, moments
from shoal.ops.optimiser import divide


def close(found, *expected, tol=1e-6):
    np.testing.assert_allclose(np.asarray(found, dtype=np.float64).ravel(), expected, atol=tol, rtol=0)


# ------------------------------------------------------------------------------------------ Adam
def test_adam_is_torchs_and_takes_its_state() -> None:
    """Bit for bit, from a state that torch's own left on; a parameter without a gradient is left alone."""
    torch.manual_seed(0)
    ours, idle = torch.nn.Parameter(torch.randn(7, 3)), torch.nn.Parameter(torch.ones(2))
    theirs = torch.nn.Parameter(ours.detach().clone())
    reference = torch.optim.Adam([theirs], lr=3e-3, betas=(0.8, 0.99), eps=1e-5, fused=True)
    optimiser = Adam([ours], lr=3e-3, betas=(0.8, 0.99), eps=1e-5)
    for step in range(6):
        theirs.grad = torch.randn(7, 3)
        ours.grad = theirs.grad.clone()
        reference.step()
        if step < 3:
            optimiser.step()
        elif step == 3:  # goes on from theirs
            ours = torch.nn.Parameter(theirs.detach().clone())
            optimiser = Adam([ours, idle], lr=1.0)
            state = copy.deepcopy(reference.state_dict())
            state["param_groups"][0]["params"].append(1)
            optimiser.load_state_dict(state)
        else:
            optimiser.step()
        assert torch.equal(ours, theirs), step
    assert torch.equal(idle, torch.ones(2)) and idle not in optimiser.state


def test_adam_counts_each_parameters_own_steps() -> None:
    """Gradients that come and go, and a copy on the way: as torch's."""
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(3)) for _ in range(3)]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    optimiser, reference = Adam(ours, lr=1e-2), torch.optim.Adam(theirs, lr=1e-2, fused=True)
    for step, given in enumerate([(0, 1, 2), (0, 2), (1,), (0, 2), (0, 1, 2), (0, 1, 2)]):
        for i, (p, q) in enumerate(zip(ours, theirs, strict=True)):
            p.grad = torch.randn(3) if i in given else None
            q.grad = None if p.grad is None else p.grad.clone()
        optimiser.step()
        reference.step()
        if step == 3:
            ours, optimiser = copy.deepcopy((ours, optimiser))
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=0)
        assert optimiser.state[p]["step"] == reference.state[q]["step"]


FORMULAS: dict[str, tuple[Callable[..., Any], Callable[..., tuple[float, Any]]]] = {
    # optimiser of parameters and a rate; (theta, kept numbers, gradient, rate, step) -> (theta, kept numbers)
    "adam": (
        lambda p, lr: Adam(p, lr, betas=(0.7, 0.8), eps=0.1),
        lambda x, k, g, lr, t: (
            x - lr * (m := 0.7 * k[0] + 0.3 * g) / (1 - 0.7**t)
            / (((v := 0.8 * k[1] + 0.2 * g * g) / (1 - 0.8**t)) ** 0.5 + 0.1), (m, v)),
    ),
    "adagrad": (
        lambda p, lr: AdaGrad(p, lr, eps=0.1),
        lambda x, k, g, lr, t: (x - lr * g / ((v := k[0] + g * g) ** 0.5 + 0.1), (v, 0.0)),
    ),
    "sgd": (
        lambda p, lr: SGD(p, lr, 0.6, 0.3),
        lambda x, k, g, lr, t: (x - lr * (m := 0.6 * k[0] + g + 0.3 * x), (m, 0.0)),
    ),
    "plain sgd": (lambda p, lr: SGD(p, lr, 0.0), lambda x, k, g, lr, t: (x - lr * g, k)),
    "rmsprop": (
        lambda p, lr: RMSProp(p, lr, 0.7, 0.1),
        lambda x, k, g, lr, t: (x - lr * g / ((v := 0.7 * k[0] + 0.3 * g * g) + 0.1) ** 0.5, (v, 0.0)),
    ),
    "centred rmsprop": (
        lambda p, lr: RMSProp(p, lr, 0.7, 0.1, centred=True),
        lambda x, k, g, lr, t: (
            x - lr * g / ((v := 0.7 * k[0] + 0.3 * g * g) - (m := 0.7 * k[1] + 0.3 * g) ** 2 + 0.1) ** 0.5, (v, m)),
    ),
    "rmsprop with momentum": (
        lambda p, lr: RMSProp(p, lr, 0.7, 0.1, momentum=0.4),
        lambda x, k, g, lr, t: (
            x - (s := 0.4 * k[1] + lr * g / ((v := 0.7 * k[0] + 0.3 * g * g) + 0.1) ** 0.5), (v, s)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in place", "into other memory"])
@pytest.mark.parametrize("enabled", [True, False], ids=["fast", "plain"])
@pytest.mark.parametrize("divisor", [1.0, 2.5])
@pytest.mark.parametrize("name", FORMULAS)
def test_steps_along_a_divided_gradient_are_the_formula(
    name: str, divisor: float, enabled: bool, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the rate was before, with two parameters, four steps, and the old memory left as it was."""
    monkeypatch.setattr(fast, "ENABLED", enabled)
    make, formula = FORMULAS[name]
    rng = np.random.default_rng(0)
    params = [torch.nn.Parameter(torch.from_numpy(rng.normal(size=s).astype(np.float32))) for s in ((3, 2), (4,))]
    exact = [p.detach().double().numpy().copy() for p in params]
    kept: list[Any] = [(np.zeros(p.shape), np.zeros(p.shape)) for p in params]
    optimiser = make(params, 9.0)
    for step, rate in enumerate((0.1, 0.2, 0.05, 0.1), 1):
        grads = [rng.normal(size=x.shape).astype(np.float32) for x in exact]
        into = [torch.zeros(p.shape) for p in params] if elsewhere else None
        before = [(p.data, p.detach().clone()) for p in params]
        optimiser.descend([torch.from_numpy(g.copy()) for g in grads], rate, divisor, into)
        for i, g in enumerate(grads):
            exact[i], kept[i] = formula(exact[i], kept[i], g.astype(np.float64) / divisor, rate, step)
            np.testing.assert_allclose(params[i].detach(), exact[i], rtol=1e-5, atol=1e-6)
            if into is not None:
                assert params[i].data_ptr() == into[i].data_ptr() and torch.equal(*before[i])


@pytest.mark.parametrize(
    "name", [name for name in FORMULAS if name != "adam"]
)  # whose parts step in processes of their own
@pytest.mark.parametrize("begin", [1, 3])
def test_parts_of_an_optimiser_go_on_where_the_whole_was(name: str, begin: int) -> None:
    """Steps of the whole, or none; of its three parts; and two of another whole that takes over its state."""
    make, formula = FORMULAS[name]
    rng = np.random.default_rng(0)
    params = [torch.nn.Parameter(torch.from_numpy(rng.normal(size=s).astype(np.float32))) for s in ((3, 2), (4,))]
    exact: list[Any] = [p.detach().double().numpy().copy() for p in params]
    kept: list[Any] = [(np.zeros(p.shape), np.zeros(p.shape)) for p in params]
    optimiser, movers = make(params, 0.1), []
    for step in range(1, 7):
        grads = [rng.normal(size=p.shape).astype(np.float32) for p in params]
        if step == begin:
            movers = optimiser.divided(3, torch.zeros)
        if step == 5:
            movers, other = [], make(params, 0.1)
            other.load_state_dict(copy.deepcopy(optimiser.state_dict()))
            optimiser = other
        given = [torch.from_numpy(g.copy()) for g in grads]
        for mover, part in zip(movers, divide(given, 3), strict=False):
            mover.descend(part, 0.1)
        if not movers:
            optimiser.descend(given, 0.1)
        for i, g in enumerate(grads):
            exact[i], kept[i] = formula(exact[i], kept[i], g.astype(np.float64), 0.1, step)
            np.testing.assert_allclose(params[i].detach(), exact[i], rtol=1e-5, atol=1e-6, err_msg=f"step {step}")


def test_adam_that_was_divided_steps_in_the_memory_of_its_parts() -> None:
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(6))
    alone = torch.nn.Parameter(parameter.detach().clone())
    optimiser, reference = Adam([parameter], lr=1e-2), Adam([alone], lr=1e-2)
    for step in range(3):
        parameter.grad = torch.randn(6)
        alone.grad = parameter.grad.clone()
        optimiser.step()
        reference.step()
        if step == 0:
            common: list[torch.Tensor] = []

            def memory(shape: Any, common: list[torch.Tensor] = common) -> torch.Tensor:
                common.append(torch.zeros(shape))
                return common[-1]

            optimiser.divided(2, memory)
    assert torch.equal(parameter, alone)
    slots = [reference.state[alone][name] for name in ("exp_avg", "exp_avg_sq")]
    assert all(torch.equal(a, b) for a, b in zip(common, slots, strict=True))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_part_of_adam_moves_its_part(number: int) -> None:
    """As the whole would, from its state and into it; of a tensor with fewer elements than parts, perhaps none."""
    torch.manual_seed(0)
    whole = [torch.nn.Parameter(torch.randn(shape)) for shape in ((5, 3, 2), (7,), (), (2,))]
    divided = [torch.nn.Parameter(p.detach().clone()) for p in whole]
    grads = [[torch.randn(p.shape) for p in whole] for _ in range(4)]
    one, other = Adam(whole, lr=1e-2), Adam(divided, lr=1e-2)
    for optimiser, params in (one, whole), (other, divided):
        for p, grad in zip(params, grads[0], strict=True):
            p.grad = grad.clone()
        optimiser.step()
    part = other.divided(3, torch.zeros)[number]
    before = [p.detach().clone() for p in divided]
    for given in grads[1:]:
        for p, grad in zip(whole, given, strict=True):
            p.grad = grad.clone()
        one.param_groups[0]["lr"] = 3e-3
        one.step()
        part.descend(divide(given, 3)[number], 3e-3)
    for i in range(4):
        wanted, found, old = (divide([t[i].detach()], 3) for t in (whole, divided, before))
        states = [
            divide([o.state_dict()["state"][i][name]], 3) for o in (one, other) for name in ("exp_avg", "exp_avg_sq")
        ]
        for mine, theirs in (found, wanted), (states[0], states[2]), (states[1], states[3]):  # up to fused arithmetic
            torch.testing.assert_close(mine[number][0], theirs[number][0], rtol=1e-6, atol=1e-7)
        for elsewhere in {0, 1, 2} - {number}:
            assert torch.equal(found[elsewhere][0], old[elsewhere][0])
        assert float(other.state_dict()["state"][i]["step"]) == float(one.state_dict()["state"][i]["step"]) == 4


def test_a_divisor_divides_the_gradients() -> None:
    torch.manual_seed(0)
    given = [torch.randn(5, 3), torch.randn(())]
    ends = []
    for divisor in (1.0, 4.0):
        params = [torch.nn.Parameter(torch.ones(5, 3)), torch.nn.Parameter(torch.ones(()))]
        optimiser = Adam(params)
        for _ in range(3):
            grads = [g * divisor for g in given]
            optimiser.descend(grads, 1e-2, divisor)
            for found, wanted in zip(grads, given, strict=True):
                torch.testing.assert_close(found, wanted)
        averages = [optimiser.state_dict()["state"][i][name] for i in (0, 1) for name in ("exp_avg", "exp_avg_sq")]
        ends.append([*(p.detach() for p in params), *averages])
    torch.testing.assert_close(ends[0], ends[1])


@pytest.mark.parametrize("wrong", [dict(lr=-1), dict(betas=(0.9, 1.0)), dict(eps=-1e-8)])
def test_adam_refuses_what_makes_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Adam: expected"):
        Adam([torch.zeros(1)], **wrong)


# --------------------------------------------------------------------------------------- RMSProp
def test_rmsprop_refuses_what_makes_no_sense():
    with pytest.raises(ValueError, match="expected eps > 0, found 0"):
        RMSProp([torch.zeros(1)], eps=0)


def run(optimiser, params, grads):
    """Feed flat gradients; returns the flat parameters after each step."""
    history = []
    for grad in grads:
        at = 0
        for p in params:
            p.grad = torch.tensor(grad[at : at + p.numel()], dtype=p.dtype).view_as(p)
            at += p.numel()
        optimiser.step()
        history.append(torch.cat([p.detach().flatten() for p in params]).numpy())
    return np.array(history)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("lr", "decay", "eps"), [(2.5e-4, 0.95, 0.01), (7e-4, 0.99, 0.1), (6.25e-5, 0.95, 1.5e-7)])
def test_rmsprop_oracle(centred, momentum, lr, decay, eps):
    rng = np.random.default_rng(0)
    start, grads = rng.normal(size=11), rng.normal(size=(25, 11))
    params = [torch.tensor(start[:6]).view(2, 3).requires_grad_(), torch.tensor(start[6:]).requires_grad_()]
    optimiser = RMSProp(params, lr=lr, decay=decay, eps=eps, centred=centred, momentum=momentum)
    found = run(optimiser, params, grads)
    expected = oracles.rmsprop(start, grads, lr, decay, eps, centred, momentum)
    np.testing.assert_allclose(found - start, expected - start, rtol=1e-9, atol=1e-14)


@pytest.mark.usefixtures("fast_enabled")
def test_the_compiled_rmsprop_is_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the order of the gradient's bytes in memory; both forms of the rule."""
    torch.manual_seed(0)
    shapes = ((5, 3, 4, 4), (7,), (2, 3), ())
    begin, rule = [torch.randn(s) for s in shapes], SharedRMSProp(0.9, 0.01)
    found = {}
    for compiled in (True, False):
        monkeypatch.setattr(fast, "ENABLED", compiled)
        torch.manual_seed(1)
        leaves = [torch.nn.Parameter(t.clone()) for t in begin]
        shared = {str(i): t.clone() for i, t in enumerate(begin)}
        spec = {name: Field(tuple(t.shape)) for name, t in shared.items()}
        statistics = {name: torch.zeros(f.shape) for name, f in rule.statistics(spec).items()}
        optimiser = RMSProp(leaves, lr=0.1, decay=0.9, eps=0.01)
        for _ in range(4):
            gradient = [torch.randn(s) for s in shapes]
            gradient[0] = gradient[0].contiguous(memory_format=torch.channels_last)
            for leaf, g in zip(leaves, gradient, strict=True):
                leaf.grad = g.clone()
            optimiser.step()
            rule.apply(shared, statistics, dict(zip(shared, gradient, strict=True)), 0.1)
        assert all(torch.equal(leaf, t) for leaf, t in zip(leaves, shared.values(), strict=True))
        found[compiled] = leaves
    for hand, plain in zip(found[True], found[False], strict=True):
        torch.testing.assert_close(hand, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("lr", [0.0, 0.1])
def test_shared_running_statistics_take_in_moments_and_no_gradient(lr: float) -> None:
    """Added part by part, whatever the learning rate; parts that are not finite change nothing."""
    rule = SharedRMSProp(0.9, 0.01, running=("norms.obs.",))
    shared = {"w": torch.ones(2), **{f"norms.obs.{k}": torch.zeros(3, dtype=torch.float64) for k in ("mean", "var")}}
    shared["norms.obs.count"] = torch.zeros((), dtype=torch.float64)
    statistics = {
        k: torch.zeros(f.shape) for k, f in rule.statistics({k: Field(v.shape) for k, v in shared.items()}).items()
    }
    rows = torch.randn(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 5.0 + 100.0
    for part in (rows[:7], rows[7:8], rows[:0], rows[:2] * torch.nan, rows[8:]):
        told = dict(zip(("norms.obs.mean", "norms.obs.var", "norms.obs.count"), moments(part), strict=True))
        rule.apply(shared, statistics, {"w": torch.zeros(2), **told}, lr)
    assert list(statistics) == ["square_average/w"] and torch.equal(shared["w"], torch.ones(2))
    assert shared["norms.obs.count"].item() == 50.0
    torch.testing.assert_close(shared["norms.obs.mean"], rows.mean(0), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(shared["norms.obs.var"], rows.var(0, correction=0), rtol=1e-9, atol=0.0)


def test_dqn_trap_eps_inside():
    """dqn-family.md 6: E[g^2] = .04, E[g] = .1, eps = .01: denominator .2, torch's .1832."""
    steps = {}
    rules: list[tuple[Any, dict[str, Any]]] = [(RMSProp, {"centred": True}), (torch.optim.RMSprop, {"centered": True})]
    for cls, kind in rules:
        p = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        decay = {"decay": 0.5} if cls is RMSProp else {"alpha": 0.5}
        optimiser = cls([p], lr=1.0, eps=0.01, **decay, **kind)
        p.grad = torch.ones(1, dtype=torch.float64)
        optimiser.step()
        optimiser.state[p]["square_avg"].fill_(2 * 0.04 - 0.1**2)  # after one more gradient of .1: .04
        optimiser.state[p]["grad_avg"].fill_(0.1)  # stays .1
        before = p.item()
        p.grad = torch.full((1,), 0.1, dtype=torch.float64)
        optimiser.step()
        steps[cls] = 0.1 / (before - p.item())
    close(steps[RMSProp], 0.2, tol=1e-12)
    close(steps[torch.optim.RMSprop], 0.1832, tol=1e-4)


def test_a3c_item_3():
    """a3c-unreal.md 4.3: g = .01 and .0499, steps .00211058 and .00361599."""
    p = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimiser = RMSProp([p], lr=7e-4, decay=0.99, eps=0.1)
    one = run(optimiser, [p], [[1.0]])[0, 0]
    close(optimiser.state[p]["square_avg"], 0.01, tol=1e-12)
    two = run(optimiser, [p], [[2.0]])[0, 0]
    close(optimiser.state[p]["square_avg"], 0.0499, tol=1e-12)
    close([-one, one - two], 0.00211058, 0.00361599, tol=5e-9)


def test_rmsprop_constant_large_gradient_stays_finite():
    """Rounding makes the centred variance negative, by more than Ape-X's eps of 1.5e-7, for a constant gradient."""
    p = torch.zeros(64, requires_grad=True)
    optimiser = RMSProp([p], lr=1e-4, decay=0.95, eps=1.5e-7, centred=True)
    grad = torch.linspace(1.0, 300.0, 64)
    negative = False
    for _ in range(400):
        p.grad = grad.clone()
        optimiser.step()
        variance = optimiser.state[p]["square_avg"] - optimiser.state[p]["grad_avg"] ** 2
        negative |= bool((variance < -1.5e-7).any())
    assert negative and torch.isfinite(p).all()


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_rmsprop_resumes_from_its_state_dict(centred, momentum):
    rng = np.random.default_rng(1)
    grads = rng.normal(size=(10, 5))
    kind = {"lr": 1e-3, "centred": centred, "momentum": momentum}
    p = torch.zeros(5, requires_grad=True)
    whole = run(RMSProp([p], **kind), [p], grads)
    p = torch.zeros(5, requires_grad=True)
    first = RMSProp([p], **kind)
    run(first, [p], grads[:4])
    saved, q = copy.deepcopy(first.state_dict()), p.detach().clone().requires_grad_()
    second = RMSProp([q])
    second.load_state_dict(saved)
    assert np.array_equal(run(second, [q], grads[4:]), whole[4:])


def test_rmsprop_skips_missing_gradients_and_keeps_groups_apart():
    a, b, c = (torch.ones(2, requires_grad=True) for _ in range(3))
    groups: list[dict[str, Any]] = [{"params": [a, c]}, {"params": [b], "lr": 0.5}]
    optimiser = RMSProp(groups, lr=0.1, decay=0.0, eps=1e-12)
    a.grad, b.grad = torch.tensor([3.0, -2.0]), torch.tensor([3.0, -2.0])
    optimiser.step()
    close(a.detach(), 0.9, 1.1, tol=1e-5)
    close(b.detach(), 0.5, 1.5, tol=1e-5)
    assert torch.equal(c, torch.ones(2)) and c not in optimiser.state


def test_rmsprop_closure():
    p = torch.tensor([2.0], requires_grad=True)
    optimiser = RMSProp([p], lr=0.1)

    def closure():
        optimiser.zero_grad()
        loss = (p**2).sum()
        loss.backward()
        return float(loss.detach())

    losses = [optimiser.step(closure) for _ in range(30)]
    assert losses[0] == 4.0 and losses[-1] < 0.5


def test_adam_reads_a_gradient_in_any_order_in_memory() -> None:
    """Convolutions may give theirs with the channels last; the fused kernel goes by the place in memory."""
    torch.manual_seed(0)
    plain, other = (torch.nn.Parameter(torch.ones(3, 4, 5, 6)) for _ in range(2))
    ours, theirs = Adam([plain], lr=0.1), Adam([other], lr=0.1)
    for _ in range(3):
        plain.grad = torch.randn_like(plain)
        other.grad = plain.grad.contiguous(memory_format=torch.channels_last)
        assert other.grad.stride() != plain.grad.stride()
        ours.step()
        theirs.step()
    assert torch.equal(plain, other)


@pytest.mark.parametrize(
    "make",
    [
        partial(Adam, lr=1e-2),
        partial(AdaGrad, lr=1e-2),
        partial(RMSProp, lr=1e-2),
        partial(RMSProp, lr=1e-2, centred=True, momentum=0.9),
        partial(SGD, lr=1e-2, momentum=0.9, weight_decay=0.1),
    ],
    ids=["adam", "adagrad", "rmsprop", "rmsprop with momentum", "sgd"],
)
def test_a_step_may_lead_elsewhere(make: Callable[..., Any]) -> None:
    """Two buffers in turn, as of a parameter server: the same bits as in place, and what they were stays."""
    torch.manual_seed(0)
    start, sizes = torch.randn(100), [(0, 33), (48, 100)]

    def cut(whole: torch.Tensor) -> list[torch.Tensor]:
        return [whole[begin:end] for begin, end in sizes]

    plain, moving = start.clone(), start.clone()
    buffers = [torch.zeros(100), torch.zeros(100)]
    one, other = (make([torch.nn.Parameter(p) for p in cut(whole)]) for whole in (plain, moving))
    for step in range(4):
        gradient, before = torch.randn(100), plain.clone()
        one.descend([g.clone() for g in cut(gradient)], 1e-2, 2.0)
        other.descend(cut(gradient), 1e-2, 2.0, into=cut(buffers[step % 2]))
        old = moving if step == 0 else buffers[(step - 1) % 2]
        for now, new, then, left in zip(*map(cut, (plain, buffers[step % 2], before, old)), strict=True):
            assert torch.equal(now, new) and torch.equal(then, left) and not torch.equal(now, then)


def test_replacing_copies_every_tensor() -> None:
    params, given = ({k: torch.full((2,), v) for k in ("a", "b")} for v in (1.0, 5.0))
    Replace().apply(params, {}, given, 0.0)
    assert all(torch.equal(params[k], given[k]) for k in params)


def test_gradients_are_forgotten_or_zeroed() -> None:
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    params[0].grad = torch.ones(2)
    optimiser = SGD(params, 0.1)
    optimiser.zero_grad(set_to_none=False)
    assert params[0].grad is not None and params[0].grad.tolist() == [0.0, 0.0] and params[1].grad is None
    optimiser.zero_grad()
    assert params[0].grad is None


def test_sgd_may_keep_all_of_its_momentum() -> None:
    """A momentum of 1, which adds up all gradients, is the largest there is."""
    SGD([torch.nn.Parameter(torch.ones(1))], momentum=1.0)
    with pytest.raises(ValueError, match=r"expected momentum in \[0, 1\], found 1.1"):
        SGD([torch.nn.Parameter(torch.ones(1))], momentum=1.1)
