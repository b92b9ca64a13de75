"""PPO's loss: by torch's operations against the oracle, and by hand, with its gradient, against torch's."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import oracles
import pytest
import torch
from present import present

from shoal import fast
from shoal.api import Action
from shoal.nets import ActionDistribution
from shoal.systems.recurrent_ppo import discrete_ppo_loss, ppo_loss

RULES = [
    dict(clip=clip, value_cost=0.7, entropy_cost=entropy_cost, clip_value=clip_value)
    for clip in (0.05, 0.2)
    for entropy_cost in (0.0, 0.03)
    for clip_value in (False, True)
]
OLD = ("old_log_prob", "old_value", "advantage", "target", "weight")
BOTH = ("value", *OLD)


class Found(NamedTuple):
    loss: float
    gradient: torch.Tensor  # by the logits and, in the last column, the value
    found: torch.Tensor


def given(rows: int, actions: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Ratios on both sides of the clip, values on both sides of theirs, rows that do not count."""
    rng = np.random.default_rng(seed)
    logits, action = rng.normal(size=(rows, actions)), rng.integers(0, actions, rows)
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    value = rng.normal(size=rows)
    out = {
        "logits": logits, "value": value, "old_log_prob": logs[np.arange(rows), action] + rng.normal(0, 0.2, rows),
        "old_value": value + rng.normal(0, 0.2, rows), "advantage": rng.normal(size=rows),
        "target": rng.normal(size=rows), "weight": (rng.random(rows) < 0.9) / rows,
    }  # fmt: skip
    return {k: torch.from_numpy(v.astype(np.float32)) for k, v in out.items()} | {"action": torch.from_numpy(action)}


def by_operations(t: dict[str, torch.Tensor], **rule: float) -> tuple[torch.Tensor, torch.Tensor]:
    dist = ActionDistribution(Action("discrete", sizes=(t["logits"].shape[1],)))
    return ppo_loss(*dist.evaluate(t["logits"], t["action"]), *(t[k] for k in BOTH), **rule)  # type: ignore[arg-type]


def by_hand(t, **rule):
    outputs = torch.cat((t["logits"], t["value"][:, None]), 1).requires_grad_()
    loss, metrics = discrete_ppo_loss(outputs, t["action"], *(t[k] for k in OLD), **rule)
    loss.backward()
    return Found(loss.item(), present(outputs.grad), metrics)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("rows", "actions"), [(1, 1), (3, 2), (200, 2), (200, 6)])
def test_loss_and_findings_are_the_oracle(rows, actions, rule) -> None:
    t = given(rows, actions)
    logs = torch.log_softmax(t["logits"].double(), -1).numpy()
    log_prob, entropy = logs[np.arange(rows), t["action"].numpy()], -(np.exp(logs) * logs).sum(1)
    n = [t[k].numpy().astype(float) for k in BOTH]
    loss, found = oracles.ppo_loss(log_prob, entropy, *n, *rule.values())
    told, hand = by_operations(t, **rule), by_hand(t, **rule)
    assert float(told[0]) == pytest.approx(loss, rel=1e-5, abs=1e-6)
    assert hand.loss == pytest.approx(loss, rel=1e-5, abs=1e-6)
    np.testing.assert_allclose(told[1].numpy(), found, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(hand.found.numpy(), found, rtol=1e-4, atol=1e-6)
    assert rows < 200 or 0 < found[4] < 1  # some were clipped


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("rows", "actions"), [(1, 1), (3, 2), (500, 2), (500, 18)])
def test_the_gradient_by_hand_is_that_of_the_operations(rows, actions, rule) -> None:
    t = given(rows, actions)
    logits, value = t["logits"].requires_grad_(), t["value"].requires_grad_()
    by_operations(t, **rule)[0].backward()
    gradient = by_hand({k: v.detach() for k, v in t.items()}, **rule).gradient
    assert gradient.shape == (rows, actions + 1) and gradient.dtype == torch.float32
    torch.testing.assert_close(gradient[:, :-1], logits.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(gradient[:, -1], value.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("rows", "actions"), [(0, 3), (1, 1), (3, 2), (40, 6)])
def test_where_nothing_is_compiled_the_loss_is_the_same(rows, actions, rule, monkeypatch) -> None:
    """Of no rows, too, which a member's part of a small minibatch may have."""
    t = given(rows, actions)
    compiled = by_hand(t, **rule)
    monkeypatch.setattr(fast, "ENABLED", False)
    plain = by_hand(t, **rule)
    assert plain.loss == pytest.approx(compiled.loss, rel=1e-5, abs=1e-6)
    torch.testing.assert_close(plain.gradient, compiled.gradient, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(plain.found, compiled.found, rtol=1e-4, atol=1e-6)


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    """By differences, in double precision, beside both forms."""
    t = {k: v.double() if v.is_floating_point() else v for k, v in given(20, 3).items()}
    rule = dict(clip=0.2, value_cost=0.7, entropy_cost=0.03, clip_value=True)
    gradient = by_hand(t, **rule).gradient
    for row in range(20):
        for column in range(3):
            moved = [t | {"logits": t["logits"].clone()} for _ in range(2)]
            for sign, m in zip((1, -1), moved, strict=True):
                m["logits"][row, column] += sign * 1e-6
            slope = (by_hand(moved[0], **rule).loss - by_hand(moved[1], **rule).loss) / 2e-6
            assert gradient[row, column].item() == pytest.approx(slope, abs=1e-7)


def test_an_unmoved_policy_is_never_clipped() -> None:
    """Ratios of 1, but for rounding: the gradient is that of the policy gradient, -w A (1[a] - p)."""
    t = given(300, 2)
    logs = torch.log_softmax(t["logits"], -1)
    t["old_log_prob"] = logs.gather(1, t["action"][:, None]).squeeze(1)
    found = by_hand(t, clip=0.2, value_cost=0.0, entropy_cost=0.0)
    hot = torch.nn.functional.one_hot(t["action"], 2) - logs.exp()
    wanted = -(t["weight"] * t["advantage"])[:, None] * hot
    torch.testing.assert_close(found.gradient[:, :-1], wanted, rtol=1e-4, atol=1e-7)
    assert found.found[4] == 0 and found.found[5] < 1e-6


def test_an_action_that_is_masked_out_gets_no_gradient() -> None:
    t = given(50, 3)
    t["action"] %= 2
    t["logits"][:, 2] = -math.inf
    found = by_hand(t, clip=0.2, value_cost=0.5, entropy_cost=0.1)
    assert math.isfinite(found.loss) and (found.gradient[:, 2] == 0).all() and found.gradient.isfinite().all()


@pytest.mark.parametrize("name", ["logits", "value", "old_log_prob", "advantage", "target"])
def test_what_is_no_number_is_told_by_the_loss(name) -> None:
    t = given(4, 3)
    t["weight"][:] = 0.25
    t[name][2] = math.nan
    assert math.isnan(by_hand(t, clip=0.2, value_cost=0.5, entropy_cost=0.0).loss)
    assert math.isnan(float(by_operations(t, clip=0.2, value_cost=0.5, entropy_cost=0.0)[0]))


def test_bad_input_is_named() -> None:
    rule = dict(clip=0.2, value_cost=0.5, entropy_cost=0.0)
    with pytest.raises(
        ValueError, match=r"discrete_ppo_loss: expected target of shape \(4,\) \(as action\), found \(3,"
    ):
        by_hand(given(4, 3) | {"target": torch.zeros(3)}, **rule)
    with pytest.raises(ValueError, match=r"ppo_loss: expected weight of shape \(4,\) \(as log_prob\), found \(2,\)"):
        by_operations(given(4, 3) | {"weight": torch.zeros(2)}, **rule)
    with pytest.raises(ValueError, match="discrete_ppo_loss: expected outputs without its last axis of shape"):
        by_hand(given(4, 3) | {"logits": torch.zeros(3, 3), "value": torch.zeros(3)}, **rule)
    for wrong in (-1, 3):
        with pytest.raises(IndexError, match="discrete_ppo_loss: expected actions from 0 to A - 1"):
            by_hand(given(4, 3) | {"action": torch.tensor([0, 1, wrong, 2])}, **rule)


def alone(**fields: list[float]) -> torch.Tensor:
    """The metrics of ``ppo_loss``, where all but the fields given is 0; rows count equally."""
    rows = len(next(iter(fields.values())))
    names = ("log_prob", "entropy", *BOTH)
    given = {name: torch.tensor(fields.get(name, [0.0] * rows)) for name in names}
    given["weight"] = torch.full((rows,), 1 / rows)
    return ppo_loss(**given, clip=0.2, value_cost=1.0, entropy_cost=0.0, clip_value=True)[1]


def test_worked_numbers() -> None:
    """recurrent-ppo.md 4.2, 4.3 and 4.4: the clipped objective, the value's clip, and the estimator of KL."""
    for ratio, advantage, objective in ((1.3, 1.0, 1.2), (1.3, -1.0, -1.3), (0.7, 1.0, 0.7), (0.7, -1.0, -0.8)):
        found = alone(log_prob=[math.log(ratio)], advantage=[advantage])
        assert found[0].item() == pytest.approx(-objective, abs=1e-6)
    for value, target, squared in ((1.5, 2.0, 0.64), (0.9, 0.5, 0.16)):
        found = alone(old_value=[1.0], value=[value], target=[target])
        assert 2 * found[1].item() == pytest.approx(squared, abs=1e-6)
    assert alone(log_prob=[0.1, -0.1, 0.2])[3].item() == pytest.approx(0.010470, abs=1e-6)
