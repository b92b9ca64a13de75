"""What is compiled for few rows is the network, and the choice, of torch's operations."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from shoal import fast
from shoal.api import Action, EnvSpec, Observation
from shoal.fast.perceptron import Perceptron
from shoal.fast.small_batch import MAX_ROWS
from shoal.learning.actor_critic import ActorCriticAgent
from shoal.nets import Encoder
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.distributions import sample_categorical

pytestmark = pytest.mark.usefixtures("fast_enabled")


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("hidden", [(12,), (12, 70, 5)])
@pytest.mark.parametrize("rows", [1, MAX_ROWS, MAX_ROWS + 1])
def test_values_of_few_rows(activation: str, hidden: tuple[int, ...], rows: int) -> None:
    """Also of copies, and when the parameters change or move."""
    torch.manual_seed(0)
    encoder = Encoder({"obs": Observation((9,), "float32", "vector")}, hidden=hidden, activation=activation)  # type: ignore[arg-type]
    heads = [nn.Linear(encoder.features, 3), nn.Linear(encoder.features, 1)]
    perceptron = encoder.perceptron(*heads)
    assert perceptron is not None
    net = nn.ModuleList([encoder, *heads])
    net.by_hand = perceptron  # type: ignore[assignment]

    @torch.no_grad()
    def check(net: nn.ModuleList) -> None:
        x, by_hand = torch.randn(rows, 9), net.by_hand
        features = net[0]({"obs": x})
        wanted = torch.cat([head(features) for head in (net[1], net[2])], 1)
        assert isinstance(by_hand, Perceptron)
        torch.testing.assert_close(by_hand.values(x), wanted, rtol=1e-5, atol=1e-5)

    check(net)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1)
    check(net)
    for p in net.parameters():
        p.data = p.data.clone() - 0.2
    check(net)
    other = copy.deepcopy(net)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(2.0)
    check(other)
    check(net)


@pytest.mark.parametrize("actions", [2, 5])
def test_the_same_numbers_choose_the_same_actions(actions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(500, actions, generator=torch.Generator().manual_seed(0))
    logits[::7, 1:] = -torch.inf
    found = []
    for compiled in (True, False):
        monkeypatch.setattr(fast, "ENABLED", compiled)
        generator = torch.Generator().manual_seed(1)
        found.append(torch.cat([sample_categorical(row, generator) for row in logits.split(2)]))
    assert torch.equal(*found) and not found[0][::7].any() and len(found[0].unique()) == actions


@pytest.mark.parametrize("actions", [2, 3])
@pytest.mark.parametrize("rows", [1, MAX_ROWS])
def test_an_agent_of_few_rows_acts_as_one_of_operations(
    actions: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by tensors that it has adopted, whatever they are changed to."""
    env = EnvSpec("few", {"obs": Observation((9,), "float32", "vector")}, Action("discrete", (actions,)))
    torch.manual_seed(0)
    nets = ActorCritic(env, hidden=(12, 7))
    adopted = {name: p.detach().clone() for name, p in nets.named_parameters()}
    agents = [ActorCriticAgent(copy.deepcopy(nets), 3, ("policy",)) for _ in range(2)]
    agents[0].adopt(adopted)
    for step in range(20):
        obs = {"obs": torch.randn(rows, 9).numpy()}
        for tensor in adopted.values():
            tensor.mul_(1.05)
        agents[1].load(adopted, step)
        acts = []
        for compiled, agent in zip((True, False), agents, strict=True):
            monkeypatch.setattr(fast, "ENABLED", compiled)
            acts.append(agent.act(obs, np.zeros(rows, bool), {}))
        monkeypatch.setattr(fast, "ENABLED", True)
        assert acts[0].action.dtype == acts[1].action.dtype and (acts[0].action == acts[1].action).all()
        for name in ("policy", "value"):
            np.testing.assert_allclose(acts[0].extras[name], acts[1].extras[name], rtol=1e-5, atol=1e-5)
