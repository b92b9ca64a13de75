"""Channels that most systems use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from shoal.api import (
    Field,
    ReplaySpec,
    Spec,
    UsageError,
)
from shoal.program import Channel
from shoal.replay import Ratio
from shoal.roles.actor import unroll_spec
from shoal.topology.config import SystemConfig

Network = Callable[..., Any]  # (cfg, device) -> module
Made = TypeVar("Made")
# extra fields that an agent stores beside its actions: name -> shape, dtype
Extras = Mapping[str, tuple[tuple[int, ...], str]]
# the initial priorities are computed from these
Q_VALUES: Extras = {"q_taken": ((), "float32"), "q_max": ((), "float32")}


def shapes(network: Callable[[], Made]) -> Made:
    """Return ``network()`` built without allocating memory: its tensors have shapes only. Raises UsageError if its size
    exceeds 64 bits."""
    try:
        with torch.device("meta"):
            return network()
    except (RuntimeError, TypeError, OverflowError) as error:  # which of them torch raises depends on the layer
        if "overflow" not in str(error).lower():
            raise
        raise UsageError(
            "the network takes more than 2**63 bytes, which no machine has: make its layers smaller (hidden, "
            "core_size, atoms, or those of its own)"
        ) from None


def queue(name: str, spec: Spec, capacity: int = 1) -> Channel:
    """Return a queue channel that keeps the items of each writer in order, at most ``capacity`` of them."""
    return Channel(name, "queue", spec, capacity)


def replay(name: str, spec: Spec, table: ReplaySpec, ratio: Ratio) -> Channel:
    """Return a replay channel: a table of the actors' items, sampled by its reader."""
    return Channel(name, "replay", spec, 2, ratio, table)


def parameters(name: str, network: Callable[[], nn.Module], lag: int = 0, divided: int = 0) -> Channel:
    """Return the channel of the parameters of ``network()``, which is built without allocating memory. Readers get the
    latest version. There is one writer, or one for each part of a ``divided`` channel. lag: versions by which readers
    are behind (serial runtime)."""
    state = shapes(network).state_dict()
    spec = {k: Field(tuple(v.shape), str(v.dtype).removeprefix("torch."), axis=0) for k, v in state.items()}
    return Channel(name, "params", spec, lag=lag, divided=divided)


def trajectories(cfg: SystemConfig, network: Network, extras: Extras) -> Spec:
    """Return the fields of self-contained trajectories for an on-policy learner, with the recurrent state of
    ``network(cfg)`` before the first observation. extras: arrays that the agent stores beside its actions."""
    return unroll_spec(cfg.env_spec(), cfg.unroll, cfg.envs, extras, _state(cfg, network))


def stream(cfg: SystemConfig, extras: Extras | None = None, network: Network | None = None) -> Spec:
    """Return the fields of unrolls that continue one another, for a replay, with the recurrent state of
    ``network(cfg)`` before each step."""
    state = _state(cfg, network) if network is not None else {}
    return unroll_spec(cfg.env_spec(), cfg.unroll, cfg.envs, extras or {}, state, stream=True)


def _state(cfg: SystemConfig, network: Network) -> dict[str, tuple[int, ...]]:
    state = shapes(lambda: network(cfg).initial_state(1))
    return {k: tuple(v.shape[1:]) for k, v in state.items()}
