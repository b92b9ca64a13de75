import math

import pytest
import torch
from present import present

from shoal.api import Action
from shoal.nets import DuelingQHead, PolicyHead, QHead, ValueHead
from shoal.nets.heads import scale_gradient
from shoal.ops import dueling


@pytest.mark.parametrize(
    "action, size",
    [
        (Action("discrete", (5,)), 5),
        (Action("multi_discrete", (3, 2)), 5),
        (Action("continuous", low=(-1.0, 0.0), high=(1.0, 2.0)), 4),
    ],
    ids=str,
)
def test_policy_head(action, size):
    head = PolicyHead(8, action)
    params = head(torch.randn(3, 2, 8))
    assert params.shape == (3, 2, size) == (3, 2, head.dist.params_size)
    assert head.dist.log_prob(params, head.dist.sample(params)).shape == (3, 2)
    assert params.abs().max() < 0.1  # gain 0.01
    assert head.linear.bias.abs().max() == 0
    if action.kind == "continuous":
        assert params[..., 2:].abs().max() == 0
        head.dist.entropy(params).sum().backward()
        assert present(present(head.log_std).grad).tolist() == [6.0, 6.0]  # one parameter, repeated into 6 rows


def test_value_and_q_heads():
    x = torch.randn(3, 2, 8)
    assert ValueHead(8)(x).shape == (3, 2)
    assert QHead(8, 5)(x).shape == (3, 2, 5)
    assert DuelingQHead(8, 5)(x).shape == (3, 2, 5)
    assert DuelingQHead(8, 5).value[0].out_features == 512


def test_dueling_worked_numbers():
    v, a = torch.tensor([2.0]), torch.tensor([1.0, 3.0, -1.0])
    assert dueling(v, a).tolist() == [2.0, 4.0, 0.0]
    assert dueling(v, a + 7).tolist() == [2.0, 4.0, 0.0]


def test_dueling_scales_the_torsos_gradient_only():
    x = torch.randn(4, 8, requires_grad=True)
    head = DuelingQHead(8, 3, hidden=6)
    head(x).sum().backward()
    weight = dict(head.named_parameters())["value.0.weight"]
    scaled, own = present(x.grad).clone(), present(weight.grad).clone()
    x.grad = None
    head.zero_grad()
    dueling(head.value(x), head.advantage(x)).sum().backward()
    torch.testing.assert_close(scaled, present(x.grad) / math.sqrt(2))
    torch.testing.assert_close(own, weight.grad)


def test_scale_gradient():
    x = torch.ones(2, requires_grad=True)
    y = scale_gradient(x, 0.25)
    assert torch.equal(y, x)
    y.sum().backward()
    assert present(x.grad).tolist() == [0.25, 0.25]


def test_heads_are_float32_under_autocast():
    x = torch.randn(4, 8)
    heads = PolicyHead(8, Action("discrete", (3,))), ValueHead(8), QHead(8, 3)
    for head in heads:
        want = head(x)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(head(x), want) and head(x.bfloat16()).dtype == torch.float32
    dueling_head = DuelingQHead(8, 3)  # its hidden layers are the torso's last one
    want = dueling_head(x)
    with torch.autocast("cpu", torch.bfloat16):
        got = dueling_head(x)
    assert got.dtype == torch.float32 and not torch.equal(got, want)
    torch.testing.assert_close(got, want, atol=0.02, rtol=0.02)
