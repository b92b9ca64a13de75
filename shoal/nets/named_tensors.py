"""Fast access to the tensors of a network by name. ``state_dict`` walks every module, which takes longer than copying
the parameters of a small network."""

from __future__ import annotations

import torch
from torch import nn

from shoal import fast
from shoal.api import Tensors


class NamedTensors:
    """The parameters and buffers of ``module``, for frequent reads or writes. They must remain the same objects and
    change in place (as by optimisers, ``load_state_dict`` and running statistics). Their data may move to other memory
    (``tensor.data = ...``)."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._own: Tensors = dict(module.state_dict(keep_vars=True))
        self._kept: Tensors = {}  # detached views
        self._at: list[int] = []  # addresses of the tensors when ``_kept`` became views of them
        self._adopted: Tensors = {}
        self._fits = False  # whether the shapes of the last loaded parameters matched

    @property
    def tensors(self) -> Tensors:
        """Return the tensors by the names of ``state_dict``, without gradients."""
        if not fast.ENABLED:
            return dict(self._module.state_dict())
        at = [tensor.data_ptr() for tensor in self._own.values()]
        if at != self._at:
            self._kept, self._at = {name: tensor.detach() for name, tensor in self._own.items()}, at
        return self._kept

    def load(self, params: Tensors) -> None:
        """Copy ``params`` into the module. If names or shapes do not match, ``load_state_dict`` raises an error that
        says which. Shapes are compared the first time only."""
        own = self.tensors
        if not fast.ENABLED or params.keys() != own.keys() or not self._fits:
            self._module.load_state_dict(params)
            self._fits = True
            return
        with torch.no_grad():
            torch._foreach_copy_(list(own.values()), [params[name] for name in own])

    def adopt(self, params: Tensors) -> None:
        """Use the tensors ``params`` themselves as parameters, without a copy, if they have the same dtype. Later
        changes of these tensors then change the module without another ``load``."""
        if not fast.ENABLED or params is self._adopted:
            return
        for name, p in self._module.named_parameters():
            if name in params and params[name].dtype == p.dtype:
                p.data = params[name]
        self._adopted = params
