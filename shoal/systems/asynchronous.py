"""What systems of asynchronous workers share: the parameters that all of them change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shoal.algos.gradient_step import OptimiserConfig
from shoal.algos.segments import parameters_spec
from shoal.api import UsageError
from shoal.ops import SharedRMSProp
from shoal.program import Channel


def shared_parameters(system: str, cfg: OptimiserConfig, network: Callable[[], Any]) -> Channel:
    """The parameters of ``network()``, which is built without allocating them, moved by shared RMSProp. UsageError for
    another optimiser."""
    if cfg.optimiser != "rmsprop":
        raise UsageError(f"optimiser is {cfg.optimiser}, but {system} shares the statistics of rmsprop")
    if cfg.rmsprop_centred:
        raise UsageError(f"rmsprop_centred is true, but {system} shares one average, that of the squared gradients")
    with torch.device("meta"):
        spec = parameters_spec(network())
    return Channel("params", "shared", spec, rule=SharedRMSProp(cfg.rmsprop_decay, cfg.optimiser_eps))
