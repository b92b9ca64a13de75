from typing import cast

import pytest
import torch
from present import present
from tolerance import rounding

from shoal.api import UsageError
from shoal.nets import RecurrentCore

T, B, F, H = 12, 5, 7, 6
UNROLLED = rounding(T * (F + H + 2), 1.0)  # of numbers below 1: the terms of all gates on the way through time
LEARNED = rounding(T * (F + H + 2) + 3 * T * B, 1.0)  # and of the sum of a parameter's gradient


def loop(core, x, first, state):
    ys = []
    for t in range(len(x)):
        y, state = core.step(x[t], first[t], state)
        ys.append(y)
    return torch.stack(ys), state


@pytest.mark.parametrize("kind,layers", [("lstm", 1), ("lstm", 2), ("gru", 1), ("gru", 3), ("none", 1)])
@pytest.mark.parametrize("p", [0.0, 0.02, 0.3, 1.0])  # few firsts: fused calls; many: cells
def test_unroll_is_step_in_a_loop_in_values_and_gradients(kind, layers, p):
    torch.manual_seed(int(100 * p))
    core = RecurrentCore(kind, F, H, layers=layers)
    x, first = torch.randn(T, B, F), torch.rand(T, B) < p
    state = {k: torch.randn(v.shape) for k, v in core.initial_state(B).items()}
    results = []
    for run in (core.unroll, lambda *a: loop(core, *a)):
        core.zero_grad()
        leaves = [x.clone().requires_grad_(), *(v.clone().requires_grad_() for v in state.values())]
        y, end = run(leaves[0], first, dict(zip(core.keys, leaves[1:], strict=True)))
        (y.square().sum() + sum(v.sin().sum() for v in end.values())).backward()
        results.append([y, *end.values(), *(v.grad for v in leaves), *(q.grad for q in core.parameters())])
    assert results[0][0].shape == (T, B, core.features)
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=LEARNED, atol=LEARNED)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_both_ways_through_unroll_agree(kind):
    core = RecurrentCore(kind, F, H)
    x, first = torch.randn(T, B, F), torch.rand(T, B) < 0.2
    core._stretch = 0
    fused, _ = core.unroll(x, first, core.initial_state(B))
    core._stretch = 10 * T
    cells, _ = core.unroll(x, first, core.initial_state(B))
    torch.testing.assert_close(fused, cells, rtol=UNROLLED, atol=UNROLLED)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_layers_feed_each_other(kind):
    """One of two layers is a core of one layer over the outputs of another."""
    core = RecurrentCore(kind, F, H, layers=2)
    whole = present(core.rnn).state_dict()
    lower, upper = RecurrentCore(kind, F, H), RecurrentCore(kind, H, H)
    present(lower.rnn).load_state_dict({k: v for k, v in whole.items() if k.endswith("l0")})
    present(upper.rnn).load_state_dict({k[:-1] + "0": v for k, v in whole.items() if k.endswith("l1")})
    x, first = torch.randn(T, B, F), torch.rand(T, B) < 0.2
    y, state = core.unroll(x, first, core.initial_state(B))
    below, low = lower.unroll(x, first, lower.initial_state(B))
    above, high = upper.unroll(below, first, upper.initial_state(B))
    torch.testing.assert_close(y, above, rtol=UNROLLED, atol=UNROLLED)
    for k in core.keys:
        torch.testing.assert_close(state[k], torch.stack([low[k], high[k]], 1), rtol=UNROLLED, atol=UNROLLED)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_first_forgets_everything_before_it_even_nan(kind):
    core = RecurrentCore(kind, F, H)
    x, first = torch.randn(T, B, F), torch.zeros(T, B, dtype=torch.bool)
    first[4, 2] = True
    state = core.initial_state(B)
    y, _ = core.unroll(x, first, state)
    alone, _ = core.unroll(x[4:, 2:3], torch.zeros(T - 4, 1, dtype=torch.bool), core.initial_state(1))
    torch.testing.assert_close(y[4:, 2:3], alone, rtol=UNROLLED, atol=UNROLLED)
    state["h"][1] = float("nan")
    y, end = core.step(x[0], torch.tensor([False, True, False, False, False]), state)
    assert y.isfinite().all() and all(v.isfinite().all() for v in end.values())


def test_states():
    lstm = RecurrentCore("lstm", F, H)
    assert {k: tuple(v.shape) for k, v in lstm.initial_state(3).items()} == {"h": (3, H), "c": (3, H)}
    assert list(RecurrentCore("gru", F, H).initial_state(3)) == ["h"]
    none = RecurrentCore("none", F, H)
    assert none.initial_state(3) == {} and none.features == F and not list(none.parameters())
    with pytest.raises(UsageError, match="rnn"):
        RecurrentCore("rnn", F, H)  # type: ignore[arg-type]


def test_orthogonal_gates():
    w = cast(torch.Tensor, present(RecurrentCore("lstm", F, H).rnn).weight_hh_l0)
    for gate in w.split(H):
        torch.testing.assert_close(gate @ gate.T, torch.eye(H), rtol=1e-5, atol=1e-5)


def test_core_stays_float32_under_autocast():
    core = RecurrentCore("lstm", F, H)
    x, first = torch.randn(T, B, F), torch.zeros(T, B, dtype=torch.bool)
    want, _ = core.unroll(x, first, core.initial_state(B))
    with torch.autocast("cpu", torch.bfloat16):
        got, _ = core.unroll(x, first, core.initial_state(B))
    assert got.dtype == torch.float32 and torch.equal(got, want)
