"""Parameters that are looked up once, read and overwritten often."""

from __future__ import annotations

import pytest
import torch

from shoal import fast
from shoal.nets.named_tensors import NamedTensors


@pytest.fixture(params=[True, False], ids=["fast", "plain"])
def nets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.nn.Module:
    monkeypatch.setattr(fast, "ENABLED", request.param)
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))


def same(live: NamedTensors, nets: torch.nn.Module) -> None:
    wanted = nets.state_dict()
    assert live.tensors.keys() == wanted.keys()
    for name, tensor in live.tensors.items():
        assert torch.equal(tensor, wanted[name]) and tensor.data_ptr() == wanted[name].data_ptr(), name
        assert not tensor.requires_grad


def test_live_tensors_follow_parameters_that_move_to_other_memory(nets: torch.nn.Module) -> None:
    live = NamedTensors(nets)
    same(live, nets)
    for tensor in nets.state_dict(keep_vars=True).values():
        tensor.data = tensor.data + 1
        same(live, nets)


def test_what_is_loaded_after_a_move_is_in_the_network(nets: torch.nn.Module) -> None:
    live = NamedTensors(nets)
    for turn in range(3):
        wanted = {name: torch.full_like(tensor, 7 + turn) for name, tensor in nets.state_dict().items()}
        for p in nets.parameters():
            p.data = p.data.clone()
        live.load(wanted)
        assert all(torch.equal(tensor, wanted[name]) for name, tensor in nets.state_dict().items()), turn


def test_adopted_tensors_are_the_networks(nets: torch.nn.Module) -> None:
    live = NamedTensors(nets)
    given = {name: torch.ones_like(p) for name, p in nets.named_parameters()}
    live.adopt(given)
    same(live, nets)
    if fast.ENABLED:
        assert all(live.tensors[name].data_ptr() == tensor.data_ptr() for name, tensor in given.items())
