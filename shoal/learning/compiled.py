"""The encoders of a large network by ``torch.compile``: their operations joined, forwards and backwards."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch
from torch import nn

from shoal.learning.networks import networks_beside
from shoal.nets.encoder import Encoder

log = logging.getLogger(__name__)
BACKEND = "inductor"  # of torch.compile
ENCODERS = 64  # in one process, with each of their shapes, and with or without gradients


def compile_encoders(algorithm: Any) -> int:
    """Let the encoders of an algorithm's network, and of those beside it, be compiled when they are first called, which
    takes seconds to minutes. Where that fails a warning says why, and they compute as before. Returns how many."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch's own, of what it imports
        import torch._inductor.compile_fx

    torch._inductor.config.compile_threads = 1  # else a pool of processes that a run would leave behind
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, ENCODERS)
    networks = (algorithm.nets, *networks_beside(algorithm))
    found = [module for network in networks for module in network.modules() if isinstance(module, Encoder)]
    for encoder in found:
        encoder._compiled_call_impl = _Compiled(encoder)
    return len(found)


class _Compiled:
    """What ``nn.Module`` calls in place of an encoder's own call; it is left out of copies and files."""

    def __init__(self, encoder: nn.Module) -> None:
        self._encoder: Any = encoder
        self._call = torch.compile(encoder._call_impl, backend=BACKEND)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._call(*args, **kwargs)
        except torch._dynamo.exc.TorchDynamoException as error:
            self._encoder._compiled_call_impl = None
            why = " ".join(str(error).split("\n")[:2]).strip() or type(error).__name__
            log.warning("the network is not compiled, as torch.compile fails: %s", why)
            return self._encoder(*args, **kwargs)
