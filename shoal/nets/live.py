"""The tensors of a network by name, looked up once: ``state_dict`` walks every module, which on a small network takes
longer than copying its parameters."""

from __future__ import annotations

import torch
from torch import nn

from shoal import fast
from shoal.api import Tensors


class LiveTensors:
    """The parameters and buffers of ``module``, to be read or overwritten often. They must stay the same objects, that
    is, change in place (as optimisers, ``load_state_dict`` and running statistics change them); what they hold may move
    to other memory (``tensor.data = ...``)."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._own: Tensors = dict(module.state_dict(keep_vars=True))
        self._kept: Tensors = {}  # without gradients
        self._at: list[int] = []  # where they were when ``_kept`` became views of them
        self._adopted: Tensors = {}
        self._fits = False  # whether what was loaded had the same shapes

    @property
    def tensors(self) -> Tensors:
        """By the names of ``state_dict``."""
        if not fast.ENABLED:
            return dict(self._module.state_dict())
        at = [tensor.data_ptr() for tensor in self._own.values()]
        if at != self._at:
            self._kept, self._at = {name: tensor.detach() for name, tensor in self._own.items()}, at
        return self._kept

    def load(self, params: Tensors) -> None:
        """Copy ``params`` in; names and shapes must agree, else ``load_state_dict`` raises and says which do not. The
        shapes are looked at the first time."""
        own = self.tensors
        if not fast.ENABLED or params.keys() != own.keys() or not self._fits:
            self._module.load_state_dict(params)
            self._fits = True
            return
        with torch.no_grad():
            torch._foreach_copy_(list(own.values()), [params[name] for name in own])

    def adopt(self, params: Tensors) -> None:
        """From now on the parameters are these tensors, not copies of them, where they have the same dtype: who changes
        them changes the module, and has nothing more to ``load``."""
        if not fast.ENABLED or params is self._adopted:
            return
        for name, p in self._module.named_parameters():
            if name in params and params[name].dtype == p.dtype:
                p.data = params[name]
        self._adopted = params
