"""Asynchronous Q-learning, SARSA and n-step Q-learning: gradients by hand, the target network that all share, and the
exploration that each worker draws."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from helpers import config, run, spy
from modules import module_of

from shoal.api import Batch, Context, Tensors, UsageError
from shoal.learning.gradient_step import GradientStep
from shoal.metering.recorder import Recorder
from shoal.ops import Replace, RMSProp
from shoal.ops.optimiser import set_learning_rate
from shoal.program import Program
from shoal.roles.worker import TAKEN, TargetWorkerRole
from shoal.settings.schedule import at
from shoal.systems import async_q, load

NAMES = ("async-q", "async-sarsa", "async-nstep-q")
SMALL: dict[str, Any] = dict(env="toy:corridor", device="cpu", precision="fp32", steps=20_000, epsilon_steps=2_000)


def recorded(program: Program) -> list[dict[str, Any]]:
    """Fills the list with each segment as the program runs: its worker, both networks, its gradient."""
    seen: list[dict[str, Any]] = []

    def attach(worker: TargetWorkerRole) -> None:
        learner: Any = worker.learner
        gradient = learner.gradient

        def record(items: Tensors) -> Any:
            one: dict[str, Any] = {"worker": worker.ctx.index, "items": {k: v.clone() for k, v in items.items()}}
            one["params"] = {k: v.clone() for k, v in learner.params().items()}
            one["target"] = {k: v.clone() for k, v in learner.algorithm.target.state_dict().items()}
            one["steps"] = worker.ctx.steps() - int(items["valid"].sum())  # before the segment
            grads, update = gradient(items)
            one["gradient"] = {k: v.clone() for k, v in grads.items()}
            seen.append(one)
            return grads, update

        learner.gradient = record

    spy(program, "worker", attach)
    return seen


def slow_targets(name: str, gamma: float, items: Tensors, q: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """[T, B] by walking; q: the target network's [T + 1, B, A]; actions: [T + 1, B], the last one SARSA's."""
    reward, terminated, truncated, valid = (
        items[k].numpy() for k in ("reward", "terminated", "truncated", "valid")
    )  # fmt: skip
    out = np.zeros(reward.shape)
    for b in range(reward.shape[1]):
        for start in range(len(reward)):
            total, factor, t = 0.0, 1.0, start
            while True:
                total += factor * reward[t, b]
                factor *= gamma
                ended = terminated[t, b] or truncated[t, b] or not valid[t, b]
                if ended or name != "async-nstep-q" or t + 1 == len(reward):
                    break
                t += 1
            if not terminated[t, b]:
                after = q[t + 1, b]
                total += factor * (after[actions[t + 1, b]] if name == "async-sarsa" else after.max())
            out[start, b] = total
    return out


def joined(before: Tensors | None, items: Tensors) -> Tensors:
    """What SARSA learns from: the last step of the segment before, and all but the last of this one."""
    steps = len(items["reward"])
    if before is None:
        before = {k: v[:steps].clone() for k, v in items.items()}
        before = {k: v[:1].expand(steps, *v.shape[1:]) for k, v in before.items()} | {
            "valid": torch.zeros_like(before["valid"])
        }
    both = {k: torch.cat((before[k][steps - 1 : steps], v)) for k, v in items.items()}
    return {k: v[: steps + (k in ("obs", "first", "action"))] for k, v in both.items()}


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_is_that_of_the_sum_of_squared_errors(name: str) -> None:
    """By autograd through the plain network, with targets worked out step by step."""
    cfg = config(name, **SMALL, max_grad_norm=None, unroll=6)
    program = load(name).program(cfg)
    seen = recorded(program)
    run(program, 24)
    for ending in ("terminated", "truncated"):
        assert any(bool(one["items"][ending].any()) for one in seen), ending
    last: dict[int, Tensors] = {}
    nets, target = async_q.network(cfg), async_q.network(cfg)
    for one in seen:
        items = one["items"]
        learned = joined(last.get(one["worker"]), items) if name == "async-sarsa" else items
        last[one["worker"]] = items
        nets.load_state_dict(one["params"])
        target.load_state_dict(one["target"])
        values = target({"obs": learned["obs"].flatten(0, 1)}).detach().numpy().reshape(*learned["first"].shape, -1)
        expected = slow_targets(name, cfg.gamma, learned, values, learned["action"].numpy())
        nets.zero_grad()
        steps = len(items["reward"])
        mine = nets({"obs": learned["obs"][:steps].flatten(0, 1)})
        chosen = mine[torch.arange(len(mine)), learned["action"][:steps].flatten()]
        error = torch.from_numpy(expected.astype(np.float32)).flatten() - chosen
        (error.square() * learned["valid"].flatten()).sum().backward()
        for key, p in nets.named_parameters():
            torch.testing.assert_close(one["gradient"][key], p.grad, atol=1e-5, rtol=1e-4)


def test_one_step_q_with_segments_of_one_step_is_n_step_q() -> None:
    found = []
    for name in ("async-q", "async-nstep-q"):
        found.append(run(load(name).program(config(name, **SMALL, unroll=1)), 40).params["params"])
    assert all(torch.equal(found[0][k], v) for k, v in found[1].items())
    longer = [run(load(name).program(config(name, **SMALL)), 8).params["params"] for name in ("async-q", NAMES[2])]
    assert any(not torch.equal(longer[0][k], v) for k, v in longer[1].items()), "of longer segments it is not"


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_are_one_learner_with_one_rmsprop_in_turn(workers: int) -> None:
    """Bit for bit: parameters, and a target network that is copied where the count of all steps says so."""
    cfg = config("async-nstep-q", **SMALL, actors=workers, max_grad_norm=0.5)
    program = load("async-nstep-q").program(cfg)
    seen = recorded(program)
    report = run(program, 30)
    nets, target = async_q.network(cfg), seen[0]["params"]
    nets.load_state_dict(target)
    algorithm: Any = module_of("async-nstep-q").NStepQ(nets, cfg.gamma)
    optimiser = RMSProp(nets.parameters(), cfg.learning_rate, cfg.rmsprop_decay, cfg.optimiser_eps)
    step, period, copies = GradientStep(optimiser, cfg.max_grad_norm), 0, 0
    for number, one in enumerate(seen):
        assert one["worker"] == number % workers
        if one["steps"] // cfg.target_period != period:
            period, copies = one["steps"] // cfg.target_period, copies + 1
            target = {k: p.detach().clone() for k, p in nets.named_parameters()}
        assert all(torch.equal(one["params"][k], p) for k, p in nets.named_parameters()), number
        assert all(torch.equal(one["target"][k], v) for k, v in target.items()), number
        algorithm.target.load_state_dict(target)
        steps = one["steps"] + int(one["items"]["valid"].sum())
        set_learning_rate(optimiser, at(cfg.learning_rate, steps / cfg.steps))
        step.minimise(algorithm, algorithm.prepare(Batch(one["items"])))
    assert copies >= 3
    assert all(torch.equal(report.params["params"][k], p) for k, p in nets.named_parameters())
    assert all(torch.equal(report.params["target"][k], v) for k, v in target.items())
    assert int(report.params["target"][TAKEN]) // cfg.target_period == period


def test_a_worker_that_was_held_up_leaves_the_target_of_a_later_period() -> None:
    """It looked at 1,990 steps, in the period before that of the target it then finds."""
    roles: list[Any] = []
    program = async_q.program(config("async-q", **{**SMALL, "target_period": 1_000, "actors": 1}))
    run(spy(program, "worker", roles.append), 2)
    (role,) = roles
    _, held = role.target.copy()
    role.target.add({**held, TAKEN: torch.tensor(2_010)}, 0.0)
    role._loaded = 1
    role._renew(1_990)
    assert int(role.target.copy()[1][TAKEN]) == 2_010
    role._loaded = 3
    role._renew(3_005)  # the first of a new period renews it
    assert int(role.target.copy()[1][TAKEN]) == 3_005


def test_sarsa_learns_each_step_once_with_the_action_that_was_taken() -> None:
    cfg = config("async-sarsa", **SMALL, unroll=3)
    algorithm = module_of("async-sarsa").OneStepSarsa(async_q.network(cfg), cfg.gamma)
    values = torch.arange(12.0).view(6, 2)  # of the corridor's cell, by action

    class Table:
        def __call__(self, obs: Tensors) -> torch.Tensor:
            return obs["obs"] @ values

    algorithm.target = Table()

    def segment(first_step: int, begins: bool = False) -> Tensors:
        """Steps of a stream whose observation t is cell t % 6, action t % 2, reward t."""
        t = torch.arange(first_step, first_step + 3)
        no = torch.zeros((3, 1), dtype=torch.bool)
        first = torch.zeros((4, 1), dtype=torch.bool)
        first[0] = begins
        cells = torch.arange(first_step, first_step + 4) % 6
        return {
            "obs": torch.eye(6)[cells][:, None], "first": first, "action": (t % 2)[:, None],
            "reward": t.float()[:, None], "terminated": no, "truncated": no, "valid": ~no,
        }  # fmt: skip

    def learned(items: Tensors) -> list[tuple[float, float]]:
        rows = algorithm.prepare(Batch(items)).items
        return [(float(y), float(w)) for y, w in zip(rows["target"], rows["weight"], strict=True)]

    def y(t: int) -> float:
        return t + cfg.gamma * float(values[(t + 1) % 6, (t + 1) % 2])

    first, second, third = learned(segment(0)), learned(segment(3)), learned(segment(0, begins=True))
    assert first[0][1] == 0.0 and [w for _, w in first[1:]] == [1.0, 1.0]
    assert [x for x, _ in first[1:]] == pytest.approx([y(0), y(1)])
    assert second == [(pytest.approx(y(t)), 1.0) for t in (2, 3, 4)]
    assert [w for _, w in third] == [0.0, 1.0, 1.0], "environments that begin anew end nothing and continue nothing"


# ------------------------------------------------------------------------------------ exploration
def worker_epsilon(seed: int, steps: int, **fields: Any) -> np.ndarray:
    cfg = async_q.Config(env="toy:corridor", **fields)
    ctx = Context("worker", 0, 4, 0, seed, Recorder(), steps=lambda: steps)
    return np.asarray(async_q.agent(cfg, seed, ctx).epsilon(0))


def test_final_epsilons_are_drawn_with_the_papers_odds() -> None:
    """a3c-unreal.md 4.7: .4 of .1, .3 of .01, .3 of .5; .193 on average. 2,000 draws: within 5 deviations."""
    drawn = np.concatenate([worker_epsilon(seed, 10**9, envs=4) for seed in range(500)])
    counts = Counter(drawn.tolist())
    assert counts.keys() == {0.1, 0.01, 0.5}
    for value, odds in ((0.1, 0.4), (0.01, 0.3), (0.5, 0.3)):
        assert abs(counts[value] / 2_000 - odds) < 5 * np.sqrt(odds * (1 - odds) / 2_000)
    paper = async_q.Config(env="toy:corridor", **{k: v for k, v in async_q.PAPER.items() if k.startswith("epsilon")})
    assert sum(e * p for e, p in zip(paper.epsilon_final, paper.epsilon_odds, strict=True)) == pytest.approx(0.193)


def test_epsilon_falls_by_the_steps_of_all_workers() -> None:
    for steps, expected in ((0, 1.0), (500, 0.55), (1_000, 0.1), (5_000, 0.1)):
        found = worker_epsilon(0, steps, epsilon_steps=1_000, epsilon_final=(0.1,), epsilon_odds=(1.0,))
        assert found == pytest.approx(np.full(1, expected))
    assert worker_epsilon(0, 0, epsilon_steps=0, epsilon_final=(0.1,), epsilon_odds=(1.0,)) == pytest.approx(0.1)


# ---------------------------------------------------------------------------------------- refusals
def test_replacing_is_copying() -> None:
    params, new = {"w": torch.zeros(2)}, {"w": torch.tensor([1.0, 2.0])}
    Replace().apply(params, {}, new, 0.0)
    new["w"][0] = 5.0
    assert params["w"].tolist() == [1.0, 2.0] and Replace().statistics({}) == {}


@pytest.mark.parametrize(
    "fields,told",
    [
        (dict(optimiser="adam"), "shares the statistics"),
        (dict(rmsprop_centred=True), "rmsprop_centred is true, but async-q shares one average"),
        (dict(device="cuda"), "device is cuda, but every process of async-q computes on the CPU"),
        (dict(epsilon_odds=(0.5, 0.4, 0.3)), "with sum 1"),
        (dict(epsilon_final=(0.1,)), "one probability for each"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        async_q.program(config("async-q", **{**SMALL, **fields}))
