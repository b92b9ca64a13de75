"""The deterministic policy gradient against autograd and against DDPG step by step; its agent."""

from __future__ import annotations

import copy
import math
import sys
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from helpers import config, record_batches, run
from present import present
from torch import nn
from torch.nn.utils import parameters_to_vector

from shoal import fast
from shoal.api import Action, Batch, Context, EnvSpec, Observation
from shoal.learning.differentiate import differentiate
from shoal.learning.learner import SGDLearner
from shoal.local.workers import Team
from shoal.metering.recorder import Recorder
from shoal.nets.dpg_network import DPGNetwork, Returns
from shoal.ops import Adam, importance_weights
from shoal.systems import apex_dpg, d4pg, load
from shoal.systems.apex_dpg import DPG, DPGAgent, DPGConfig, Expected
from shoal.systems.d4pg import Categorical, Mixture, RangeLearner
from shoal.topology.exploration import LastingNoise
from shoal.topology.replayed import descent

LOW, HIGH = (-1.0, -1.0), (1.0, 1.0)
ENV = EnvSpec("test", {"obs": Observation((3,), "float32")}, Action("continuous", (), LOW, HIGH))
SMALL_IMAGE = EnvSpec("test", {"obs": Observation((3, 20, 20), "uint8", "image")}, ENV.action)
BOTH = EnvSpec("test", {"obs/a": Observation((2,), "float32"), "obs/b": SMALL_IMAGE.observations["obs"]}, ENV.action)
ROWS = 16
KINDS: dict[str, Any] = {
    "mean": Expected,
    "categorical": lambda: Categorical(-6.0, 4.0, 11),
    "mixture": lambda: Mixture(-6.0, 4.0, 3, 8),
}


def observations(env: EnvSpec, prefix: str, generator: torch.Generator) -> dict[str, torch.Tensor]:
    out = {}
    for name, leaf in env.observations.items():
        shape = (ROWS, *leaf.shape)
        image = leaf.kind == "image"
        draw = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        out[prefix + name] = draw if image else torch.randn(shape, generator=generator)
    return out


def batch(env: EnvSpec = ENV, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    low, high = torch.tensor(LOW), torch.tensor(HIGH)
    items = {
        **observations(env, "", generator), **observations(env, "next/", generator),
        "action": low + (high - low) * torch.rand(ROWS, 2, generator=generator),
        "reward": torch.randn(ROWS, generator=generator),
        "discount": torch.tensor([0.9, 0.0]).repeat(ROWS // 2),
    }  # fmt: skip
    return Batch(items, torch.arange(ROWS), torch.rand(ROWS, generator=generator) / ROWS + 0.01, 100)


def network(env: EnvSpec, returns: Returns | None, **fields: Any) -> DPGNetwork:
    torch.manual_seed(1)
    nets = DPGNetwork(env, returns, hidden=(12, 7), precision="fp32", **fields)
    for p in nets.parameters():
        p.data += 0.1 * torch.randn_like(p)
    return nets


def learner(cfg: Any, seed: int = 0) -> Any:
    """As the program makes it, of a configuration whose range is given."""
    torch.manual_seed(seed)
    kind = RangeLearner if isinstance(cfg, d4pg.Config) else SGDLearner
    ctx = Context("learner", 0, 1, 0, seed, Recorder())
    return descent(cfg, ctx, DPG(cfg, apex_dpg.network(cfg, "cpu"), seed), kind)


def obs_of(items: dict[str, torch.Tensor], prefix: str = "") -> dict[str, torch.Tensor]:
    return {k.removeprefix(prefix): v for k, v in items.items() if k.startswith(f"{prefix}obs")}


@pytest.mark.parametrize("env", [ENV, SMALL_IMAGE, BOTH], ids=["vectors", "images", "both"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("late, activation, norm, clip, beta", [
    (False, "relu", False, None, None), (False, "tanh", False, 0.002, 0.4), (True, "relu", False, 0.002, 1.0),
    (False, "relu", True, 0.0005, 0.4), (True, "tanh", True, None, None),
])  # fmt: skip
def test_loss_and_gradients_are_those_of_autograd(env, kind, late, activation, norm, clip, beta) -> None:
    """By hand or not, with importance weights and a clip that clips; critic and policy both at the old parameters."""
    fields = dict(late_action=late, activation=activation, layer_norm=norm, policy_hidden=(9,))
    nets, given = network(env, KINDS[kind](), **fields), batch(env)
    assert (nets.critic_perceptron is None) == (late or env is not ENV or not fast.ENABLED)
    assert (nets.policy_perceptron is None) == (env is not ENV or not fast.ENABLED)
    returns, critic = present(nets.returns), present(nets.critic)
    cfg = DPGConfig(action_gradient_clip=clip, prioritised=beta is not None, importance_exponent=beta or 0.0)
    algorithm = DPG(cfg, nets, seed=3)
    for p in algorithm.target.parameters():
        p.add_(0.1 * torch.randn_like(p))
    found, _, update = differentiate(algorithm, algorithm.prepare(given))
    grads = {name: present(p.grad).clone() for name, p in nets.named_parameters()}
    nets.zero_grad()

    items = given.items
    with torch.no_grad():
        seen = algorithm.target.features(obs_of(items, "next/"))
        after = algorithm.target.critic(seen, torch.tanh(algorithm.target.policy(seen)))
    features = nets.features(obs_of(items))
    outputs = critic(features, items["action"])
    noise = returns.noise(ROWS, torch.Generator().manual_seed(3))
    losses = returns.loss(outputs, {**items, **noise}, after)
    weights = torch.ones(ROWS) if beta is None else importance_weights(present(given.probs), given.size, beta)
    loss = (weights * losses).mean()
    loss.backward()
    expected = {name: present(p.grad).clone() for name, p in nets.named_parameters() if p.grad is not None}
    assert not any(name.startswith("policy") for name in expected)
    nets.zero_grad()
    actions = torch.tanh(nets.policy(features.detach()))
    leaf = actions.detach().requires_grad_()
    (by_action,) = torch.autograd.grad(returns.mean(critic(features.detach(), leaf)).sum(), leaf)
    assert clip is None or (by_action.abs() > clip).any()
    bounded = by_action if clip is None else by_action.clamp(-clip, clip)
    (-(actions * bounded).sum() / ROWS).backward()
    expected |= {name: present(p.grad).clone() for name, p in nets.named_parameters() if name.startswith("policy")}

    assert found == pytest.approx(loss.item(), rel=1e-4)
    assert grads.keys() == expected.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-3, atol=1e-6, msg=name)
    assert (update.priorities is None) == (beta is None)
    error = items["reward"] + items["discount"] * returns.mean(after) - returns.mean(outputs.detach())
    assert float(update.metrics["td_error"]) == pytest.approx(float(error.abs().mean()), rel=1e-4)
    if update.priorities is not None:
        torch.testing.assert_close(update.priorities, error.abs(), rtol=1e-3, atol=1e-4)


def descending(algorithm: DPG, team: Team | None = None) -> SGDLearner:
    return SGDLearner(algorithm, Adam(algorithm.nets.parameters(), 1e-3), max_grad_norm=0.5, team=team)


def gradient(algorithm: DPG, items: dict[str, torch.Tensor]) -> dict[str, torch.Tensor | None]:
    algorithm.nets.zero_grad()
    differentiate(algorithm, Batch(items))
    return {name: None if p.grad is None else present(p.grad).clone() for name, p in algorithm.nets.named_parameters()}


@pytest.mark.parametrize("env", [ENV, SMALL_IMAGE], ids=["vectors", "images"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradients_of_two_shares_add_up(env: EnvSpec, kind: str) -> None:
    """Wherever they are cut. Half of the rows are the critic's and half the policy's, unless both see by one encoder:
    two processes then need not tell each other more than half of the weights."""
    nets = network(env, KINDS[kind]())
    algorithm = DPG(DPGConfig(action_gradient_clip=None), nets, seed=3)
    items = algorithm.prepare(batch(env)).items
    whole, rows = gradient(algorithm, items), torch.arange(algorithm.rows(items))
    assert len(rows) == (2 * ROWS if env is ENV else ROWS)
    for cut in (3, 11, len(rows) // 2, len(rows) - 5):
        first, second = (gradient(algorithm, algorithm.select(items, some)) for some in (rows[:cut], rows[cut:]))
        for name, of_all in whole.items():
            expected = present(of_all)
            parts = [part for part in (first[name], second[name]) if part is not None]
            size = max(1.0, float(expected.abs().max()))
            torch.testing.assert_close(sum(parts), expected, rtol=1e-3, atol=1e-6 * size, msg=f"{name}, cut at {cut}")
            if env is ENV and cut == ROWS:
                assert (first[name] is None, second[name] is None) == (name.startswith("policy"), "critic" in name)


@pytest.mark.skipif(sys.platform != "linux", reason="teams fork")
@pytest.mark.parametrize("members", [2, 3])
@pytest.mark.parametrize("env, kind", [(ENV, "mean"), (ENV, "mixture"), (SMALL_IMAGE, "categorical")])
def test_a_team_learns_what_one_learns(env: EnvSpec, kind: str, members: int) -> None:
    """Parameters, priorities and metrics, over copies into the target networks.

    Not weight by weight: Adam moves a weight of a vanishing gradient as far as any other, and where rounding takes an
    input of a rectifier across 0, its gradient jumps. Together that is below a thousandth of the whole move; a reward
    wrong by 0.05 in one row of each batch is five thousandths or more."""
    cfg, team = DPGConfig(target_period=4, prioritised=True, action_gradient_clip=0.002), Team(members)
    try:
        alone, together = (descending(DPG(cfg, network(env, KINDS[kind]()), seed=3), one) for one in (None, team))
        start = parameters_to_vector(alone.params().values()).clone()
        for i in range(12):
            one, many = alone.update(batch(env, i)), together.update(batch(env, i))
            assert one.metrics.keys() == many.metrics.keys() and ("q_mean" in one.metrics) == (i % 10 == 0)
            for name, value in one.metrics.items():
                assert float(many.metrics[name]) == pytest.approx(float(value), rel=1e-3, abs=1e-5), (i, name)
            torch.testing.assert_close(many.priorities, one.priorities, rtol=1e-3, atol=1e-5)
        ends = [parameters_to_vector(learner.params().values()) for learner in (alone, together)]
        assert (ends[1] - ends[0]).norm() < 2e-3 * (ends[0] - start).norm()
    finally:
        team.close()


def test_one_hot_target_is_cross_entropy_by_hand() -> None:
    """Past a terminal state, a return on an atom: -log of that atom's probability."""
    returns = Categorical(-2.0, 2.0, 5)
    logits = torch.tensor([[0.1, 0.2, -0.3, 0.4, 0.0]])
    found = returns.loss(logits, {"reward": torch.tensor([1.0]), "discount": torch.zeros(1)}, torch.randn(1, 5))
    total = sum(math.exp(x) for x in logits[0].tolist())
    assert found.item() == pytest.approx(-math.log(math.exp(0.4) / total), rel=1e-6)
    assert returns.edge_mass(logits).sum().item() == pytest.approx((math.exp(0.1) + 1.0) / total, rel=1e-6)


@pytest.mark.parametrize("kind, low, high, begins", [
    (lambda low, high: Categorical(low, high, 51), -200.0, 1_000.0, 400.0),
    (lambda low, high: Categorical(low, high, 51), -1_000.0, 200.0, 0.0),
    (lambda low, high: Categorical(low, high, 51), -420.0, -20.0, -20.0),
    *((lambda low, high, k=k: Mixture(low, high, k, 8), *case) for k in (1, 5) for case in (
        (-200.0, 1_000.0, 0.0), (10.0, 110.0, 10.0), (-420.0, -20.0, -20.0),
    )),
])  # fmt: skip
def test_a_new_critic_expects_no_less_than_0(kind: Any, low: float, high: float, begins: float) -> None:
    """Or than the return of its range that is nearest to it."""
    env = EnvSpec("test", {"obs": Observation((3,), "float32")}, Action("continuous", (), (-1.0,), (1.0,)))
    nets = network(env, kind(low, high))
    with torch.no_grad():
        said = present(nets.returns).mean(nets.critic_outputs(torch.randn(50, 3), torch.rand(50, 1)))
    assert float((said - begins).abs().max()) < 0.08 * (high - low)


def test_what_is_clipped_is_the_targets_probability_beyond_the_range() -> None:
    """Rewards from 0 to 1, discounted by 0.9, have returns from 0 to 10, none beyond; of others, what lies there."""
    returns, even = Categorical(0.0, 10.0, 11), torch.zeros(1, 11)

    def cut(reward: float, discount: float) -> float:
        items = {"reward": torch.tensor([reward]), "discount": torch.tensor([discount])}
        return returns.clipped_mass(items, even).item()

    assert cut(1.0, 0.9) == cut(0.0, 0.9) == cut(0.5, 0.0) == 0.0
    assert cut(1.5, 0.9) == pytest.approx(1 / 11)  # 10 becomes 10.5; 9 becomes 9.6
    assert cut(-1.0, 0.9) == pytest.approx(2 / 11)  # 0 and 1 become -1 and -0.1
    assert cut(11.0, 0.0) == pytest.approx(1.0)


# ------------------------------------------------------------------------------------ identities
class PlainDDPG:
    """Lillicrap et al. 2016, algorithm 1, with modules and optimisers of its own, critic and policy moved together and
    the targets copied every ``period`` updates."""

    def __init__(self, params: dict[str, torch.Tensor], rate: float, gamma: float, period: int) -> None:
        def net(prefix: str) -> nn.Sequential:
            found = [(k, v) for k, v in params.items() if k.startswith(prefix)]
            layers: list[nn.Module] = []
            for (_, weight), (_, bias) in zip(found[::2], found[1::2], strict=True):
                linear = nn.Linear(weight.shape[1], weight.shape[0])
                linear.load_state_dict({"weight": weight, "bias": bias})
                layers += [linear, nn.ReLU()]
            return nn.Sequential(*layers[:-1])

        self.policy, self.critic = net("policy."), net("critic.")
        self.policy_target, self.critic_target = copy.deepcopy(self.policy), copy.deepcopy(self.critic)
        self.by_policy = torch.optim.Adam(self.policy.parameters(), rate)
        self.by_critic = torch.optim.Adam(self.critic.parameters(), rate)
        self.gamma, self.period, self.updates = gamma, period, 0

    def update(self, items: dict[str, torch.Tensor]) -> None:
        obs, after = items["obs"], items["next/obs"]
        not_terminal = (items["discount"] > 0).float()
        with torch.no_grad():
            next_action = torch.tanh(self.policy_target(after))
            bootstrap = self.critic_target(torch.cat((after, next_action), -1))[:, 0]
            y = items["reward"] + self.gamma * not_terminal * bootstrap
        q = self.critic(torch.cat((obs, items["action"]), -1))[:, 0]
        critic_loss = (0.5 * (y - q) ** 2).mean()
        policy_loss = -self.critic(torch.cat((obs, torch.tanh(self.policy(obs))), -1)).mean()
        self.by_critic.zero_grad()
        self.by_policy.zero_grad()
        policy_loss.backward()
        self.by_critic.zero_grad()
        critic_loss.backward()
        self.by_critic.step()
        self.by_policy.step()
        self.updates += 1
        if self.updates % self.period == 0:
            self.policy_target.load_state_dict(self.policy.state_dict())
            self.critic_target.load_state_dict(self.critic.state_dict())

    def params(self) -> list[torch.Tensor]:
        return [*self.policy.state_dict().values(), *self.critic.state_dict().values()]


def test_d4pg_of_one_step_a_mean_and_uniform_replay_is_ddpg() -> None:
    """On the very batches that D4PG drew, and as Ape-X DPG too; with more steps of reward the two part."""
    same = dict(env="Pendulum-v1", n_step=1, prioritised=False, action_gradient_clip=None, target_period=7)
    cfg = config("d4pg", critic="mean", learning_rate=1e-3, **same)
    program = d4pg.program(cfg)
    seen = record_batches(program)
    ours = learner(cfg)
    report = run(program, 40)
    assert len(seen) == 40 and report.updates == 40
    plain = PlainDDPG(dict(ours.algorithm.nets.state_dict()), 1e-3, cfg.gamma, 7)
    for given, _ in seen:
        ours.update(given)
        plain.update(given.items)
    nets = ours.algorithm.nets.state_dict()
    for found, expected in zip(nets.values(), plain.params(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    apex = run(load("apex-dpg").program(config("apex-dpg", **same)), 40)
    other = run(d4pg.program(config("d4pg", critic="mean", **{**same, "n_step": 3})), 40)
    for name, value in report.params["params"].items():
        assert torch.equal(apex.params["params"][name], value), name
    assert any(not torch.equal(v, report.params["params"][k]) for k, v in other.params["params"].items())


@pytest.mark.parametrize("system, env", [
    ("apex-dpg", "Pendulum-v1"), ("d4pg", "Pendulum-v1"), ("apex-dpg", "test_return_range:same_step"),
])  # fmt: skip
def test_the_first_priority_is_the_actors_td_error(system: str, env: str) -> None:
    """|R + gamma^n q(s', pi(s')) - q(s, a)| of the network that acted and the executed action, nothing learned; also
    where the environment resets within the step that ends an episode, for s' the true last observation."""
    cfg = config(system, env=env, learning_rate=0.0, n_step=3, priority_exponent=1.0, prioritised=True)
    program = load(system).program(cfg)
    seen = record_batches(program)
    run(program, 1)
    ((given, params),) = seen
    nets = apex_dpg.network(cfg)
    nets.load_state_dict(params)
    items, returns, probs = given.items, present(nets.returns), present(given.probs)
    with torch.no_grad():
        after = nets.features(obs_of(items, "next/"))
        best = returns.mean(nets.critic_outputs(after, nets.act(after)))
        q = returns.mean(nets.critic_outputs(nets.features(obs_of(items)), items["action"]))
    weights = (items["reward"] + items["discount"] * best - q).abs() + 0.01
    torch.testing.assert_close(probs / probs[0], weights / weights[0], rtol=1e-3, atol=1e-4)


def test_targets_are_the_networks_right_after_every_copy_and_else_not() -> None:
    cfg = config("d4pg", env="Pendulum-v1", target_period=5, v_min=-9.0, v_max=1.0)
    ours = learner(cfg)
    env = EnvSpec("Pendulum-v1", {"obs": Observation((3,), "float32")}, Action("continuous", (), (-1.0,), (1.0,)))
    for step in range(1, 11):
        given = batch(env, step)
        given.items["action"] = given.items["action"][:, :1]
        ours.update(given)
        algorithm = ours.algorithm
        pairs = zip(algorithm.nets.parameters(), algorithm.target.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs) == (step % 5 == 0)


@pytest.mark.parametrize("critic", ["categorical", "mixture"])
def test_a_learner_goes_on_from_its_state(critic: str) -> None:
    """Also with another range of returns in its configuration, and the same samples of a mixture."""
    cfg = config("d4pg", env="Pendulum-v1", critic=critic, v_min=-9.0, v_max=1.0, target_period=3, prioritised=True)
    first, second = learner(cfg), learner(replace(cfg, v_max=5.0), 1)
    env = EnvSpec("Pendulum-v1", {"obs": Observation((3,), "float32")}, Action("continuous", (), (-1.0,), (1.0,)))
    given = [batch(env, i) for i in range(8)]
    for one in given:
        one.items["action"] = one.items["action"][:, :1]
    for one in given[:4]:
        first.update(one)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for one in given[4:]:
        first.update(one)
        second.update(one)
    for name, value in first.params().items():
        assert torch.equal(value, second.params()[name]), name


# ----------------------------------------------------------------------------------------- agent
def test_an_action_that_cannot_change_is_0_to_agent_and_critic() -> None:
    env = EnvSpec("t", ENV.observations, Action("continuous", (), (0.0, -1.0), (0.0, 1.0)))
    obs = {"obs": np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)}
    found = DPGAgent(network(env, None), 0.5, 0).act(obs, np.zeros(50, bool), {}).action
    assert not found[:, 0].any() and found[:, 1].all()


def test_noise_is_in_units_of_half_the_box_and_clipped_to_it() -> None:
    agent, obs = DPGAgent(network(ENV, None), 0.3, 0), {"obs": np.zeros((20_000, 3), np.float32)}
    act = agent.act(obs, np.zeros(20_000, bool), {})
    best = agent.act(obs, np.zeros(20_000, bool), {}, greedy=True).action
    assert act.extras == {}
    assert (act.action >= LOW).all() and (act.action <= HIGH).all() and act.action.dtype == np.float32
    np.testing.assert_allclose((act.action - best).std(0), [0.3, 0.3], rtol=0.05)
    still = DPGAgent(network(ENV, None), 0.0, 1)
    assert np.array_equal(still.act(obs, np.zeros(20_000, bool), {}).action, best)
    other = DPGAgent(network(ENV, None), 0.3, 0)
    assert np.array_equal(other.act(obs, np.zeros(20_000, bool), {}).action, act.action)


def test_noise_that_lasts_is_as_wide_at_every_step_and_begins_anew_with_an_episode() -> None:
    """As a first-order autoregression of deviation 1: steps k apart are correlated by 0.85 to the power of k."""
    nets, obs = network(ENV, None), {"obs": np.zeros((20_000, 3), np.float32)}
    agent, begins = DPGAgent(nets, 0.3, 0, correlation=0.85), np.zeros(20_000, bool)
    best = agent.act(obs, begins, {}, greedy=True).action
    steps = [(agent.act(obs, begins, {}).action - best)[:, 0] for _ in range(4)]
    for k, step in enumerate(steps):
        np.testing.assert_allclose(step.std(), 0.3, rtol=0.05)
        assert abs(np.corrcoef(steps[0], step)[0, 1] - 0.85**k) < 0.03
    begins[:10_000] = True
    after = (agent.act(obs, begins, {}).action - best)[:, 0]
    assert abs(np.corrcoef(steps[-1][:10_000], after[:10_000])[0, 1]) < 0.05
    assert abs(np.corrcoef(steps[-1][10_000:], after[10_000:])[0, 1] - 0.85) < 0.03


def test_noise_that_lasts_by_hand_and_from_a_state() -> None:
    """x <- 0.6 x + 0.8 e; in the environment whose episode begins, e."""
    drawn = np.random.default_rng(5).standard_normal((3, 2, 2), np.float32)
    noise, no = LastingNoise(0.6, np.random.default_rng(5)), np.zeros(2, bool)
    np.testing.assert_array_equal(noise(no, 2), drawn[0])
    second = noise(np.array([True, False]), 2)
    wanted = np.stack([drawn[1, 0], 0.6 * drawn[0, 1] + 0.8 * drawn[1, 1]])
    np.testing.assert_allclose(second, wanted, rtol=1e-6)
    assert second.dtype == np.float32
    np.testing.assert_allclose(noise(no, 2), 0.6 * wanted + 0.8 * drawn[2], rtol=1e-5, atol=1e-6)
    anew = LastingNoise(0.0, np.random.default_rng(5))
    assert [anew(no, 2).tolist() for _ in drawn] == drawn.tolist() and anew.last is None
    assert noise(np.zeros(3, bool), 2).shape == (3, 2), "of other environments"


def test_an_agent_goes_on_with_the_noise_of_its_state() -> None:
    obs, no = {"obs": np.zeros((4, 3), np.float32)}, np.zeros(4, bool)
    nets = network(ENV, None)
    agents = [DPGAgent(nets, 0.3, seed, correlation=0.9) for seed in (0, 1, 2)]
    agents[0].act(obs, no, {})
    agents[1].load_state_dict(agents[0].state_dict())
    old = {name: value for name, value in agents[0].state_dict().items() if name != "noise"}
    agents[2].load_state_dict(old)  # of a version whose noise did not last
    first, second, third = (agent.act(obs, no, {}).action for agent in agents)
    assert np.array_equal(first, second) and not np.array_equal(first, third)


@pytest.mark.parametrize("random_steps", [0, 5])
def test_an_actor_has_the_noise_of_its_settings(random_steps: int) -> None:
    cfg = config("apex-dpg", env="Pendulum-v1", noise=0.7, noise_correlation=0.4, random_steps=random_steps)
    for ctx in (None, Context("actor", 0, 1, 0, 0, Recorder(), steps=lambda: 9)):
        made = apex_dpg.agent(cfg, 3, ctx)
        assert (made.noise, made.lasting.correlation, made.at_random()) == (0.7, 0.4, False)


def test_the_first_actions_are_drawn_uniformly_from_the_box() -> None:
    steps = [0]
    nets, obs = network(ENV, None), {"obs": np.zeros((20_000, 3), np.float32)}
    agent = DPGAgent(nets, 0.0, 0, lambda: steps[0] < 100)
    drawn = agent.act(obs, np.zeros(20_000, bool), {}).action
    assert (drawn >= LOW).all() and (drawn <= HIGH).all()
    np.testing.assert_allclose(drawn.mean(0), (np.array(LOW) + HIGH) / 2, atol=0.03)
    np.testing.assert_allclose(drawn.std(0), (np.array(HIGH) - LOW) / math.sqrt(12), rtol=0.02)
    best = agent.act(obs, np.zeros(20_000, bool), {}, greedy=True).action
    assert np.ptp(best, 0).max() == 0.0, "the greedy action is the policy's from the beginning"
    steps[0] = 100
    assert np.array_equal(agent.act(obs, np.zeros(20_000, bool), {}).action, best)


# whose last side has no length
FLAT = replace(ENV, action=Action("continuous", low=(*LOW[:-1], 0.0), high=(*HIGH[:-1], 0.0)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("env", [ENV, SMALL_IMAGE, FLAT], ids=["vectors", "images", "flat"])
def test_values_are_of_the_executed_action_and_of_the_policys(kind: str, env: EnvSpec) -> None:
    nets = network(env, KINDS[kind]())
    returns, critic = present(nets.returns), present(nets.critic)
    obs = observations(env, "", torch.Generator().manual_seed(0))
    act = DPGAgent(nets, 0.5, 0).act({k: v.numpy() for k, v in obs.items()}, np.zeros(ROWS, bool), {})
    with torch.no_grad():
        seen = nets.features(obs)
        taken = returns.mean(critic(seen, torch.from_numpy(act.action)))
        best = returns.mean(critic(seen, torch.tanh(nets.policy(seen))))
    np.testing.assert_allclose(act.extras["q_taken"], taken.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(act.extras["q_max"], best.numpy(), rtol=1e-4, atol=1e-5)
    assert not np.allclose(act.extras["q_taken"], act.extras["q_max"])


# ------------------------------------------------------------------------------------ metrics
@pytest.mark.parametrize("bias, share", [((0.0, 0.0), 0.0), ((9.0, 0.0), 0.5), ((9.0, -9.0), 1.0)])
def test_the_share_of_saturated_actions_is_told(bias: tuple[float, float], share: float) -> None:
    """Of a policy that is little more than the bias of its last layer, before the tanh."""
    nets = network(ENV, Expected())
    last = cast(nn.Linear, nets.policy[-1])
    with torch.no_grad():
        last.weight.mul_(0.1)
        last.bias.copy_(torch.tensor(bias))
    algorithm = DPG(DPGConfig(), nets)
    update = differentiate(algorithm, algorithm.prepare(batch()))[2]
    assert float(update.metrics["saturated"]) == pytest.approx(share)


def test_too_narrow_a_range_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """The mass on the outermost atoms is a metric; above 5 % on average, and not at the start, a sentence says so."""
    ours = learner(config("d4pg", env="Pendulum-v1", v_min=-0.1, v_max=0.1, atoms=5, target_period=1_000))
    ours.message = "the range came from elsewhere"
    env = EnvSpec("Pendulum-v1", {"obs": Observation((3,), "float32")}, Action("continuous", (), (-1.0,), (1.0,)))
    given = batch(env)
    given.items["action"] = given.items["action"][:, :1]
    masses = [ours.update(given).metrics.get("edge_mass") for _ in range(11)]
    assert [mass is None for mass in masses] == [False, *[True] * 9, False]
    assert 0.35 < float(masses[0]) < 0.45  # of a new critic, which knows nothing: 2 in 5
    assert [record.getMessage() for record in caplog.records] == ["the range came from elsewhere"]
    ours.edges, ours.step = 0.0, 1_000
    for _ in range(200):
        ours.watch(0.04, 0.04, 0.04)
    assert len(caplog.records) == 1
    for _ in range(20):
        ours.watch(0.4, 0.3, 0.4)
    _, record = caplog.records
    told = record.getMessage()
    assert "outermost of its returns, -0.1 and 0.1, the most on the largest" in told
    assert "a higher --v-max" in told and "--v-min" not in told
    again = learner(config("d4pg", env="Pendulum-v1", v_min=-0.1, v_max=0.1, atoms=5))
    again.load_state_dict(ours.state_dict())
    again.watch(1.0, 1.0, 1.0)
    assert len(caplog.records) == 2
    bounded = learner(config("d4pg", env="Pendulum-v1", v_min=-0.1, v_max=0.1, atoms=5))
    bounded.step = 1_000
    for _ in range(200):  # the least that is possible, often met: nothing lies beyond
        bounded.watch(0.9, 0.0, 0.0)
    assert len(caplog.records) == 2
