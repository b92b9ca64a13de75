from functools import partial
from typing import cast

import pytest
import torch
from tolerance import assert_rounded

from shoal.api import Observation, UsageError
from shoal.fast.pixels import channels_last, unshuffled
from shoal.nets import MLP, Encoder, ImpalaResNet, NatureCNN, RecurrentCore, orthogonal
from shoal.nets.torsos import MinAtarCNN

IMAGE = Observation((4, 84, 84), "uint8", "image")
SMALL = Observation((3, 20, 20), "uint8", "image")
VECTOR = Observation((2, 3), "float32")
HOT = Observation((2,), "int64", "one_hot", (3, 4))


def parameters(*modules):
    return sum(p.numel() for m in modules for p in m.parameters())


def image(shape, *lead):
    return torch.randint(0, 256, (*lead, *shape), dtype=torch.uint8)


def test_nature_has_the_published_layers():
    net = NatureCNN(4, 84, 84)
    assert net.features == 512 and not net.small
    assert parameters(net) == 1_684_128  # 8224 + 32832 + 36928 + 1606144
    assert NatureCNN(4, 84, 84, fc=0).features == 3136


def test_impala_sizes_are_those_of_the_paper():
    """15 convolutions; with an LSTM of 256 units 1.6M parameters, and 1.2M with two convolutions."""
    core = RecurrentCore("lstm", 256 + 1 + 9, 256)  # features, last reward, last action
    shallow, deep = (ImpalaResNet(3, 72, 96, depth) for depth in ("shallow", "deep"))  # DMLab
    assert sum(isinstance(m, torch.nn.Conv2d) for m in deep.modules()) == 15
    assert 1.1e6 < parameters(shallow, core) < 1.25e6
    assert 1.5e6 < parameters(deep, core) < 1.65e6


@pytest.mark.parametrize("side", [5, 7, 10, 20, 35, 36, 64])
@pytest.mark.parametrize("make", [NatureCNN, ImpalaResNet, partial(ImpalaResNet, depth="shallow")])
def test_any_image_size(make, side):
    net = make(3, side, side)
    assert net(image((3, side, side), 2)).shape == (2, net.features)
    assert net.small == (side < 36 and not any(isinstance(m, torch.nn.MaxPool2d) for m in net.modules()))


def test_uint8_is_scaled_and_floats_are_not():
    net, x = NatureCNN(3, 20, 20), image((3, 20, 20), 2)
    torch.testing.assert_close(net(x), net(x.float() / 255))
    kept = x.float()
    net(kept)
    assert torch.equal(kept, x.float())  # inputs are never changed in place


def test_parameters_are_plainly_contiguous():
    """Flat parameter buffers and safetensors want it; the images alone make the convolutions channels-last."""
    assert all(p.is_contiguous() for p in NatureCNN(4, 84, 84).parameters())


@pytest.mark.parametrize(
    "torso", ["auto", "mlp", "nature", "impala-shallow", "impala-deep", "resnet50", "minatar", "none"]
)
@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_encoder_folds_any_leading_dims(torso, lead):
    obs = {"obs/front.left": SMALL, "obs/rear": SMALL, "obs/x": VECTOR, "obs/id": HOT}
    net = Encoder(obs, torso, hidden=(16,))
    x = {
        "obs/front.left": image(SMALL.shape, *lead),
        "obs/rear": image(SMALL.shape, *lead),
        "obs/x": torch.randn(*lead, 2, 3),
        "obs/id": torch.randint(0, 3, (*lead, 2)),
    }
    y = net(x)
    assert y.shape == (*lead, net.features) and y.dtype == torch.float32
    flat = net({k: v.reshape(-1, *obs[k].shape) for k, v in x.items()})
    torch.testing.assert_close(y.reshape(-1, net.features), flat)


def test_encoder_sizes():
    assert Encoder({"obs": VECTOR}, hidden=(64, 64)).features == 64
    assert Encoder({"obs": VECTOR}, "none").features == 6
    assert Encoder({"obs": VECTOR}, hidden=()).features == 6
    assert Encoder({"obs": IMAGE}).features == 512
    assert Encoder({"obs": IMAGE}, fc=False).features == 3136
    assert Encoder({"obs": IMAGE}, "impala-deep").features == 256
    assert Encoder({"a": IMAGE, "b": IMAGE, "c": VECTOR}, hidden=(8,)).features == 1032


def test_one_hot():
    net = Encoder({"obs": HOT}, "none")
    assert net({"obs": torch.tensor([[2, 1]])}).tolist() == [[0, 0, 1, 0, 1, 0, 0]]
    single = Encoder({"obs": Observation((), "int64", "one_hot", (3,))}, "none")
    assert single({"obs": torch.tensor([2, 0])}).tolist() == [[0, 0, 1], [1, 0, 0]]


class Sum(torch.nn.Module):
    features = 1

    def forward(self, obs):
        assert obs["obs"].dim() == 3  # [N, 2, 3]
        return obs["obs"].flatten(1).sum(-1, keepdim=True)


def make_sum(observations):
    assert observations == {"obs": VECTOR}
    return Sum()


@pytest.mark.parametrize("torso", [make_sum, f"{__name__}:make_sum"])
def test_a_users_own_network(torso, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules[make_sum.__module__])
    assert Encoder({"obs": VECTOR}, torso)({"obs": torch.ones(4, 5, 2, 3)}).tolist() == [[[6.0]] * 5] * 4


@pytest.mark.parametrize(
    "torso, text",
    [("resnet", "one of auto"), ("nowhere.at.all:f", "cannot be imported"), ("math:nothing", "cannot be imported")],
)
def test_unknown_torsos(torso, text):
    with pytest.raises(UsageError, match=text):
        Encoder({"obs": VECTOR}, torso)


def test_own_network_without_features():
    with pytest.raises(UsageError, match="features"):
        Encoder({"obs": VECTOR}, lambda obs: torch.nn.Flatten())
    with pytest.raises(UsageError, match="not a function"):
        Encoder({"obs": VECTOR}, "math:pi")


def test_layer_norm_and_activation():
    layers = [type(m).__name__ for m in MLP((3, 4, 5), "relu", layer_norm=True)]
    assert layers == ["Linear", "LayerNorm", "ReLU"] * 2


def test_orthogonal():
    first, small = (cast(torch.nn.Linear, net[0]) for net in (orthogonal(MLP((8, 4))), orthogonal(MLP((4, 4)), 0.01)))
    torch.testing.assert_close(first.weight @ first.weight.T, 2 * torch.eye(4), rtol=1e-5, atol=1e-5)
    assert first.bias.abs().max() == 0
    assert small.weight.detach().norm().item() == pytest.approx(0.02, rel=1e-4)


@pytest.mark.parametrize("h,w", [(84, 84), (64, 48), (36, 36), (35, 20), (5, 7)])
def test_features_are_counted_as_the_convolutions_make_them(h: int, w: int) -> None:
    for torso in (NatureCNN(3, h, w, fc=0), ImpalaResNet(3, h, w, fc=0), ImpalaResNet(3, h, w, "shallow", fc=0)):
        assert torso(torch.zeros(2, 3, h, w)).shape == (2, torso.features)


@pytest.mark.parametrize("shape", [(3, 4, 84, 84), (2, 4, 5, 7), (0, 4, 9, 9), (2, 3, 8, 8), (2, 1, 8, 8)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_channels_last_is_torchs(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randint(0, 256, shape).to(dtype)
    for images in (x, x.flip(0), x[:, :, 1:]):  # the last is a view
        ours, theirs = channels_last(images), images.contiguous(memory_format=torch.channels_last)
        assert torch.equal(ours, theirs) and ours.stride() == theirs.stride()


@pytest.mark.parametrize("shape", [(3, 4, 84, 84), (2, 3, 8, 16), (0, 4, 8, 8)])
@pytest.mark.parametrize("side", [2, 4])
def test_unshuffled_is_torchs_with_the_channels_last(shape: tuple[int, ...], side: int) -> None:
    x = torch.randint(0, 256, shape).to(torch.uint8)
    for images in (x, x.flip(0), x[:, :, 4:], x.float()):
        ours = unshuffled(images, side)
        if len(images):  # torch's does nothing to none
            assert torch.equal(ours, torch.nn.functional.pixel_unshuffle(images, side))
        assert ours.shape == (len(x), shape[1] * side**2, images.shape[2] // side, images.shape[3] // side)
        assert ours.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.usefixtures("fast_enabled")
@pytest.mark.parametrize("side", [84, 72, 83])  # the last is not made of blocks
@pytest.mark.parametrize("make", [NatureCNN, partial(ImpalaResNet, depth="shallow")])
def test_a_convolution_of_blocks_is_the_convolution(make, side):
    torch.manual_seed(0)
    net, images = make(4, side, side), image((4, side, side), 5)
    conv = net.convs[0]
    assert conv._blocks(images) == (side != 83)
    out = conv(images)
    given = torch.randn_like(out)
    ours = out, *torch.autograd.grad(out, (conv.weight, conv.bias), given)

    def exact(weight, bias, given):
        plain = conv._conv_forward(images.double() / 255, weight, bias)
        return plain, *torch.autograd.grad(plain, (weight, bias), given)

    parts = [x.detach().double().requires_grad_() for x in (conv.weight, conv.bias)]
    wanted = exact(parts[0], parts[1], given.double())
    sizes = [x.detach().abs().requires_grad_() for x in parts]
    magnitudes = exact(sizes[0], sizes[1], given.double().abs())
    inputs, outputs = conv.weight[0].numel(), given.numel() // given.shape[1]  # terms of a value, and of a gradient
    for found, reference, magnitude, terms in zip(ours, wanted, magnitudes, (inputs, outputs, outputs), strict=True):
        assert_rounded(found, reference.detach(), magnitude.detach(), terms + 3)  # the bias, the scale and the ratio


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning")
def test_a_torso_can_be_traced_although_its_bytes_are_reordered_outside_torch() -> None:
    torso = NatureCNN(4, 84, 84)
    one, other = (torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8) for _ in range(2))
    traced = torch.jit.trace(torso, (one,))
    exported = torch.export.export(torso, (one,)).module()
    torch.testing.assert_close(traced(other), torso(other))
    torch.testing.assert_close(exported(other), torso(other))


def test_the_minatar_torso_is_the_published_network_on_boards_and_on_images() -> None:
    """Young and Tian's QNetwork without its last layer, weight by weight: x.permute, conv, relu, hidden layer, relu."""
    board = Observation((10, 10, 6), "float32")
    encoder = Encoder({"obs": board}, "minatar")
    assert encoder.features == 128
    assert sum(p.numel() for p in encoder.parameters()) == (6 * 9 + 1) * 16 + (8 * 8 * 16 + 1) * 128
    torso = cast(MinAtarCNN, encoder.images["obs"])
    first, hidden = cast(torch.nn.Sequential, torso.convs)[0], cast(torch.nn.Sequential, torso.fc)[0]
    conv = cast(torch.nn.Conv2d, first)
    x = torch.randint(0, 2, (2, 3, 10, 10, 6)).float()
    planes = x.flatten(0, 1).permute(0, 3, 1, 2)  # not divided by 255
    seen = torch.relu(torch.nn.functional.conv2d(planes, conv.weight, conv.bias))
    expected = torch.relu(hidden(seen.flatten(1))).unflatten(0, (2, 3))
    torch.testing.assert_close(encoder({"obs": x}), expected)
    pictures = Encoder({"obs": Observation((6, 10, 10), "uint8", "image")}, "minatar")
    pictures.load_state_dict(encoder.state_dict())
    bytes = (x * 255).to(torch.uint8).permute(0, 1, 4, 2, 3)
    torch.testing.assert_close(pictures({"obs": bytes}), expected)


def test_the_minatar_torso_leaves_vectors_to_the_mlp_and_other_torsos_leave_boards_to_it() -> None:
    seen = {"board": Observation((5, 5, 2), "float32"), "vector": Observation((3,), "float32")}
    assert list(Encoder(seen, "minatar", hidden=(7,)).images) == ["board"]
    assert Encoder(seen, "minatar", hidden=(7,)).features == 128 + 7
    assert Encoder(seen, "nature", hidden=(7,)).flat == ["board", "vector"]
    with pytest.raises(UsageError, match="3 x 3"):
        Encoder({"obs": Observation((2, 9, 1), "float32")}, "minatar")
