"""A3C: the paper's arithmetic, one worker as plain A2C, and workers that race or die."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import UntilBack, config, run, spy

from shoal.api import Action, Batch, Tensors, UsageError, observations
from shoal.learning.differentiate import differentiate
from shoal.learning.gradient_step import GradientStep
from shoal.local.runtime import LocalRuntime
from shoal.nets import ActionDistribution
from shoal.nets.recurrent import start_state
from shoal.ops import RMSProp
from shoal.ops.optimiser import set_learning_rate
from shoal.program import Program
from shoal.roles.worker import WorkerRole
from shoal.settings.schedule import at
from shoal.systems import a3c, load

SMALL = dict(env="CartPole-v1", device="cpu", precision="fp32", steps=20_000)


class Values:
    """Outputs of a network that says these values and log-probabilities, and entropy 0.8."""

    dist = ActionDistribution(Action("continuous", low=(0.0,), high=(1.0,)))

    def __init__(self, value: torch.Tensor, log_prob: torch.Tensor) -> None:
        self.value, self.log_prob = value, log_prob

    def evaluate(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.log_prob, torch.full_like(self.log_prob, 0.8)


def test_the_fact_sheets_segment() -> None:
    """a3c-unreal.md 4.1: returns and advantages of r = [0, 0, 1]; sums, not means; none of it through the advantage."""
    cfg: Any = config("a3c", value_cost=1.0, entropy_cost=0.01, gamma=0.99)
    value = torch.tensor([[0.6], [0.7], [0.8], [0.5]], requires_grad=True)
    log_prob = torch.zeros((3, 1), requires_grad=True)
    no = torch.zeros((3, 1), dtype=torch.bool)
    items = {
        "reward": torch.tensor([[0.0], [0.0], [1.0]]), "action": torch.zeros((3, 1), dtype=torch.int64),
        "terminated": no, "truncated": no, "valid": ~no,
    }  # fmt: skip
    algorithm = a3c.AdvantageActorCritic(cfg, a3c.network(cfg))
    loss, _ = algorithm.loss(Values(value, log_prob), Batch(items))  # type: ignore[arg-type]
    advantage = torch.tensor([0.8652495, 0.78005, 0.695])
    torch.testing.assert_close(loss, 0.5 * advantage.square().sum() - 0.01 * 2.4)
    loss.backward()
    torch.testing.assert_close(-log_prob.grad.flatten(), advantage)  # type: ignore[union-attr]
    torch.testing.assert_close(-value.grad.flatten(), torch.tensor([*advantage.tolist(), 0.0]))  # type: ignore[union-attr]


def recorded(program: Program) -> list[tuple[int, Tensors, Tensors]]:
    """Fills the list with (worker, its copy of the parameters, its segment) as the program runs."""
    seen: list[tuple[int, Tensors, Tensors]] = []

    def attach(worker: WorkerRole) -> None:
        gradient = worker.learner.gradient

        def record(items: Tensors) -> Any:
            copied = {k: v.clone() for k, v in worker.learner.params().items()}
            seen.append((worker.ctx.index, copied, {k: v.clone() for k, v in items.items()}))
            return gradient(items)

        worker.learner.gradient = record  # type: ignore[method-assign]

    spy(program, "worker", attach)
    return seen


@pytest.mark.parametrize("fields", [{}, dict(core="lstm", core_size=8)], ids=["feed-forward", "lstm"])
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_are_a2c_with_one_rmsprop_in_turn(workers: int, fields: dict[str, Any]) -> None:
    """a3c-unreal.md 4.6, bit for bit: the same steps by one optimiser in one process, in the order of the segments."""
    cfg = config("a3c", **SMALL, **fields, actors=workers, max_grad_norm=0.5)
    program = a3c.program(cfg)
    seen = recorded(program)
    last = run(program, 24).params["params"]
    nets = a3c.network(cfg)
    nets.load_state_dict(seen[0][1])
    algorithm = a3c.AdvantageActorCritic(cfg, nets)
    optimiser = RMSProp(nets.parameters(), cfg.learning_rate, cfg.rmsprop_decay, cfg.optimiser_eps)
    step, steps = GradientStep(optimiser, cfg.max_grad_norm), 0
    for number, (worker, copied, items) in enumerate(seen):
        assert worker == number % workers
        assert all(torch.equal(copied[name], p) for name, p in nets.named_parameters()), number
        steps += int(items["valid"].sum())
        set_learning_rate(optimiser, at(cfg.learning_rate, steps / cfg.steps))
        step.minimise(algorithm, Batch(items))
    assert len(seen) >= 24
    assert all(torch.equal(last[name], p) for name, p in nets.named_parameters())


def test_the_gradient_is_that_of_the_whole_loss() -> None:
    """By autograd through ``unroll``, with the distribution's own log-probability and entropy."""
    cfg = config("a3c", **SMALL, core="lstm", core_size=8)
    program = a3c.program(cfg)
    seen = recorded(program)
    run(program, 6)
    _, copied, items = seen[-1]
    nets = a3c.network(cfg)
    nets.load_state_dict(copied)
    algorithm = a3c.AdvantageActorCritic(cfg, nets)
    differentiate(algorithm, Batch(items))
    found = [p.grad.clone() for p in nets.parameters() if p.grad is not None]
    nets.zero_grad()
    policy, value = nets.unroll(observations(items), items["first"], start_state(items))
    log_prob, entropy = nets.dist.evaluate(policy[:-1], items["action"])
    returns, running = list[torch.Tensor](), value[-1].detach()
    for t in reversed(range(len(items["reward"]))):
        ended = items["terminated"][t]
        after = torch.where(items["truncated"][t] | ~items["valid"][t], value[t + 1].detach(), running)
        running = items["reward"][t] + cfg.gamma * torch.where(ended, 0.0, after)
        returns.insert(0, running)
    advantage = torch.stack(returns) - value[:-1]
    mask = items["valid"].float()
    loss = (
        -(advantage.detach() * log_prob) + cfg.value_cost * 0.5 * advantage.square() - cfg.entropy_cost * entropy
    ) * mask
    loss.sum().backward()
    for mine, p in zip(found, nets.parameters(), strict=True):
        torch.testing.assert_close(mine, p.grad, atol=1e-5, rtol=1e-4)


def test_a_worker_that_is_killed_is_replaced_and_the_others_go_on() -> None:
    cfg = config("a3c", **SMALL)
    program = a3c.program(cfg)

    def mortal(worker: WorkerRole) -> None:
        copy, left = worker.shared.copy, [40]

        def killed() -> Any:
            left[0] -= 1
            if worker.ctx.index == 0 and worker.ctx.generation == 0 and not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return copy()

        worker.shared.copy = killed  # type: ignore[method-assign]

    report = LocalRuntime(backoff=0.01).launch(spy(program, "worker", mortal), UntilBack(100).launch())
    assert report.reason == "observer" and report.restarts == 1
    assert all(bool(torch.isfinite(p).all()) for p in report.params["params"].values())


@pytest.mark.parametrize("fields", [dict(optimiser="adam"), dict(rmsprop_centred=True)])
def test_what_cannot_be_shared_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="share"):
        a3c.program(config("a3c", **SMALL, **fields))


@pytest.mark.parametrize("system", ["a3c", "async-q", "async-sarsa", "async-nstep-q", "unreal"])
def test_workers_share_the_statistics_of_all_their_observations(system: str) -> None:
    """The policy's network holds those of every worker's steps."""
    off = dict(pixel_control=False, reward_prediction=False, value_replay=False) if system == "unreal" else {}
    program = load(system).program(config(system, **SMALL, **off, actors=2, envs=2, normalise_obs=True))
    seen = recorded(program)
    last = run(program, 12).params["params"]
    rows = torch.cat([items["obs"][:-1][items["valid"]] for _, _, items in seen]).double()
    assert len(seen) >= 12 and last["norms.obs.count"].item() == len(rows)
    torch.testing.assert_close(last["norms.obs.mean"], rows.mean(0), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(last["norms.obs.var"], rows.var(0, correction=0), rtol=1e-9, atol=1e-12)


def test_workers_act_and_learn_by_the_statistics_that_they_copied() -> None:
    """A network that holds them says the same of an observation as one without says of the normalised one."""
    cfg = config("a3c", **SMALL, actors=2, envs=2, normalise_obs=True)
    last = run(a3c.program(cfg), 12).params["params"]
    nets, plain = a3c.network(cfg), a3c.network(config("a3c", **SMALL, actors=2, envs=2))
    nets.load_state_dict(last)
    plain.load_state_dict({k: v for k, v in last.items() if not k.startswith("norms.")})
    first = torch.zeros(5, dtype=torch.bool)
    told = torch.randn(5, 4)
    obs = (told * (last["norms.obs.var"] + 1e-8).sqrt() + last["norms.obs.mean"]).float()
    says = nets.step({"obs": obs}, first, {})[:2], plain.step({"obs": told}, first, {})[:2]
    for mine, other in zip(*says, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)


def test_workers_divide_rewards_by_the_deviation_of_all_their_returns() -> None:
    cfg = config("a3c", **SMALL, actors=2, envs=2, normalise_reward=True)
    program = a3c.program(cfg)
    seen = recorded(program)
    last = run(program, 12).params["params"]
    returns, carried = [], torch.zeros(2, 2, dtype=torch.float64)  # of each environment of each worker
    for worker, _, items in seen:
        for t, reward in enumerate(items["reward"]):
            carried[worker] = carried[worker] * cfg.gamma + reward
            returns.append(carried[worker][items["valid"][t]])
            ended = items["terminated"][t] | items["truncated"][t] | ~items["valid"][t]
            carried[worker] = carried[worker].masked_fill(ended, 0.0)
    rows = torch.cat(returns)
    assert last["rewards.stats.count"].item() == len(rows)
    torch.testing.assert_close(last["rewards.stats.var"], rows.var(correction=0), rtol=1e-9, atol=1e-12)
    nets = a3c.network(cfg)
    nets.load_state_dict(last)
    learned = a3c.AdvantageActorCritic(cfg, nets).prepare(Batch(seen[-1][2])).items["reward"]
    torch.testing.assert_close(learned, (seen[-1][2]["reward"].double() / rows.std(correction=0)).float())


def test_a_workers_returns_go_on_from_its_state() -> None:
    """Of 4 and 8, of which the first ended an episode, with gamma 1/2: then 1, and 1/2 of 8 and 1."""
    cfg, no = config("a3c", **SMALL, envs=2, normalise_reward=True, gamma=0.5), torch.zeros(1, 2, dtype=torch.bool)
    mine, other, older = (a3c.AdvantageActorCritic(cfg, a3c.network(cfg)) for _ in range(3))
    assert mine.state_dict() == {"carried": None}
    assert mine.nets.rewards is not None and other.nets.rewards is not None and older.nets.rewards is not None
    mine.nets.rewards.returns(torch.tensor([[4.0, 8.0]]), torch.tensor([[True, False]]))
    other.load_state_dict(mine.state_dict())
    older.load_state_dict({})
    reward = torch.tensor([[1.0, 1.0]])
    assert other.nets.rewards.returns(reward, no).tolist() == [[1.0, 5.0]]
    assert older.nets.rewards.returns(reward, no).tolist() == [[1.0, 1.0]]
    plain = a3c.AdvantageActorCritic(replace(cfg, normalise_reward=False), a3c.network(config("a3c", **SMALL)))
    assert plain.state_dict() == {"carried": None} and plain.load_state_dict({}) is None  # type: ignore[func-returns-value]
