import pytest
import torch
from present import present

from shoal.api import Observation, UsageError
from shoal.nets import Encoder, autocast, precision
from shoal.nets.precision import inferring

IMAGES = Encoder({"obs": Observation((4, 84, 84), "uint8", "image")}, "impala-shallow")
VECTORS = Encoder({"obs": Observation((4,), "float32")})


@pytest.mark.parametrize("unit", ["AMX", ""])
def test_auto(monkeypatch, unit):
    monkeypatch.setattr(precision, "bf16_unit", lambda: unit)
    assert precision.resolve("auto", "cpu", IMAGES) == ("bf16" if unit else "fp32")
    assert precision.resolve("auto", "cpu") == ("bf16" if unit else "fp32")
    assert precision.resolve("auto", "cpu", VECTORS) == "fp32"
    assert precision.resolve("bf16", "cpu", VECTORS) == "bf16"


@pytest.mark.parametrize(
    "flags, unit",
    [
        ("avx2 avx512f avx512_bf16 amx_tile amx_bf16", "AMX"), ("avx512f avx512_bf16", "AVX512_BF16"),
        ("avx512f avx512_vnni amx_int8", ""),
    ],
)  # fmt: skip
def test_which_cpus_multiply_bf16(monkeypatch, flags, unit):
    monkeypatch.setattr(precision.Path, "read_text", lambda path: f"model name : a CPU\nflags : fpu {flags}\n")
    assert precision.bf16_unit.__wrapped__() == unit


def test_unknown_precision():
    with pytest.raises(UsageError, match="fp16"):
        precision.resolve("fp16")  # type: ignore[arg-type]


def test_bf16_is_close_and_features_and_gradients_are_float32():
    x = {"obs": torch.randint(0, 256, (2, 3, 4, 84, 84), dtype=torch.uint8)}
    with autocast("fp32"):
        want = IMAGES(x)
    with autocast("bf16"):
        assert precision.compute_dtype(torch.device("cpu")) == torch.bfloat16
        got = IMAGES(x)
    assert precision.compute_dtype(torch.device("cpu")) == torch.float32
    assert got.dtype == torch.float32 and not torch.equal(got, want)
    torch.testing.assert_close(got, want, atol=0.02, rtol=0.05)
    got.sum().backward()
    assert all(present(p.grad).dtype == torch.float32 for p in IMAGES.parameters())


@pytest.mark.usefixtures("fast_enabled")
@pytest.mark.parametrize("torso", ["nature", "impala-shallow", "impala-deep"])
def test_rounded_weights_are_what_autocast_would_compute_with(torso):
    encoder = Encoder({"obs": Observation((4, 84, 84), "uint8", "image")}, torso).requires_grad_(False)
    nets = torch.nn.Sequential(encoder)
    nets.precision = "bf16"  # type: ignore[assignment]  # what a network says of itself
    x = {"obs": torch.randint(0, 256, (3, 4, 84, 84), dtype=torch.uint8)}
    with autocast("bf16"):
        want = encoder(x)
        assert inferring(nets) is nets
        assert torch.equal(encoder(x), want)
    kinds = [p.dtype for p in encoder.parameters()]
    assert kinds == [torch.float32] * 2 + [torch.bfloat16] * (len(kinds) - 2), "all but the first convolution"


def test_vectors_stay_float32_under_autocast():
    x = {"obs": torch.randn(5, 4)}
    with autocast("bf16"):
        got = VECTORS(x)
    assert torch.equal(got, VECTORS(x))


def test_cuda_counts_only_where_there_is_one():
    assert precision.supports_bf16("cuda") == (torch.cuda.is_available() and torch.cuda.is_bf16_supported(False))
