"""Learning rules with each of their settings away from the default, against plain float64 oracles."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import oracles
import pytest
import torch
from helpers import config, ppo_learner
from present import present

from shoal.api import Batch, Tensors
from shoal.learning.ppo_learner import MinibatchSteps, PPOLearner
from shoal.nets.actor_critic import PolicyValue
from shoal.systems import a3c, dd_ppo, impala, r2d2, recurrent_ppo
from shoal.systems.dd_ppo import RankLearner, gradient_spec
from shoal.systems.r2d2 import RecurrentQLearning
from shoal.systems.recurrent_ppo import METRICS, PPO

STEPS, COLUMNS, ACTIONS = 5, 4, 2  # CartPole's actions
CLOSE: dict[str, Any] = dict(rtol=2e-4, atol=2e-5)  # float32 against float64, sums of some 100 terms of size 1


def slope(function: Callable[[np.ndarray], float], at: np.ndarray, eps: float = 1e-6) -> np.ndarray:
    """The gradient by central differences."""
    out, flat = np.zeros_like(at), at.reshape(-1)
    for i in range(flat.size):
        kept = flat[i]
        flat[i] = kept + eps
        above = function(at)
        flat[i] = kept - eps
        out.reshape(-1)[i] = (above - function(at)) / (2 * eps)
        flat[i] = kept
    return out


def segment(rng: np.random.Generator, same_step: bool = True) -> Tensors:
    """Trajectories [T, B] with a termination, a truncation, and a row whose action was ignored."""
    terminated, truncated, valid = np.zeros((3, STEPS, COLUMNS), bool)
    valid[:] = True
    terminated[1, 0] = truncated[2, 1] = True
    valid[3, 2] = False
    items = {
        "reward": rng.normal(size=(STEPS, COLUMNS)).astype(np.float32),
        "action": rng.integers(ACTIONS, size=(STEPS, COLUMNS)),
        "policy": rng.normal(size=(STEPS, COLUMNS, ACTIONS)).astype(np.float32),
        "terminated": terminated, "truncated": truncated, "valid": valid,
    }  # fmt: skip
    if same_step:
        items["final_value"] = rng.normal(size=(STEPS, COLUMNS)).astype(np.float32)
    return {k: torch.from_numpy(v) for k, v in items.items()}


def boundaries(items: dict[str, np.ndarray], value: np.ndarray, gamma: float) -> tuple[np.ndarray, ...]:
    """Discounts, next values and cuts, every step by itself."""
    discount, following = np.zeros((2, STEPS, COLUMNS))
    cut = np.zeros((STEPS, COLUMNS), bool)
    for t, b in itertools.product(range(STEPS), range(COLUMNS)):
        discount[t, b] = 0.0 if items["terminated"][t, b] else gamma
        following[t, b] = value[t + 1, b]
        if items["truncated"][t, b] and "final_value" in items:
            following[t, b] = items["final_value"][t, b]
        next_ignored = t + 1 < STEPS and not items["valid"][t + 1, b]
        cut[t, b] = items["terminated"][t, b] or items["truncated"][t, b] or not items["valid"][t, b] or next_ignored
    return discount, following, cut


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def arrays(items: Tensors) -> dict[str, np.ndarray]:
    return {k: v.numpy().astype(np.float64) if v.dtype == torch.float32 else v.numpy() for k, v in items.items()}


IMPALA: dict[str, Any] = dict(
    rho_bar=0.8, c_bar=0.6, trace_lambda=0.7, gamma=0.9, value_cost=0.3, entropy_cost=0.2, reduction="sum"
)


@pytest.mark.parametrize("same_step", [True, False])
@pytest.mark.parametrize("correction", ["v-trace", "one-step", "epsilon", "none"])
@pytest.mark.parametrize("fields", [{}, *({k: v} for k, v in IMPALA.items()), IMPALA, dict(rho_bar=1.6, c_bar=1.4)])
def test_v_trace_loss_is_the_oracle(fields: dict[str, Any], correction: str, same_step: bool) -> None:
    cfg = config("impala", env="CartPole-v1", device="cpu", correction=correction, **fields)
    rng = np.random.default_rng(1)
    items = segment(rng, same_step)
    joined = torch.from_numpy(rng.normal(size=((STEPS + 1) * COLUMNS, ACTIONS + 1)).astype(np.float32))
    joined.requires_grad_()
    nets = impala.network(cfg)
    outputs = PolicyValue(joined, (STEPS + 1, COLUMNS), nets.dist)
    loss, update = impala.VTrace(cfg, nets).loss(outputs, Batch(items))
    loss.backward()

    given, exact = arrays(items), joined.detach().numpy().astype(np.float64)
    policy = lambda x: log_softmax(x.reshape(STEPS + 1, COLUMNS, -1)[:-1, :, :-1])  # noqa: E731
    taken = lambda logs: np.take_along_axis(logs, given["action"][..., None], -1)[..., 0]  # noqa: E731
    value = exact.reshape(STEPS + 1, COLUMNS, -1)[..., -1]
    log_rhos = taken(policy(exact)) - taken(log_softmax(given["policy"]))
    on_policy = np.zeros_like(log_rhos)
    discount, *after = boundaries(given, value, cfg.gamma)
    args: list[Any] = [
        log_rhos if correction == "v-trace" else on_policy,
        given["reward"],
        discount,
        value[:-1],
        *after,
    ]
    vs, advantage = oracles.vtrace(*[*args, cfg.rho_bar, cfg.c_bar, 1.0, cfg.trace_lambda])
    if correction == "one-step":
        advantage = advantage * np.minimum(1.0, np.exp(log_rhos))
    sums = np.zeros(3)

    def oracle(x: np.ndarray) -> float:
        logs, v = policy(x), x.reshape(STEPS + 1, COLUMNS, -1)[:-1, :, -1]
        log_prob = np.log(np.exp(taken(logs)) + 1e-6) if correction == "epsilon" else taken(logs)
        sums[:] = 0.0
        for t, b in itertools.product(range(STEPS), range(COLUMNS)):
            if given["valid"][t, b]:
                entropy = -(np.exp(logs[t, b]) * logs[t, b]).sum()
                sums[:] += [-advantage[t, b] * log_prob[t, b], 0.5 * (vs[t, b] - v[t, b]) ** 2, entropy]
        sums[:] /= given["valid"].sum() if cfg.reduction == "mean" else 1.0
        return float(sums @ [1.0, cfg.value_cost, -cfg.entropy_cost])

    np.testing.assert_allclose(present(joined.grad).numpy(), slope(oracle, exact), **CLOSE)
    assert loss.item() == pytest.approx(oracle(exact), rel=1e-4, abs=1e-4)
    metrics = {k: float(v) for k, v in update.metrics.items()}
    assert metrics["policy_loss"] == pytest.approx(sums[0], rel=1e-4, abs=1e-4)
    assert metrics["value_loss"] == pytest.approx(sums[1], rel=1e-4)
    last = policy(exact)[-1]
    assert metrics["entropy"] == pytest.approx(-(np.exp(last) * last).sum(-1).mean(), rel=1e-4)
    assert metrics["rho"] == pytest.approx(np.exp(log_rhos).mean(), rel=1e-4)
    counted = given["valid"]
    explained = 1.0 - (vs - value[:-1])[counted].var() / vs[counted].var()
    assert metrics["explained_variance"] == pytest.approx(explained, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("pop_art", [True, False])
def test_only_pop_art_makes_the_v_trace_loss_independent_of_the_size_of_rewards(pop_art: bool) -> None:
    cfg = config("impala", env="CartPole-v1", device="cpu", pop_art=pop_art)

    def losses(size: float) -> list[float]:
        rng, nets = np.random.default_rng(1), impala.network(cfg)
        items = segment(rng, same_step=False)
        items["reward"] = items["reward"] * size
        joined = torch.from_numpy(rng.normal(size=((STEPS + 1) * COLUMNS, ACTIONS + 1)).astype(np.float32))
        joined[:, -1] = 0.0  # values
        outputs = PolicyValue(joined, (STEPS + 1, COLUMNS), nets.dist, nets.pop_art)
        metrics = impala.VTrace(cfg, nets).loss(outputs, Batch(items))[1].metrics
        return [float(metrics[name]) for name in ("policy_loss", "value_loss")]

    policy, value = losses(1.0)
    expected = [policy, value] if pop_art else [64 * policy, 64**2 * value]
    assert losses(64.0) == pytest.approx(expected, rel=1e-4)


def test_pop_art_follows_the_returns_after_each_step_of_the_learner() -> None:
    cfg = config("impala", env="CartPole-v1", device="cpu", pop_art=True)
    nets = impala.network(cfg)
    algorithm, items = impala.VTrace(cfg, nets), segment(np.random.default_rng(1), same_step=False)
    joined = torch.zeros((STEPS + 1) * COLUMNS, ACTIONS + 1)
    algorithm.loss(PolicyValue(joined, (STEPS + 1, COLUMNS), nets.dist, nets.pop_art), Batch(items))
    scale = present(nets.pop_art)
    assert float(scale.count) == 0.0
    algorithm.after_step(1)
    algorithm.after_step(2)  # of a step that was skipped: nothing is new
    assert float(scale.count) == 1.0 and float(scale.spread()) != 1.0


def test_v_trace_loss_of_no_real_step_is_0() -> None:
    cfg = config("impala", env="CartPole-v1", device="cpu")
    items = segment(np.random.default_rng(0))
    items["valid"][:] = False
    nets = impala.network(cfg)
    joined = torch.zeros((STEPS + 1) * COLUMNS, ACTIONS + 1, requires_grad=True)
    loss, _ = impala.VTrace(cfg, nets).loss(PolicyValue(joined, (STEPS + 1, COLUMNS), nets.dist), Batch(items))
    assert loss.item() == 0.0


@pytest.mark.parametrize("env", ["CartPole-v1", "toy:point"])  # discrete actions, and those of a Gaussian
@pytest.mark.parametrize("fields", [{}, dict(gamma=0.5), dict(value_cost=0.3), dict(entropy_cost=0.3)])
def test_a3c_loss_is_the_oracle(fields: dict[str, Any], env: str) -> None:
    cfg = config("a3c", env=env, device="cpu", **fields)
    rng, nets = np.random.default_rng(2), a3c.network(cfg)
    items, width = segment(rng), nets.dist.params_size + 1
    if nets.dist.kind != "discrete":
        items["action"] = torch.from_numpy(rng.normal(size=(STEPS, COLUMNS, nets.dist.params_size // 2))).float()
    joined = torch.from_numpy(rng.normal(size=((STEPS + 1) * COLUMNS, width)).astype(np.float32)).requires_grad_()
    outputs = PolicyValue(joined, (STEPS + 1, COLUMNS), nets.dist)
    loss, update = a3c.AdvantageActorCritic(cfg, nets).loss(outputs, Batch(items))
    loss.backward()

    given, exact = arrays(items), joined.detach().double().requires_grad_()
    wide = PolicyValue(exact, (STEPS + 1, COLUMNS), nets.dist)
    action = items["action"].double() if items["action"].is_floating_point() else items["action"]
    log_prob, entropy = nets.dist.evaluate(wide.policy[:-1], action)  # test_distributions has its oracle
    value = wide.value.detach().numpy()
    discount, following, cut = boundaries(given, value, cfg.gamma)
    returns = torch.from_numpy(oracles.n_step_returns(given["reward"], discount, following, cut, STEPS))
    advantage = returns - wide.value[:-1]
    mask = items["valid"].double()
    sums = [(x * mask).sum() for x in (-advantage.detach() * log_prob, 0.5 * advantage**2, entropy)]
    expected = sums[0] + cfg.value_cost * sums[1] - cfg.entropy_cost * sums[2]
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    np.testing.assert_allclose(present(joined.grad), present(exact.grad), **CLOSE)
    told = [float(update.metrics[k]) for k in ("policy_loss", "value_loss", "entropy")]
    assert told == pytest.approx([float(x.detach() / mask.sum()) for x in sums], rel=1e-4)


PPO_FIELDS: dict[str, Any] = dict(clip=0.05, value_cost=0.3, entropy_cost=0.2, clip_value=True)


@pytest.mark.parametrize("env", ["CartPole-v1", "toy:point"])
@pytest.mark.parametrize("fields", [{}, *({k: v} for k, v in PPO_FIELDS.items()), PPO_FIELDS, dict(clip=0.0)])
def test_ppo_loss_is_the_oracle(fields: dict[str, Any], env: str) -> None:
    cfg = config("recurrent-ppo", env=env, device="cpu", **fields)
    rng, nets, rows = np.random.default_rng(3), recurrent_ppo.network(cfg), 12
    width = nets.dist.params_size + 1
    outputs = torch.from_numpy(rng.normal(size=(rows, width)).astype(np.float32)).requires_grad_()
    said = PolicyValue(outputs, (rows,), nets.dist)
    action = torch.from_numpy(rng.integers(ACTIONS, size=rows))
    if nets.dist.kind != "discrete":
        action = torch.from_numpy(rng.normal(size=(rows, (width - 1) // 2))).float()
    log_prob, entropy = said.evaluate(action)
    near = lambda x: x.detach() + torch.from_numpy(rng.normal(0.0, 0.2, size=rows).astype(np.float32))  # noqa: E731
    items = {"action": action, "log_prob": near(log_prob), "value": near(said.value)}
    for name in ("normalised_advantage", "target", "weight"):
        items[name] = torch.from_numpy(rng.random(rows).astype(np.float32) + (name == "target"))
    items["normalised_advantage"] -= 0.5
    loss, update = PPO(cfg, nets).loss(said, Batch(items))
    old = [items[k] for k in ("log_prob", "value", "normalised_advantage", "target", "weight")]
    args: list[Any] = [x.detach().double().tolist() for x in (log_prob, entropy, said.value, *old)]
    rule = dict(c_v=cfg.value_cost, c_e=cfg.entropy_cost, clip_value=cfg.clip_value)
    expected, told = oracles.ppo_loss(*[*args, max(cfg.clip, 1e-3)], **rule)
    assert loss.item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert {k: float(v) for k, v in update.metrics.items()} == pytest.approx(
        dict(zip(METRICS, told, strict=True)), rel=1e-3, abs=1e-5
    )


def rollout(cfg: recurrent_ppo.Config, seed: int = 4) -> Tensors:
    """Of CartPole, with log-probabilities and values as if of another policy."""
    rng = np.random.default_rng(seed)
    items = segment(rng)
    del items["policy"]
    shape = (STEPS + 1, COLUMNS)
    items["obs"] = torch.from_numpy(rng.normal(size=(*shape, 4)).astype(np.float32))
    items["value"] = torch.from_numpy(rng.normal(size=shape).astype(np.float32))
    items["log_prob"] = torch.from_numpy(rng.normal(-0.7, 0.1, size=shape[:1] + shape[1:]).astype(np.float32))[:-1]
    items["first"] = torch.zeros(shape, dtype=torch.bool)
    return items


@pytest.mark.parametrize("fields", [{}, dict(gamma=0.6), dict(gae_lambda=0.3), dict(gamma=0.8, gae_lambda=1.0)])
def test_ppo_prepares_the_oracles_advantages_and_targets(fields: dict[str, Any]) -> None:
    cfg = config("recurrent-ppo", env="CartPole-v1", device="cpu", **fields)
    items = rollout(cfg)
    data, given = ppo_learner(cfg).algorithm.prepare(Batch(items)).items, arrays(items)
    value = given["value"]
    discount, following, cut = boundaries(given, value, cfg.gamma)
    advantage = oracles.gae(given["reward"], discount, value[:-1], following, cut, cfg.gae_lambda)
    np.testing.assert_allclose(data["advantage"], advantage, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(data["target"], advantage + value[:-1], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(data["value"], items["value"][:-1])


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_ppo_normalises_advantages_in_each_minibatch_by_its_valid_steps(core: str) -> None:
    cfg = config("recurrent-ppo", env="CartPole-v1", device="cpu", core=core, core_size=3, minibatches=2, epochs=1)
    learner, items = ppo_learner(cfg), rollout(cfg)
    items |= {f"state/{k}": v for k, v in learner.nets.initial_state(COLUMNS).items()}
    data, seen = learner.algorithm.prepare(Batch(items)).items, []
    advantage, valid, step = data["advantage"].numpy().copy(), items["valid"].numpy(), learner.workers.step

    def spied(rows: torch.Tensor) -> Any:
        seen.append(rows.tolist())
        return step(rows)

    learner.workers.step = spied  # type: ignore[method-assign]
    learner.update(Batch(items))
    told = {k: learner.workers.items[k].numpy().reshape(STEPS, COLUMNS) for k in ("normalised_advantage", "weight")}
    assert len(seen) == 2
    for rows in seen:
        mask = np.zeros((STEPS, COLUMNS), bool)
        if core == "none":
            mask.reshape(-1)[rows] = True
            assert valid[mask].all()
        else:
            mask[:, rows] = True
            assert not told["weight"][mask & ~valid].any()
        part = advantage[mask & valid].astype(np.float64)
        np.testing.assert_allclose(told["weight"][mask & valid], 1.0 / len(part), rtol=1e-6)
        wanted = (part - part.mean()) / (part.std() + 1e-8)
        np.testing.assert_allclose(told["normalised_advantage"][mask & valid], wanted, rtol=1e-3, atol=1e-4)
    assert sorted(itertools.chain(*seen)) == (
        np.flatnonzero(valid).tolist() if core == "none" else list(range(COLUMNS))
    )


@pytest.mark.parametrize("system", ["recurrent-ppo", "dd-ppo"])
def test_target_kl_stops_after_the_pass_whose_mean_is_above_it(system: str) -> None:
    """Not at it: with a target a little above what a pass has, the next one is made."""
    fields: dict[str, Any] = dict(
        env="CartPole-v1", device="cpu", minibatches=2, learning_rate=0.05, max_grad_norm=None
    )

    def passes(**more: Any) -> tuple[int, float]:
        if system == "recurrent-ppo":
            learner = ppo_learner(config(system, **fields, **more))
            metrics = learner.update(Batch(rollout(learner.cfg))).metrics
        else:
            metrics = alone(config(system, **fields, **more, actors=1))
        return int(metrics["minibatches"]) // 2, float(metrics["kl"])

    first = passes(epochs=1)[1]
    assert first > 1e-4
    assert passes(epochs=3) == (3, passes(epochs=3)[1])
    assert passes(epochs=3, target_kl=0.99 * first)[0] == 1
    assert passes(epochs=3, target_kl=1.01 * first)[0] > 1
    assert passes(epochs=3, target_kl=1e9)[0] == 3


def alone(cfg: Any) -> dict[str, float]:
    """An update of the only rank: every sum and mean is its own."""
    torch.manual_seed(0)
    learner = RankLearner(cfg, dd_ppo.network(cfg), cfg.steps, 0, 1)
    sums = learner.moments(rollout(cfg))
    learner.begin({k: torch.from_numpy(np.asarray(v)) for k, v in sums.items()})
    item = {k: np.zeros(f.shape, f.dtype) for k, f in gradient_spec(learner.nets).items()}
    while True:
        learner.gradient(item)
        if learner.descend({k: torch.from_numpy(v.copy()) for k, v in item.items()}):
            return {k: float(v) for k, v in learner.report().metrics.items()}


RECURRENT: dict[str, Any] = dict(
    double=False, td_clip=0.2, reduction="sum", gamma=0.7, n_step=2, rescale=0.1, priority_mix=0.3, prioritised=False,
    burn_in=3,
)  # fmt: skip


@pytest.mark.parametrize("fields", [{}, *({k: v} for k, v in RECURRENT.items()), dict(rescale=None), RECURRENT])
def test_recurrent_q_loss_is_the_oracle(fields: dict[str, Any]) -> None:
    cfg = config("r2d2", env="CartPole-v1", device="cpu", **fields)
    rng, nets = np.random.default_rng(5), r2d2.network(cfg)
    rows, beta = cfg.burn_in + STEPS + 1, 0.7
    q, target = (rng.normal(size=(STEPS + 1, COLUMNS, ACTIONS)).astype(np.float32) * 2 for _ in range(2))
    valid = np.ones((rows, COLUMNS), bool)
    valid[-2:, 1] = False
    items = {
        "action": rng.integers(ACTIONS, size=(rows, COLUMNS)), "valid": valid,
        "reward": rng.normal(size=(rows, COLUMNS)).astype(np.float32), "terminated": ~valid & (rng.random() < 0),
    }  # fmt: skip
    items["terminated"][-3, 1] = True  # after which nothing is real
    probs = rng.random(COLUMNS).astype(np.float32)
    algorithm = RecurrentQLearning(cfg, nets, beta)
    algorithm.target = lambda given: torch.from_numpy(target)
    batch = algorithm.prepare(
        Batch({k: torch.from_numpy(v) for k, v in items.items()}, probs=torch.from_numpy(probs), size=9)
    )
    outputs = torch.from_numpy(q).requires_grad_()
    loss, update = algorithm.loss(outputs, batch)
    loss.backward()

    weight = oracles.importance_weights(probs, 9, beta, True) if cfg.prioritised else np.ones(COLUMNS)
    weight = weight / (COLUMNS if cfg.reduction == "mean" else 1)
    action, reward, terminated = (items[k][cfg.burn_in : -1] for k in ("action", "reward", "terminated"))
    expected, gradient, error, priority = oracles.sequence_td_loss(
        q.astype(np.float64), target.astype(np.float64), action, reward.astype(np.float64),
        cfg.gamma * ~terminated, valid[cfg.burn_in :], weight, cfg.double, cfg.n_step, cfg.rescale, cfg.td_clip,
        cfg.priority_mix,
    )  # fmt: skip
    assert loss.item() == pytest.approx(expected, rel=1e-3)
    np.testing.assert_allclose(present(outputs.grad), gradient, rtol=1e-3, atol=1e-4)
    if cfg.prioritised:
        np.testing.assert_allclose(present(update.priorities), priority, rtol=1e-3)
    else:
        assert update.priorities is None
    real = valid[cfg.burn_in : -1]
    values = np.take_along_axis(q[:-1], action[..., None], -1)[..., 0].astype(np.float64)
    values = values if cfg.rescale is None else oracles.h_inverse(values.reshape(-1), cfg.rescale).reshape(real.shape)
    assert float(update.metrics["td_error"]) == pytest.approx(error.sum() / real.sum(), rel=1e-3)
    assert float(update.metrics["q_mean"]) == pytest.approx(values[real].mean(), rel=1e-3, abs=1e-4)


def learned(learner: PPOLearner, items: dict[str, torch.Tensor]) -> dict[str, float]:
    """What an update's passes report, but for what is known of the batch before them."""
    metrics = learner.algorithm.learn(Batch(items), MinibatchSteps(learner.workers, learner.rng)).metrics
    return {k: v for k, v in metrics.items() if k != "explained_variance"}


def test_ppo_tells_means_over_its_minibatches_and_the_first_ones_largest_ratio() -> None:
    cfg = config("recurrent-ppo", env="CartPole-v1", device="cpu", minibatches=2, epochs=2)
    learner, rng = ppo_learner(cfg), np.random.default_rng(0)
    more = dataclasses.replace(cfg, epochs=7, minibatches=3)
    assert ppo_learner(more).gradient_step.patience == 10 * 7 * 3, "of ten updates"
    values, norms = rng.random((4, 3, len(METRICS))).astype(np.float32), [1.0, None, 3.0, 5.0]  # of three members
    steps: Iterator[Any] = iter(zip(norms, values, strict=True))

    def step(rows: torch.Tensor) -> Any:
        norm, found = next(steps)
        return norm, 0.0, torch.from_numpy(found), None

    learner.workers.step, learner.workers.names = step, list(METRICS)  # type: ignore[method-assign]
    told = learned(learner, rollout(cfg))
    taken = values[[0, 2, 3]].astype(np.float64)
    expected = dict(zip(METRICS, taken.sum(1).mean(0), strict=True))  # a member tells its part of a sum
    expected |= {
        "ratio_error": taken[0, :, -1].max(), "grad_norm": 3.0, "minibatches": 3.0, "skipped_updates": 0.25,
    }  # fmt: skip
    assert told == pytest.approx(expected, rel=1e-5)
    steps = iter([(None, values[0])] * 4)
    assert learned(learner, rollout(cfg)) == {"minibatches": 0.0, "skipped_updates": 1.0}


def test_ppo_counts_the_steps_that_are_real() -> None:
    learner = ppo_learner(cfg := config("recurrent-ppo", env="CartPole-v1", device="cpu"))
    items = rollout(cfg)
    for updates in (1, 2):
        learner.update(Batch({name: tensor.clone() for name, tensor in items.items()}))
        assert learner.env_steps == updates * int(items["valid"].sum()) < updates * items["valid"].numel()


@pytest.mark.parametrize("target_kl, made", [(None, 6), (0.19, 2), (0.21, 4), (0.29, 4), (0.31, 6), (0.9, 6)])
def test_ppo_stops_by_the_mean_kl_of_a_pass_over_all_members(target_kl: float | None, made: int) -> None:
    """Passes of two minibatches whose divergences (sums over two members) have the means 0.2, 0.3 and 0.4."""
    cfg = config("recurrent-ppo", env="CartPole-v1", device="cpu", minibatches=2, epochs=3, target_kl=target_kl)
    learner, count = ppo_learner(cfg), itertools.count()

    def step(rows: torch.Tensor) -> Any:
        found = torch.zeros(2, len(METRICS))
        found[:, METRICS.index("kl")] = torch.tensor([0.06, 0.04]) * (next(count) // 2 + 2)
        return 1.0, 0.0, found, None

    learner.workers.step, learner.workers.names = step, list(METRICS)  # type: ignore[method-assign]
    assert learned(learner, rollout(cfg))["minibatches"] == made


def test_ranks_tell_means_over_the_minibatches_that_were_taken() -> None:
    cfg = config("dd-ppo", env="CartPole-v1", device="cpu", minibatches=2, epochs=2, actors=1)
    learner, rng = RankLearner(cfg, dd_ppo.network(cfg), cfg.steps, 0, 1), np.random.default_rng(0)
    items = rollout(cfg)
    sums = learner.moments(items)
    assert learner.begin({k: torch.from_numpy(np.asarray(v)) for k, v in sums.items()}) == int(items["valid"].sum())
    assert learner.env_steps == int(items["valid"].sum())
    item, told, norms, first = (
        {k: np.zeros(f.shape, f.dtype) for k, f in gradient_spec(learner.nets).items()},
        [],
        [],
        0.0,
    )
    for number in range(4):
        learner.gradient(item)
        first = float(item["metrics"][len(METRICS) - 1]) if number == 0 else first
        means = {k: torch.from_numpy(v.copy()) for k, v in item.items()}
        means["metrics"][:] = torch.from_numpy(rng.random(len(METRICS) + 2))
        if number == 1:
            means["metrics"][len(METRICS)] = np.nan  # the loss: this one is skipped
        else:
            told.append(means["metrics"][: len(METRICS)].numpy().copy())
            norms.append(float(torch.linalg.vector_norm(means["gradient"])))
        assert learner.descend(means) is (number == 3)
    expected = dict(zip(METRICS, np.mean(told, 0), strict=True)) | {
        "grad_norm": np.mean(norms), "ratio_error": first, "minibatches": 3.0, "skipped_updates": 0.25,
    }  # fmt: skip
    assert {k: v for k, v in learner.report().metrics.items() if k in expected} == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("every, checked", [(0, []), (1, [0, 1, 2, 3, 4]), (2, [0, 2, 4])])
def test_ranks_compare_their_parameters_every_so_many_updates(every: int, checked: list[int]) -> None:
    cfg = config("dd-ppo", env="CartPole-v1", device="cpu", check_every=every, actors=1)
    learner, found = RankLearner(cfg, dd_ppo.network(cfg), cfg.steps, 0, 1), []
    for step in range(5):
        learner.step = step
        if int(learner.moments(rollout(cfg))["digest"]):
            found.append(step)
    assert found == checked
    before = learner._digest()
    with torch.no_grad():
        next(iter(learner.nets.parameters())).flatten()[-1].add_(1e-6)
    assert learner._digest() != before


@pytest.mark.parametrize("stopped", [0, 1, 2, 3])
def test_a_rank_goes_on_within_its_pass(stopped: int) -> None:
    """From a state saved after so many of four minibatches, to the same parameters and the same report."""
    cfg = config("dd-ppo", env="CartPole-v1", device="cpu", minibatches=2, epochs=2, actors=1, normalise_obs=True)
    torch.manual_seed(0)
    learner = RankLearner(cfg, dd_ppo.network(cfg), cfg.steps, 0, 1)
    learner.begin({k: torch.from_numpy(np.asarray(v)) for k, v in learner.moments(rollout(cfg)).items()})
    item = {k: np.zeros(f.shape, f.dtype) for k, f in gradient_spec(learner.nets).items()}

    def minibatch(of: RankLearner) -> bool:
        of.gradient(item)
        return of.descend({k: torch.from_numpy(v.copy()) for k, v in item.items()})

    for _ in range(stopped):
        assert not minibatch(learner)
    other = RankLearner(cfg, dd_ppo.network(cfg), cfg.steps, 99, 1)
    other.load_state_dict(copy.deepcopy(learner.state_dict()))
    for number in range(stopped, 4):
        for one in (learner, other):
            assert minibatch(one) is (number == 3)
    assert learner.report() == other.report() and (other.step, other.env_steps) == (1, learner.env_steps)
    for name, tensor in learner.nets.state_dict().items():
        torch.testing.assert_close(other.nets.state_dict()[name], tensor, rtol=1e-5, atol=1e-6)
