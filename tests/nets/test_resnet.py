from typing import cast

import pytest
import torch
from torch import nn

from shoal.api import Observation
from shoal.nets import Encoder
from shoal.nets.resnet import Bottleneck, ResNet50


def test_fifty_layers_as_wide_as_the_papers() -> None:
    torso = ResNet50(1, 256, 256)
    shortcuts = [m for block in torso.modules() if isinstance(block, Bottleneck) for m in block.shortcut.modules()]
    convs = [m for m in torso.modules() if isinstance(m, nn.Conv2d) and not any(m is s for s in shortcuts)]
    assert len(convs) - 1 + 1 == 50  # without the compressing one, with the fully connected layer
    assert sum(isinstance(m, nn.Conv2d) for m in shortcuts) == 4  # one at each width
    assert [convs[i].out_channels for i in (0, 3, -2, -1)] == [32, 128, 1024, 128]
    assert (
        cast(nn.Linear, cast(nn.Sequential, torso.fc)[0]).in_features == 2048 and torso.features == 512
    )  # 128 channels of 4 x 4
    assert not any(isinstance(m, nn.BatchNorm2d) for m in torso.modules())


@pytest.mark.parametrize("h,w", [(256, 256), (48, 64), (84, 84), (5, 7), (33, 17)])
def test_features_are_counted_as_the_convolutions_make_them(h: int, w: int) -> None:
    torso = ResNet50(3, h, w, fc=0)
    assert torso(torch.zeros(2, 3, h, w)).shape == (2, torso.features)


def test_a_block_is_its_formula() -> None:
    torch.manual_seed(0)
    block = Bottleneck(128, 32, stride=1)
    x = torch.randn(2, 128, 6, 6)
    conv1, norm1, _, conv2, norm2, _, conv3, norm3 = block.residual
    y = norm3(conv3(torch.relu(norm2(conv2(torch.relu(norm1(conv1(x))))))))
    assert torch.equal(block(x), torch.relu(x + y))
    groups = norm1(conv1(x)).view(2, 16, -1)  # two channels each
    torch.testing.assert_close(groups.mean(-1), torch.zeros(2, 16), rtol=0, atol=1e-5)
    torch.testing.assert_close(groups.var(-1, unbiased=False), torch.ones(2, 16), rtol=1e-3, atol=0)


def test_bytes_are_fractions_of_255_and_all_of_it_learns() -> None:
    torch.manual_seed(0)
    net = Encoder({"depth": Observation((1, 48, 64), "uint8", "image")}, torso="resnet50")
    image = torch.randint(0, 256, (3, 1, 48, 64), dtype=torch.uint8)
    y = net({"depth": image})
    torch.testing.assert_close(y, net({"depth": image / 255}))
    assert y.shape == (3, 512) and y.dtype == torch.float32
    y.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())
