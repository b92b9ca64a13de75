"""Rainbow's losses by hand, its noise, and what it is when switches are off."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from drawn import ENV, ROWS, batch
from helpers import config, record_batches, run
from present import present

from shoal.api import Batch, UsageError
from shoal.learning.differentiate import differentiate
from shoal.nets.q_network import QNetwork, ReturnNetwork
from shoal.settings.schedule import linear
from shoal.systems import load, rainbow
from shoal.systems.dqn import QLearning
from shoal.systems.rainbow import DistributionalQLearning, NoisyQAgent, ReturnsConfig, described
from shoal.systems.rainbow.returns import Categorical, Mean, Quantiles


def algorithm(seed: int = 3, sigma: float | None = None, **fields: Any) -> DistributionalQLearning:
    torch.manual_seed(0)
    cfg = ReturnsConfig(**{"atoms": 5, "v_min": -4.0, "v_max": 4.0, "prioritised": True, **fields})
    made = DistributionalQLearning(cfg, ReturnNetwork(ENV, described(cfg), hidden=(8,), sigma=sigma), 0.4, seed)
    for name, p in made.target.named_parameters():
        if "sigma" not in name:
            p.add_(0.1 * torch.randn_like(p))
    return made


# ------------------------------------------------------------------------------------ identities
def test_without_its_switches_it_is_dqn_bit_for_bit() -> None:
    common = dict(env="CartPole-v1", n_step=2, double=True)
    off = {**rainbow.OFF, **common}
    one = run(load("rainbow").program(config("rainbow", **off)), 40)
    other = run(load("dqn").program(config("dqn", **common)), 40)
    assert one.steps == other.steps
    for name, tensor in other.params["params"].items():
        assert torch.equal(one.params["params"][name], tensor), name


def test_the_clip_of_a_mean_follows_its_schedule() -> None:
    learned = algorithm(returns="mean", td_clip=linear(1.0, 10.0), sigma=0.0)
    given = learned.prepare(batch())
    given.items["reward"][:] = 100.0
    for fraction, factor in ((0.0, 1.0), (1.0, 10.0)):
        learned.at(fraction)
        differentiate(learned, given)
        head: Any = learned.nets.head
        bias = head.advantage[0].bias.grad.abs().sum()  # of losses that are all clipped: the clip's mean
        assert float(bias) == pytest.approx(factor * float(given.items["weight"].sum()), rel=1e-3)
        learned.nets.zero_grad()


@pytest.mark.parametrize("clip", [1.0, None])
@pytest.mark.parametrize("double", [False, True])
def test_one_number_without_noise_is_learned_as_dqn_learns_it(clip: float | None, double: bool) -> None:
    """The same loss, gradient and priorities as the DQN family's code; noise whose sigma is 0 changes nothing."""
    fields: dict[str, Any] = dict(returns="mean", td_clip=clip, double=double)
    noisy = algorithm(sigma=0.0, **fields)
    plain = QNetwork(ENV, hidden=(8,))
    pairs = {"encoder.": "encoder.", "head.linear.": "head.advantage.0."}

    def copied(source: ReturnNetwork, to: QNetwork) -> None:
        state = source.state_dict()
        to.load_state_dict(
            {k: state[next(k.replace(a, b) for a, b in pairs.items() if k.startswith(a))] for k in to.state_dict()}
        )

    copied(noisy.nets, plain)
    other = QLearning(noisy.cfg, plain, 0.4)
    copied(noisy.target, other.target)
    value, _, update = differentiate(noisy, noisy.prepare(batch()))
    expected, _, wanted = differentiate(other, other.prepare(batch()))
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    torch.testing.assert_close(update.priorities, wanted.priorities)
    for name in ("q_mean", "td_error"):
        assert float(update.metrics[name]) == pytest.approx(float(wanted.metrics[name]), rel=1e-5)
    for (_, a), (_, b) in zip(noisy.nets.encoder.named_parameters(), plain.encoder.named_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------------------------------- losses
def test_the_target_of_a_terminal_reward_is_one_hot() -> None:
    """Discount 0 and a reward on an atom: the loss is minus the log-probability of that atom."""
    made, given = algorithm(), batch()
    given.items["reward"], given.items["discount"] = torch.full((ROWS,), 2.0), torch.zeros(ROWS)
    given = made.prepare(given)
    logits = made.nets.outputs(given.items).values
    loss, update = made.loss(logits, given)
    rows = torch.arange(ROWS)
    logs = logits[rows, given.items["action"]].log_softmax(-1)[:, 3]  # atoms -4, -2, 0, 2, 4
    torch.testing.assert_close(loss, -(logs * given.items["weight"]).sum())
    torch.testing.assert_close(update.priorities, -logs.detach())  # a certain target has no entropy
    (gradient,) = torch.autograd.grad(loss, logits)
    expected = logits.detach()[rows, given.items["action"]].softmax(-1)
    expected[:, 3] -= 1.0
    torch.testing.assert_close(gradient[rows, given.items["action"]], expected * given.items["weight"][:, None])
    assert float(update.metrics["clipped_mass"]) == 0.0


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("returns", ["categorical", "quantile"])
def test_the_losses_by_a_loop(returns: str, double: bool) -> None:
    made = algorithm(returns=returns, double=double)
    given = made.prepare(batch())
    items, support = given.items, np.linspace(-4, 4, 5)
    loss, update = made.loss(made.nets.outputs(items).values, given)
    with torch.no_grad():
        now, target, online = (
            net.describe({"obs": items[name]}).double().numpy()
            for net, name in ((made.nets, "obs"), (made.target, "next/obs"), (made.nets, "next/obs"))
        )

    def probs(logits: Any) -> Any:
        e = np.exp(logits - logits.max())
        return e / e.sum()

    total = 0.0
    for i in range(ROWS):
        selector = (online if double else target)[i]
        values = [probs(z) @ support if returns == "categorical" else z.mean() for z in selector]
        after, mine = target[i, int(np.argmax(values))], now[i, int(items["action"][i])]
        r, d = float(items["reward"][i]), float(items["discount"][i])
        if returns == "categorical":
            m = np.zeros(5)
            for p, z in zip(probs(after), support, strict=True):
                b = (min(max(r + d * z, -4.0), 4.0) + 4.0) / 2.0
                low = min(int(b), 3)
                m[low] += p * (low + 1 - b)
                m[low + 1] += p * (b - low)
            each = -sum(m * np.log(probs(mine)))
            priority = each + sum(x * np.log(x) for x in m if x > 0)
        else:
            each = 0.0
            for k, theta in enumerate(mine):
                for z in after:
                    u = r + d * z - theta
                    size = 0.5 * u * u if abs(u) <= 1 else abs(u) - 0.5
                    each += abs((k + 0.5) / 5 - (u < 0)) * size / 5
            priority = each
        assert float(update.priorities[i]) == pytest.approx(priority, rel=1e-4, abs=1e-5)  # type: ignore[index]
        total += float(items["weight"][i]) * each
    assert loss.item() == pytest.approx(total, rel=1e-4)


def test_mass_that_the_support_clips_is_measured() -> None:
    part = Categorical(5, -4.0, 4.0)
    terms = part.terms(torch.zeros(3, 5), torch.zeros(3, 5), torch.tensor([0.0, 2.5, 50.0]), torch.tensor([1.0, 1, 0]))
    assert terms.clipped is not None
    assert terms.clipped.tolist() == pytest.approx([0.0, 0.4, 1.0])


def test_values_are_means_of_what_is_described() -> None:
    quarter = torch.tensor([[0.25, 0.5, 0.25]]).log()
    assert Categorical(3, -1.0, 3.0).mean(quarter).tolist() == pytest.approx([1.0])
    assert Quantiles(3).mean(torch.tensor([[1.0, 2.0, 6.0]])).tolist() == [3.0]
    assert Mean().mean(torch.tensor([[7.0]])).tolist() == [7.0]


@pytest.mark.parametrize("fields", [dict(v_min=1.0, v_max=1.0), dict(v_min=2.0, v_max=-2.0), dict(atoms=1)])
def test_a_support_without_extent_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="needs at least 2 atoms and v_min below v_max, found"):
        rainbow.program(config("rainbow", **fields))


@pytest.mark.parametrize("fields", [dict(noisy=True, returns="mean"), dict(noisy=False, returns="quantile")])
def test_the_actors_priorities_are_of_plain_values(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="expected returns mean, and noisy off"):
        rainbow.program(config("rainbow", actor_priorities=True, **fields))


def test_the_range_is_a_setting() -> None:
    cfg = config("rainbow", v_min=-3.0, v_max=12.0, atoms=4)
    nets = rainbow.network(cfg)
    assert isinstance(nets, ReturnNetwork) and isinstance(nets.returns, Categorical)
    assert nets.returns.support.tolist() == [-3.0, 2.0, 7.0, 12.0]


# ----------------------------------------------------------------------------------------- noise
def test_each_update_draws_noise_for_each_use() -> None:
    made = algorithm(sigma=0.5)
    names = ("noise/online", "noise/selector", "noise/target")
    first, second = (made.prepare(batch()).items for _ in range(2))
    drawn = [items[name] for items in (first, second) for name in names]
    assert all(len(noise) == made.nets.head.normals for noise in drawn)
    assert not any(torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])
    given = batch()._replace(items=first)
    loss = made.loss(made.nets.outputs(first).values, given)[0]
    for name in names:
        changed = {**first, name: second[name]}
        other = made.loss(made.nets.outputs(changed).values, given._replace(items=changed))[0]
        assert loss.item() != other.item(), name


def test_a_part_of_a_batch_has_all_of_its_noise() -> None:
    made = algorithm(sigma=0.5)
    whole = made.prepare(batch())
    value, _, update = differentiate(made, whole)
    grads = [p.grad.clone() for p in made.nets.parameters() if p.grad is not None]
    parts, sums = [], [torch.zeros_like(g) for g in grads]
    for rows in torch.arange(ROWS).tensor_split(3):
        made.nets.zero_grad()
        parts.append(differentiate(made, Batch(made.select(whole.items, rows))))
        for p, total in zip(made.nets.parameters(), sums, strict=True):
            assert p.grad is not None
            total += p.grad
    assert sum(float(part[0]) for part in parts) == pytest.approx(float(value), rel=1e-5)
    torch.testing.assert_close(torch.cat([present(part[2].priorities) for part in parts]), update.priorities)
    torch.testing.assert_close(sums, grads, rtol=1e-4, atol=1e-6)


def test_the_learners_noise_goes_on_from_a_checkpoint() -> None:
    one, other = algorithm(seed=3, sigma=0.5), algorithm(seed=4, sigma=0.5)
    one.prepare(batch())
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    assert torch.equal(one.prepare(batch()).items["noise/target"], other.prepare(batch()).items["noise/target"])


def test_a_noisy_agent_explores_by_noise_and_plays_greedily_without() -> None:
    cfg = config("rainbow", env="CartPole-v1", noisy_sigma=3.0, v_min=-10.0, v_max=10.0)
    agent = rainbow.agent(cfg, 0)
    assert isinstance(agent, NoisyQAgent)
    obs, first = {"obs": np.zeros((200, 4), np.float32)}, np.zeros(200, bool)
    assert len(set(agent.act(obs, first, {}, greedy=True).action.tolist())) == 1
    assert set(agent.act(obs, first, {}).action.tolist()) == {0, 1}  # each row its own noise
    twin = rainbow.agent(cfg, 1)
    twin.load_state_dict(copy.deepcopy(agent.state_dict()))
    assert twin.act(obs, first, {}).action.tolist() == agent.act(obs, first, {}).action.tolist()


def test_training_learns_the_noise() -> None:
    program = rainbow.program(config("rainbow", env="CartPole-v1", streams=8))
    seen = record_batches(program)
    after = run(program, 10).params["params"]
    sigmas = [k for k in after if "sigma" in k]
    assert len(sigmas) == 8 and all(not torch.equal(after[k], seen[0][1][k]) for k in sigmas)
