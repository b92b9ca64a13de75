"""What learners do around a loss, by hand: clips, counts, periods, shares, metrics, saved states."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any, cast

import numpy as np
import oracles
import pytest
import torch
from drawn import batch as drawn
from helpers import config
from modules import module_of
from present import present
from torch import nn

from shoal import linear
from shoal.api import MASK, Batch, Diverged, Update
from shoal.learning.algorithm import Algorithm
from shoal.learning.gradient_step import GradientStep, skipped
from shoal.learning.learner import SGDLearner, averaged
from shoal.learning.off_policy import OffPolicy
from shoal.learning.optimiser import OptimiserConfig, make_optimiser
from shoal.learning.parameter_server import OutlierFilter, RemoteLearner
from shoal.learning.segment_learner import SegmentLearner
from shoal.learning.synchronised_learner import MeanGradient
from shoal.nets.dpg_network import Returns
from shoal.nets.normaliser import RunningNorm
from shoal.ops import SGD, clip, excess, global_norm
from shoal.systems import apex_dpg, es
from shoal.systems.apex_dpg import DPG
from shoal.systems.async_sarsa import OneStepSarsa
from shoal.systems.d4pg import INITIAL_SPREAD, Categorical, Mixture, RangeLearner
from shoal.systems.dd_ppo import mean_variance, moments, normalised
from shoal.systems.dqn import QLearning
from shoal.systems.es.evolution import EvolutionLearner
from shoal.systems.es.perturbed import ModulePopulation, PerceptronPopulation
from shoal.systems.qt_opt.rule import Bellman, LabelledQ
from shoal.systems.recurrent_ppo import weigh_columns, weigh_rows

CPU: dict[str, Any] = {"device": "cpu", "precision": "fp32"}


# ------------------------------------------------------------------------------------- gradient steps
@pytest.mark.parametrize("norm, most", [(5.0, 2.0), (2.0, 2.0), (1.0, 2.0), (2.5, math.inf)])
def test_a_gradient_longer_than_the_clip_is_scaled_to_it(norm: float, most: float) -> None:
    grads = [torch.tensor([0.6 * norm]), torch.tensor([[0.0, 0.8 * norm]])]
    clip(grads, norm, most)
    expected = min(norm, most)
    assert math.hypot(*(float(g.norm()) for g in grads)) == pytest.approx(expected, rel=1e-5)
    assert grads[0].item() == pytest.approx(0.6 * expected, rel=1e-5)
    assert excess(norm, most) == (1.0 if norm <= most else pytest.approx((norm + 1e-6) / most, rel=1e-12))


@pytest.mark.parametrize("bad", [(math.nan, 1.0), (1.0, math.inf), (math.inf, math.nan)])
def test_the_tenth_step_in_a_row_that_is_not_finite_ends_the_run(bad: tuple[float, float]) -> None:
    count = 0
    for expected in range(1, 10):
        count = skipped(count, *bad, "updates")
        assert count == expected
    assert skipped(count, 1.0, 1.0, "updates") == 0
    with pytest.raises(Diverged, match=f"the {'gradient' if math.isfinite(bad[0]) else 'loss'} was not finite"):
        skipped(count, *bad, "updates")


def stepping(
    weights: list[float], rate: Any = 0.1, most: Any = None, steps: int = 1
) -> tuple[GradientStep, nn.Parameter]:
    parameter = nn.Parameter(torch.tensor(weights))
    return GradientStep(SGD([parameter], rate, 0.0), most, steps), parameter


def descended(step: GradientStep, value: float) -> float | None:
    grads = [p.grad for p in step.parameters if p.grad is not None]
    return step.descend(value, grads, global_norm(grads))


def test_a_step_that_is_not_finite_moves_nothing_and_patience_is_ten_updates_of_several_steps() -> None:
    step, parameter = stepping([1.0, 2.0], steps=3)
    beats: list[int] = []
    step.beat = lambda: beats.append(1)
    parameter.grad = torch.tensor([math.nan, 0.0])
    for _ in range(29):
        assert descended(step, 1.0) is None
    assert parameter.tolist() == [1.0, 2.0] and step.skipped == 29 == len(beats)
    with pytest.raises(Diverged):
        descended(step, 1.0)
    step.skipped = 29
    parameter.grad = torch.tensor([3.0, 4.0])
    assert descended(step, 1.0) == pytest.approx(5.0) and step.skipped == 0
    assert parameter.tolist() == pytest.approx([0.7, 1.6])


def test_learning_rate_and_clip_follow_their_schedules() -> None:
    step, parameter = stepping([0.0], linear(1.0, 0.0), linear(4.0, 2.0))
    assert step.scheduled and step.max_norm == 4.0 and step.optimiser.param_groups[0]["lr"] == 1.0
    assert step.at(0.5) == {"max_grad_norm": 3.0}
    parameter.grad = torch.tensor([6.0])
    assert descended(step, 0.0) == 6.0 and parameter.item() == pytest.approx(-0.5 * 3.0, rel=1e-5)
    plain, _ = stepping([0.0], 0.1, 1.0)
    assert not plain.scheduled and plain.at(0.5) == {} and plain.max_norm == 1.0


OPTIMISER: dict[str, Any] = dict(
    learning_rate=0.03, optimiser_eps=0.2, rmsprop_decay=0.6, rmsprop_centred=True, momentum=0.7, weight_decay=0.4
)


@pytest.mark.parametrize("kind", ["adam", "rmsprop", "adagrad", "sgd"])
def test_optimisers_are_made_of_the_settings(kind: Any) -> None:
    """Against the printed formulas, two steps of a scalar."""
    cfg, module = OptimiserConfig(optimiser=kind, **OPTIMISER), nn.ParameterList([nn.Parameter(torch.tensor([0.5]))])
    optimiser = make_optimiser(cfg, module)
    theta, m, v, rate, eps = 0.5, 0.0, 0.0, 0.03, 0.2
    for t, g in enumerate((0.8, -0.3), 1):
        module[0].grad = torch.tensor([g])
        optimiser.step()
        if kind == "adam":
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            theta -= rate * (m / (1 - 0.9**t)) / (math.sqrt(v / (1 - 0.999**t)) + eps)
        elif kind == "rmsprop":
            m, v = 0.6 * m + 0.4 * g, 0.6 * v + 0.4 * g * g
            theta -= rate * g / math.sqrt(v - m * m + eps)
        elif kind == "adagrad":
            v += g * g
            theta -= rate * g / (math.sqrt(v) + eps)
        else:
            m = 0.7 * m + g + 0.4 * theta
            theta -= rate * m
        assert module[0].item() == pytest.approx(theta, rel=1e-4)


def test_metrics_of_several_parts_are_averaged_each_over_those_that_have_it() -> None:
    found = averaged([Update({"a": 1.0, "b": 4.0}), Update({"a": 2.0}), Update({"a": 6.0, "b": 5.0})])
    assert found.metrics == {"a": 3.0, "b": 4.5}


def test_a_mean_gradient_is_written_and_taken_in_the_order_of_the_parameters() -> None:
    parameters = [nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(1))]
    parameters[0].grad, parameters[2].grad = torch.arange(4.0).view(2, 2), torch.tensor([9.0])
    out, mean = np.full(8, 7.0, np.float32), MeanGradient(list(parameters), torch.device("cpu"))
    assert mean.write(out, torch.tensor(2.5), Update({})) == (2.5, Update({}))
    assert out.tolist() == [0, 1, 2, 3, 0, 0, 0, 9]
    (taken,), norm = mean.take(torch.arange(10.0, 18.0))
    assert taken.tolist() == list(range(10, 18)) and norm == pytest.approx(math.hypot(*range(10, 18)))
    assert [p.grad.flatten().tolist() for p in parameters] == [[10, 11, 12, 13], [14, 15, 16], [17]]  # type: ignore[union-attr]


# ---------------------------------------------------------------------------------------- off policy
def q_learning(**fields: Any) -> QLearning:
    cfg = config("dqn", env="Acrobot-v1", hidden=(4,), **CPU, **fields)
    torch.manual_seed(0)
    return QLearning(cfg, module_of("dqn").network(cfg), 0.5 if cfg.prioritised else None)


def moved(algorithm: OffPolicy) -> bool:
    """Changes the network; whether the target is now the network."""
    one, two = algorithm.nets.state_dict(), algorithm.target.state_dict()
    return all(torch.equal(one[k], two[k]) for k in one)


def test_target_is_copied_at_multiples_of_its_period() -> None:
    algorithm, copied = q_learning(target_period=3), []
    for step in range(1, 10):
        for p in algorithm.nets.parameters():
            p.data += 1.0
        algorithm.after_step(step)
        assert algorithm.updates == step
        if moved(algorithm):
            copied.append(step)
    assert copied == [3, 6, 9]


def test_target_follows_a_server_at_the_first_version_of_each_period() -> None:
    algorithm, copied = q_learning(target_period=10), []
    for steps in (4, 7, 9, 10, 11, 19, 20, 35, 39, 40):
        for p in algorithm.nets.parameters():
            p.data += 1.0
        algorithm.follow(steps)
        if moved(algorithm):
            copied.append(steps)
        again = q_learning(target_period=10)
        again.load_state_dict(algorithm.state_dict())
        assert (again.updates, again._copied) == (algorithm.updates, algorithm._copied) == (steps, copied[-1])
        algorithm = again if steps == 11 else algorithm
    assert copied == [4, 10, 20, 35, 40]


def test_target_moves_a_share_of_the_way_and_takes_whole_numbers_as_they_are() -> None:
    nets = nn.Linear(2, 1)
    nets.register_buffer("count", torch.tensor(3))
    algorithm = OffPolicy(nets, 100)
    before = {name: tensor.clone() for name, tensor in nets.state_dict().items()}
    with torch.no_grad():
        for p in nets.parameters():
            p.add_(1.0)
    cast(torch.Tensor, nets.count).add_(7)
    algorithm.average_target(0.1)
    target = algorithm.target.state_dict()
    for name in ("weight", "bias"):
        torch.testing.assert_close(target[name], before[name] + 0.1)
    assert int(target["count"]) == 10


@pytest.mark.parametrize(
    "fields", [{}, dict(reduction="sum"), dict(prioritised=True), dict(prioritised=True, reduction="sum")]
)
def test_weights_of_a_batch(fields: dict[str, Any]) -> None:
    algorithm, given = q_learning(**fields), drawn()
    found = algorithm.prepare(given)
    count, scale = len(given.items["reward"]), 1.0 if "reduction" in fields else 1 / 16
    expected = np.full(count, scale)
    if "prioritised" in fields:
        assert given.probs is not None
        expected = scale * oracles.importance_weights(given.probs.double().tolist(), given.size, 0.5, True)
    np.testing.assert_allclose(found.items["weight"], expected, rtol=1e-5)
    assert algorithm.scalars == [1 / 16] and found.probs is given.probs


def test_metrics_are_told_every_tenth_update() -> None:
    algorithm, told = q_learning(), []
    for step in range(25):
        algorithm.updates = step
        if algorithm.reports():
            told.append(step)
    assert told == [0, 10, 20]


@pytest.mark.parametrize("double", [False, True])
def test_q_learning_tells_the_mean_value_of_the_actions_taken_and_the_mean_error(double: bool) -> None:
    algorithm = q_learning(double=double)
    for p in algorithm.nets.parameters():
        p.data.normal_(0.0, 1.0)
    given = drawn()
    seen = {k: torch.randn(len(given.items["reward"]), 6) for k in ("obs", "next/obs")}
    batch = algorithm.prepare(given._replace(items=given.items | seen))
    _, update = algorithm.loss(algorithm.nets.outputs(batch.items).values, batch)
    items = {k: v.double().numpy() for k, v in batch.items.items()}
    with torch.no_grad():
        q, online = (algorithm.nets({"obs": batch.items[k]}).double().numpy() for k in ("obs", "next/obs"))
        after = algorithm.target({"obs": batch.items["next/obs"]}).double().numpy()
    rows = np.arange(len(q))
    best = after[rows, (online if double else after).argmax(1)]
    taken = q[rows, items["action"].astype(int)]
    error = np.abs(items["reward"] + items["discount"] * best - taken)
    assert taken.mean() != pytest.approx(q.max(1).mean(), rel=0.01)
    assert float(update.metrics["q_mean"]) == pytest.approx(taken.mean(), rel=1e-4)
    assert float(update.metrics["td_error"]) == pytest.approx(error.mean(), rel=1e-4)


# --------------------------------------------------------------------------------------------- DPG
def test_dpg_tells_what_it_finds() -> None:
    cfg = config("d4pg", env="Pendulum-v1", hidden=(6,), **CPU, v_min=-4.0, v_max=2.0, atoms=5, prioritised=True)
    torch.manual_seed(0)
    algorithm = DPG(cfg, apex_dpg.network(cfg, "cpu"), 0)
    rng = np.random.default_rng(0)
    items = {k: torch.from_numpy(rng.normal(size=s).astype(np.float32)) for k, s in {
        "obs": (8, 3), "next/obs": (8, 3), "action": (8, 1), "reward": (8,)}.items()}  # fmt: skip
    items["discount"] = torch.tensor([0.9, 0.0] * 4)
    for p in algorithm.target.parameters():
        p.add_(0.3 * torch.randn_like(p))
    list(algorithm.nets.policy.parameters())[-2].data.normal_(0.0, 2.0)
    batch = algorithm.prepare(Batch(items, probs=torch.full((8,), 0.1), size=10))
    outputs = algorithm.nets.outputs(batch.items)
    _, update = algorithm.loss(outputs.values, batch)

    support = np.linspace(-4.0, 2.0, 5)
    softmax = lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)  # noqa: E731
    with torch.no_grad():
        p = softmax(outputs.values.critic.double().numpy())
        after_logits = algorithm.target.critic_outputs(
            features := algorithm.target.features({"obs": items["next/obs"]}), algorithm.target.act(features)
        )
        after = softmax(after_logits.double().numpy())
    error = items["reward"].double().numpy() + items["discount"].double().numpy() * (after @ support) - p @ support
    told = {k: float(v) for k, v in update.metrics.items()}
    assert told["q_mean"] == pytest.approx((p @ support).mean(), rel=1e-3)
    assert told["td_error"] == pytest.approx(np.abs(error).mean(), rel=1e-3)
    np.testing.assert_allclose(present(update.priorities), np.abs(error), rtol=1e-3)
    slope, action = outputs.values.by_action.numpy(), outputs.values.action.detach().numpy()
    assert told["action_gradient"] == pytest.approx(np.abs(slope).mean(), rel=1e-3)
    assert told["saturated"] == pytest.approx((np.abs(action) > 0.99).mean()) and 0.0 < told["saturated"] < 1.0
    assert told["edge_mass"] == pytest.approx((p[:, 0] + p[:, -1]).mean(), rel=1e-3)
    assert told["top_edge_mass"] == pytest.approx(p[:, -1].mean(), rel=1e-3)
    quiet = DPG(dataclasses.replace(cfg, prioritised=False), algorithm.nets, 0)
    quiet.updates = 1
    batch = quiet.prepare(Batch(items))
    assert quiet.loss(quiet.nets.outputs(batch.items).values, batch)[1] == Update({})


@pytest.mark.parametrize("mass, clipped, step, looks, warns", [
    (0.9, 0.9, 1_000, 200, True), (0.9, 0.9, 999, 200, False), (0.9, 0.0, 1_000, 200, False),
    (0.0, 0.9, 1_000, 200, False), (0.9, 0.9, 1_000, 5, False), (0.9, 0.9, 1_000, 6, True),
    (0.04, 0.9, 1_000, 900, False),
])  # fmt: skip
def test_a_narrow_range_is_told_after_enough_updates(
    mass: float, clipped: float, step: int, looks: int, warns: bool
) -> None:
    """The averages over some hundred looks must pass 5 % of the mass: 0.9 (1 - 0.99^n) does after six of 0.9."""
    cfg = config("d4pg", env="Pendulum-v1", hidden=(4,), **CPU, v_min=-4.0, v_max=2.0)
    algorithm = DPG(cfg, apex_dpg.network(cfg, "cpu"), 0)
    learner = RangeLearner(algorithm, make_optimiser(cfg, algorithm.nets), progress=lambda update: 0.0)
    learner.step = step
    for _ in range(looks):
        learner.watch(mass, 0.1, clipped)
    assert learner.edges == pytest.approx(mass * (1 - 0.99**looks))
    assert learner.clipped == pytest.approx(clipped * (1 - 0.99**looks))
    assert learner.warned is warns
    again = RangeLearner(algorithm, make_optimiser(cfg, algorithm.nets), progress=lambda update: 0.0)
    again.load_state_dict(learner.state_dict())
    assert (again.edges, again.clipped, again.warned) == (learner.edges, learner.clipped, learner.warned)


@pytest.mark.parametrize("top, side", [(0.6, "largest"), (0.4, "smallest")])
def test_a_narrow_range_is_told_with_its_fuller_side(top: float, side: str, caplog: pytest.LogCaptureFixture) -> None:
    cfg = config("d4pg", env="Pendulum-v1", hidden=(4,), **CPU, v_min=-4.0, v_max=2.0)
    algorithm = DPG(cfg, apex_dpg.network(cfg, "cpu"), 0)
    learner = RangeLearner(algorithm, make_optimiser(cfg, algorithm.nets), progress=lambda update: 0.0)
    learner.step, learner.edges, learner.clipped = 1_000, 1.0, 1.0
    learner.watch(1.0, top, 1.0)
    assert f"-4 and 2, the most on the {side}" in caplog.text and caplog.text.count("outermost") == 1
    learner.watch(1.0, top, 1.0)
    assert caplog.text.count("outermost") == 1


# ------------------------------------------------------------------------------------------ QT-Opt
@pytest.mark.parametrize("loss", ["cross-entropy", "squared"])
def test_loss_of_labels_is_the_formula(loss: Any) -> None:
    cfg = config("qt-opt", env="Pendulum-v1", hidden=(4,), **CPU, loss=loss)
    algorithm = LabelledQ(cfg, module_of("qt-opt").network(cfg))
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=6), rng.random(6)
    batch = algorithm.prepare(Batch({"target": torch.from_numpy(y)}))
    outputs = torch.from_numpy(z).requires_grad_()
    found, update = algorithm.loss(outputs, batch)
    found.backward()
    q = 1 / (1 + np.exp(-z)) if loss == "cross-entropy" else z
    each = -(y * np.log(q) + (1 - y) * np.log(1 - q)) if loss == "cross-entropy" else 0.5 * (z - y) ** 2
    assert found.item() == pytest.approx(each.mean())
    np.testing.assert_allclose(present(outputs.grad), (q - y) / 6, rtol=1e-6)
    assert {k: float(v) for k, v in update.metrics.items()} == pytest.approx(
        {"q_mean": q.mean(), "td_error": np.abs(q - y).mean()}
    )
    algorithm.updates = 9
    assert not algorithm.loss(outputs, batch)[1].metrics
    algorithm.updates = 10
    assert algorithm.loss(outputs, batch)[1].metrics


# ------------------------------------------------------------------------------------------- ranks
def test_moments_mean_variance_and_normalisation_are_numpys() -> None:
    rng = np.random.default_rng(0)
    x, mask = rng.normal(3.0, 2.0, size=(6, 4, 2)), rng.random((6, 4)) < 0.7
    found = moments(torch.from_numpy(x), torch.from_numpy(mask))
    np.testing.assert_allclose(found, [np.full(2, mask.sum()), x[mask].sum(0), (x[mask] ** 2).sum(0)])
    mean, variance, count = mean_variance(found)
    np.testing.assert_allclose(mean, x[mask].mean(0))
    np.testing.assert_allclose(variance, x[mask].var(0), rtol=1e-9)
    assert count == mask.sum()
    one = torch.from_numpy(x[..., 0])
    sums = moments(one, torch.from_numpy(mask))
    expected = (x[..., 0] - x[mask][:, 0].mean()) / np.sqrt(x[mask][:, 0].var() + 1e-5)
    np.testing.assert_allclose(normalised(one, sums), expected, rtol=1e-5, atol=1e-6)
    near = torch.tensor([[1e-3, -1e-3]])
    sums = moments(near, torch.ones(1, 2, dtype=torch.bool))
    np.testing.assert_allclose(normalised(near, sums), near / np.sqrt(1e-6 + 1e-5), rtol=1e-4)
    nothing = mean_variance(torch.zeros(3))
    assert [float(v) for v in nothing] == [0.0, 0.0, 0.0]
    small = torch.tensor([4.0, 4e4, 4e8 - 1.0], dtype=torch.float64)  # rounding takes a variance below 0
    assert mean_variance(small)[1] == 0.0


# ---------------------------------------------------------------------------------- evolution strategies
EVOLVING = [
    dict(), dict(shaping="spread"), dict(shaping="spread", top=2), dict(weight_decay=0.3), dict(optimiser="sgd"),
    dict(optimiser="sgd", momentum=0.6, weight_decay=0.2), dict(learning_rate=linear(0.5, 0.1)), dict(cap=0.0),
    dict(cap=1.5, cap_start=3), dict(cap=0.1, cap_start=7),
]  # fmt: skip


@pytest.mark.parametrize("fields", EVOLVING)
def test_a_generation_moves_the_policy_as_the_oracle_says(fields: dict[str, Any]) -> None:
    cfg = config("es", **{**CPU, "hidden": (3,), "pairs": 4, "learning_rate": 0.1, **fields})
    torch.manual_seed(0)
    policy, rng = es.network(cfg), np.random.default_rng(1)
    table = rng.normal(size=500).astype(np.float32)
    learner = EvolutionLearner(cfg, policy, torch.from_numpy(table), 5, 400)
    assert int(learner.params()["task/seed"]) == 5
    assert int(learner.params()["task/cap"]) == (cfg.cap_start if cfg.cap else 0)
    theta = learner.theta.double().numpy().copy()
    m, v, velocity, steps, seen = np.zeros_like(theta), np.zeros_like(theta), np.zeros_like(theta), 0, np.zeros((0, 4))
    for t in (1, 2, 3):
        returns, lengths = rng.normal(size=(4, 2)), rng.integers(1, 30, size=(4, 2))
        index = rng.integers(0, 500 - len(theta), size=4)
        rows = [rng.normal(size=(5, 4)), rng.normal(size=(0, 4))]
        items = {
            "returns": torch.from_numpy(returns).float(),
            "lengths": torch.from_numpy(lengths),
            "index": torch.from_numpy(index),
        }
        items["count"] = torch.tensor([len(r) for r in rows])
        items["seen/obs"] = torch.from_numpy(np.array([[r.sum(0), (r**2).sum(0)] for r in rows]))
        metrics = learner.update(Batch(items)).metrics
        weights = (
            oracles.es_weights(returns)
            if cfg.shaping == "ranks"
            else oracles.ars_weights(returns, cfg.top or len(returns))
        )
        ascent = oracles.weighted_noise(table.astype(np.float64), index, weights, len(theta))
        rate = cfg.learning_rate
        if "learning_rate" in fields:
            rate = 0.5 - 0.4 * min(steps / 400, 1.0)
        direction, before = cfg.weight_decay * theta - ascent, theta.copy()
        if cfg.optimiser == "adam":
            m, v = 0.9 * m + 0.1 * direction, 0.999 * v + 0.001 * direction**2
            theta = theta - rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        else:
            velocity = cfg.momentum * velocity + (1 - cfg.momentum) * direction
            theta = theta - rate * velocity
        steps += int(lengths.sum())
        np.testing.assert_allclose(learner.theta, theta, rtol=1e-3, atol=1e-4)
        cap = max(cfg.cap_start, math.ceil(cfg.cap * lengths.mean())) if cfg.cap else 0
        assert int(learner.params()["task/cap"]) == cap and learner.env_steps == steps and learner.step == t
        assert metrics == pytest.approx({
            "population_return": returns.mean(), "best_return": returns.max(), "grad_norm": np.linalg.norm(ascent),
            "update_ratio": np.linalg.norm(theta - before) / np.linalg.norm(before), "learning_rate": rate,
            "episode_cap": cap,
        }, rel=1e-3)  # fmt: skip
        seen = np.concatenate([seen, rows[0]])
        norm: Any = policy.norms["obs"]
        np.testing.assert_allclose(norm.mean, seen.mean(0), rtol=1e-4, atol=1e-5)
        learner, policy = gone_on(cfg, learner, table)


def gone_on(cfg: Any, learner: EvolutionLearner, table: np.ndarray) -> tuple[EvolutionLearner, Any]:
    """Another that has taken over the state of ``learner``."""
    policy = es.network(cfg)
    other = EvolutionLearner(cfg, policy, torch.from_numpy(table), 99, 400)
    other.load_state_dict(copy.deepcopy(learner.state_dict()))
    return other, policy


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("hidden", [(), (5,), (4, 3)])
def test_a_population_of_perceptrons_acts_as_its_networks(activation: Any, hidden: tuple[int, ...]) -> None:
    cfg = config("es", **{**CPU, "hidden": hidden, "activation": activation})
    policy, rng = es.network(cfg), np.random.default_rng(0)
    cast(RunningNorm, policy.norms["obs"]).merge(torch.ones(4), torch.full((4,), 4.0), torch.tensor(10))
    for parameter in policy.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    fast, plain = (kind(policy, 3) for kind in (PerceptronPopulation, ModulePopulation))
    for made in (fast, plain):
        made.load({k: v.clone() for k, v in policy.state_dict().items()})
    for row in range(3):
        noise = rng.normal(size=policy.size).astype(np.float32)
        for made in (fast, plain):
            made.perturb(row, noise, 0.5 * (row + 1))
    obs = {"obs": rng.normal(0.0, 9.0, size=(3, 4)).astype(np.float32)}
    np.testing.assert_allclose(fast.outputs(obs), plain.outputs(obs), rtol=1e-4, atol=1e-5)
    outputs = fast.outputs(obs)
    assert not np.allclose(outputs[0], outputs[1])
    mask, best = np.ones(outputs.shape, bool), outputs.argmax(1)
    assert (fast.act(obs, rng) == best).all()
    mask[[0, 2], best[[0, 2]]] = False
    assert fast.act({**obs, MASK: mask}, rng).tolist() == [1 - best[0], best[1], 1 - best[2]]


def test_a_generation_without_a_finite_gradient_ends_the_run() -> None:
    cfg = config("es", **{**CPU, "hidden": (3,), "pairs": 4})
    learner = EvolutionLearner(cfg, es.network(cfg), torch.full((500,), math.nan), 5, 400)
    with pytest.raises(Diverged):
        learner.update(
            Batch({"returns": torch.rand(4, 2), "lengths": torch.ones(4, 2).int(), "index": torch.arange(4)})
        )


# ------------------------------------------------------------------------------------ parameter server
def test_outlier_rule_is_the_formula() -> None:
    """Judged before it is counted, from the 101st loss on; what is rejected counts as the threshold that it passed."""
    rng, found = np.random.default_rng(0), OutlierFilter(2.5, decay=0.9, warmup=20)
    mean = square = 0.0
    rejected = 0
    for seen in range(200):
        loss = float(rng.normal(1.0, 0.3)) * (20.0 if seen % 13 == 12 else 1.0) * (-1) ** seen
        threshold = mean + 2.5 * max(math.sqrt(max(square - mean**2, 0.0)), 1e-3 * mean, 1e-8)
        outlier = seen >= 20 and abs(loss) > threshold
        rejected += outlier
        counted, kept = (threshold if outlier else abs(loss)), min(0.9, seen / (seen + 1))
        assert found.accepts(loss) is not outlier
        mean, square = kept * mean + (1 - kept) * counted, kept * square + (1 - kept) * counted**2
        assert (found.mean, found.square, found.seen) == (pytest.approx(mean), pytest.approx(square), seen + 1)
        again = OutlierFilter(2.5, decay=0.9, warmup=20)
        again.load_state_dict(found.state_dict())
        assert vars(again) == vars(found)
    assert 5 < rejected < 60
    constant = OutlierFilter(2.0, warmup=1)
    assert all(constant.accepts(1.0) for _ in range(9)) and constant.accepts(1.0019) and not constant.accepts(1.01)


def test_gradients_add_up_until_they_are_taken() -> None:
    """Each clipped by itself; a state goes on with the sum."""
    learner = RemoteLearner(q_learning(td_clip=None), max_norm=0.25)
    assert learner.empty and learner.state_dict()["total"] is None
    total = torch.zeros_like(learner.total)
    for seed in range(3):
        given = acrobot(seed)
        update = learner.add(given)
        alone = RemoteLearner(q_learning(td_clip=None))
        alone.add(given)
        norm = float(alone.total.norm())
        assert update.metrics["grad_norm"] == pytest.approx(norm, rel=1e-4) and norm > 0.25
        total += alone.total * 0.25 / norm
        torch.testing.assert_close(learner.total, total, rtol=1e-4, atol=1e-6)
        assert not learner.empty
    other = RemoteLearner(q_learning(td_clip=None), max_norm=0.25)
    other.load_state_dict(copy.deepcopy(learner.state_dict()))
    assert not other.empty and torch.equal(other.total, learner.total)
    learner.reset()
    assert learner.empty
    learner.add(acrobot(0))
    assert float(learner.total.norm()) == pytest.approx(0.25, rel=1e-4)


def acrobot(seed: int) -> Batch:
    given, generator = drawn(seed), torch.Generator().manual_seed(seed)
    wide = {k: torch.randn(16, 6, generator=generator) for k in ("obs", "next/obs")}
    return given._replace(items={**given.items, **wide})


def test_advantages_that_hardly_differ_are_divided_by_1e_8_more_than_their_deviation() -> None:
    advantage, rows = torch.tensor([3e-8, -3e-8, 5.0]), torch.tensor([0, 1])
    items = {"normalised_advantage": torch.zeros(3), "weight": torch.zeros(3)}
    weigh_rows(items, advantage, rows)
    assert items["normalised_advantage"].tolist() == pytest.approx([0.75, -0.75, 0.0], rel=1e-5)
    assert items["weight"].tolist() == [0.5, 0.5, 0.0]
    valid = torch.tensor([[True, True, False]])
    columns = {"normalised_advantage": torch.zeros(1, 3), "weight": torch.full((1, 3), 9.0), "valid": valid}
    weigh_columns(columns, advantage.view(1, 3), rows)
    assert columns["normalised_advantage"].tolist()[0] == pytest.approx([0.75, -0.75, 0.0], rel=1e-5)
    assert columns["weight"].tolist() == [[0.5, 0.5, 9.0]]
    weigh_columns(columns, advantage.view(1, 3), torch.tensor([2]))
    assert columns["weight"].tolist() == [[0.5, 0.5, 0.0]] and columns["normalised_advantage"][0, 2] == 0.0


# ----------------------------------------------------------------------------------------- segments
def test_gradient_of_a_segment_is_clipped_by_the_schedule_of_the_moment() -> None:
    class Rule(Algorithm):
        def at(self, fraction: float) -> dict[str, float]:
            return {"told": fraction}

        def prepare(self, batch: Batch) -> Batch:
            return batch

        def loss(self, outputs: Any, batch: Batch) -> tuple[torch.Tensor, Update]:
            return (self.nets.weight * batch.items["x"]).sum(), Update({"own": 1.0})

    learner = SegmentLearner(Rule(nn.Linear(2, 1, bias=False)), linear(4.0, 2.0))
    assert learner.at(linear(0.2, 0.0), 0.5) == pytest.approx(0.1)
    grads, update = learner.gradient({"x": torch.tensor([[6.0, 8.0]])})
    assert grads is not None
    torch.testing.assert_close(grads["weight"], torch.tensor([[1.8, 2.4]]), rtol=1e-5, atol=0.0)
    assert update.metrics["grad_norm"] == pytest.approx(10.0)
    assert {k: update.metrics[k] for k in ("own", "told", "max_grad_norm", "skipped_updates")} == {
        "own": 1.0, "told": 0.5, "max_grad_norm": 3.0, "skipped_updates": 0.0,
    }  # fmt: skip
    for count in range(1, 10):
        assert learner.gradient({"x": torch.tensor([[math.inf, 1.0]])})[0] is None and learner.skipped == count
    with pytest.raises(Diverged, match="segments"):
        learner.gradient({"x": torch.tensor([[math.inf, 1.0]])})


def test_a_learner_of_parts_makes_a_step_of_each() -> None:
    cfg = config("impala", env="CartPole-v1", **CPU, learning_rate=0.0)
    nets = module_of("impala").network(cfg)
    algorithm = module_of("impala").VTrace(cfg, nets)
    asked: list[int] = []
    learner = SGDLearner(algorithm, make_optimiser(cfg, nets), parts=2, progress=lambda n: asked.append(n) or 0.0)  # type: ignore[func-returns-value]
    rng = np.random.default_rng(0)
    items = {
        "obs": torch.from_numpy(rng.normal(size=(3, 4, 4)).astype(np.float32)),
        "first": torch.zeros(3, 4, dtype=torch.bool), "action": torch.zeros(2, 4, dtype=torch.int64),
        "policy": torch.zeros(2, 4, 2), "reward": torch.ones(2, 4),
        **{k: torch.full((2, 4), k == "valid") for k in ("terminated", "truncated", "valid")},
    }  # fmt: skip
    first = learner.update(Batch(items))
    assert learner.step == 2 and asked == [0, 1] and first.metrics["skipped_updates"] == 0.0
    halves = [{k: v[:, s] for k, v in items.items()} for s in (slice(0, 2), slice(2, 4))]
    losses = [algorithm.loss(nets.outputs(half).values, Batch(half))[0].item() for half in halves]
    assert float(first.metrics["loss"]) == pytest.approx(sum(losses) / 2, rel=1e-4)
    items["reward"] *= math.nan
    assert learner.update(Batch(items)).metrics["skipped_updates"] == 1.0 and learner.gradient_step.skipped == 2
    again = SGDLearner(algorithm, make_optimiser(cfg, nets), parts=2, progress=lambda n: 0.0)
    again.load_state_dict(learner.state_dict())
    assert (again.step, again.gradient_step.skipped) == (4, 2)


def test_rewards_are_predicted_from_three_frames() -> None:
    """Jaderberg et al. 2017, section 3.2."""
    cfg = config("unreal", **CPU, screen=36, reward_prediction=True)
    nets = module_of("unreal").network(cfg)
    layer = next(m for m in nets.reward_prediction.modules() if isinstance(m, nn.Linear))
    assert layer.in_features == 3 * nets.encoder.seen_features


@pytest.mark.parametrize("separate", [False, True])
def test_a_value_that_is_learned_is_the_one_that_was_told(separate: bool) -> None:
    """On an encoder of its own, or on the policy's."""
    cfg = config("recurrent-ppo", env="CartPole-v1", **CPU, separate_critic=separate)
    torch.manual_seed(0)
    nets = module_of("recurrent-ppo").network(cfg)
    items = {"obs": torch.randn(5, 3, 4), "first": torch.zeros(5, 3, dtype=torch.bool)}
    policy, value = nets.unroll({"obs": items["obs"]}, items["first"], {})
    found = nets.outputs(items).values
    torch.testing.assert_close(found.value, value.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.policy, policy.detach(), rtol=1e-5, atol=1e-6)
    once = nets.step({"obs": items["obs"][0]}, items["first"][0], {})
    assert all(tensor.requires_grad for tensor in once[:2])
    torch.testing.assert_close(once[1], value[0], rtol=1e-5, atol=1e-6)
    (gradient,) = torch.autograd.grad(value.sum(), next(nets.encoder.parameters()), allow_unused=True)
    assert (gradient is None) == separate


@pytest.mark.parametrize(
    "low, high, zero", [(-9.0, 1.0, 0.0), (-9.0, -1.0, -1.0), (-1.0, 1.0, None), (-1.0, 3.0, None)]
)
def test_a_new_categorical_critic_expects_returns_around_zero_where_most_of_its_range_is_below(
    low: float, high: float, zero: float | None
) -> None:
    """By a Gaussian of a deviation of two atoms, whose logits are no further than 20 from the largest."""
    critic, atoms = Categorical(low, high, 51), np.linspace(low, high, 51)
    plain, own = nn.Linear(2, 51), nn.Linear(2, 51)
    for start, layer in ((Returns.start, plain), (Categorical.start, own)):
        torch.manual_seed(0)
        start(critic, layer)
    expected = np.zeros(51)
    if zero is not None:
        expected = np.maximum(-0.5 * ((atoms - zero) / (2 * (atoms[1] - atoms[0]))) ** 2, -20.0)
        assert expected.min() == -20.0
    np.testing.assert_allclose((own.bias - plain.bias).detach(), expected, atol=1e-4)


@pytest.mark.parametrize("components", [1, 2, 3])
def test_a_new_mixture_is_narrow_and_around_zero(components: int) -> None:
    """In units of half the range from -6 to 2: zero lies at 0.5."""
    mixture = Mixture(-6.0, 2.0, components, 4)
    spread = np.linspace(-INITIAL_SPREAD, INITIAL_SPREAD, components) if components > 1 else np.zeros(1)
    torch.manual_seed(0)
    plain = nn.Linear(2, mixture.size)
    before = plain.bias.detach().clone()
    Returns.start(mixture, plain)
    own = plain.bias.detach() - before
    torch.manual_seed(0)
    again = nn.Linear(2, mixture.size)
    mixture.start(again)
    found = (again.bias.detach() - before - own).chunk(3)
    np.testing.assert_allclose(found[0], np.zeros(components), atol=1e-6)
    np.testing.assert_allclose(found[1], 0.5 + spread, atol=1e-5)
    np.testing.assert_allclose(found[2], math.log(math.expm1(INITIAL_SPREAD)), atol=1e-5)


def test_an_updater_goes_on_with_both_networks_its_draws_and_its_demonstrations() -> None:
    class Others:
        drawn = 0

        def state_dict(self) -> dict[str, int]:
            return {"drawn": self.drawn}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.drawn = state["drawn"]

    cfg = config("qt-opt", env="Pendulum-v1", hidden=(4,), **CPU)
    one, other = (Bellman(module_of("qt-opt").network(cfg), seed, Others()) for seed in (1, 2))  # type: ignore[arg-type]
    one.offline.drawn = 7  # type: ignore[union-attr]
    with torch.no_grad():
        for p in one.second.parameters():
            p.add_(1.0)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    items = {k: torch.randn(5, 3) for k in ("obs", "next/obs")}
    items |= {"action": torch.rand(5, 1), "reward": torch.rand(5), "discount": torch.full((5,), 0.9)}
    assert torch.equal(one.targets(items)[0], other.targets(items)[0])
    assert other.offline.drawn == 7  # type: ignore[union-attr]


def test_a_linear_policy_of_evolution_strategies_begins_at_0_and_has_no_bias() -> None:
    """Mania et al. 2018; with hidden layers it is Salimans et al.'s."""
    linear, deep = (es.network(config("es", **{**CPU, "hidden": hidden})) for hidden in ((), (4,)))
    assert linear.head.bias is None and not linear.head.weight.any() and linear.size == 4 * 2
    assert deep.head.bias is not None and deep.head.weight.any() and deep.size == 4 * 4 + 4 + 4 * 2 + 2


def test_settings_of_a_remote_learner_follow_their_schedules() -> None:
    learner = RemoteLearner(
        q_learning(td_clip=linear(1.0, 0.5)), max_norm=linear(0.4, 0.2), progress=lambda steps: steps / 100
    )
    assert learner.max_norm == pytest.approx(0.4)
    learner.loaded(50)
    assert learner.max_norm == pytest.approx(0.3) and learner.algorithm.cfg.td_clip == pytest.approx(0.75)
    assert learner.add(acrobot(0)).metrics["td_clip"] == pytest.approx(0.75)
    assert float(learner.total.norm()) <= 0.3 * 1.00001
    other = RemoteLearner(q_learning(td_clip=linear(1.0, 0.5)), progress=lambda steps: steps / 100)
    other.load_state_dict(copy.deepcopy(learner.state_dict()))
    assert other.algorithm.cfg.td_clip == pytest.approx(0.75)


@pytest.mark.parametrize("copies, begins_anew", [(-1, True), (0, False), (3, False)])
def test_a_state_of_an_earlier_version_says_whether_the_target_was_copied(copies: int, begins_anew: bool) -> None:
    algorithm = q_learning(target_period=10)
    state = {k: v for k, v in algorithm.state_dict().items() if k != "copied"}
    algorithm.load_state_dict({**state, "updates": 25, "copies": copies})
    for p in algorithm.nets.parameters():
        p.data += 1.0
    algorithm.follow(29)
    assert moved(algorithm) is begins_anew


def test_sarsa_goes_on_with_the_step_that_it_holds() -> None:
    cfg = config("async-sarsa", env="CartPole-v1", hidden=(4,), **CPU)
    torch.manual_seed(0)
    nets, rng = module_of("async-q").network(cfg), np.random.default_rng(0)

    def part() -> Batch:
        items = {"obs": torch.from_numpy(rng.normal(size=(4, 2, 4)).astype(np.float32))}
        items |= {
            k: torch.zeros(n, 2, dtype=torch.bool) for k, n in (("first", 4), ("terminated", 3), ("truncated", 3))
        }
        items |= {"valid": torch.ones(3, 2, dtype=torch.bool), "reward": torch.from_numpy(rng.random((3, 2))).float()}
        return Batch({**items, "action": torch.from_numpy(rng.integers(2, size=(3, 2)))})

    one, other = OneStepSarsa(nets, 0.9), OneStepSarsa(nets, 0.9)
    one.prepare(part())
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    given = part()
    found = [algorithm.prepare(given).items for algorithm in (one, other)]
    assert all(torch.equal(found[0][k], found[1][k]) for k in found[0]) and found[0]["weight"].all()
