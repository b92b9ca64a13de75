"""A device in the place of a GPU, on any machine: its tensors say that they are elsewhere, and lie here.

Code under test takes the ways that it takes on a GPU, and what would make the host wait for the GPU is written down:
reading a number, operations whose result's shape depends on values, and copies that are not from or to pinned memory.
"""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

import shoal

DEVICE = torch.device("meta")  # the one that PyTorch accepts on every machine beside the CPU
OPS = torch.ops.aten
PACKAGE = f"{Path(shoal.__file__).parent}{os.sep}"  # a folder above it may have its name too
GARBAGE = 113  # what pinned memory holds until a copy has arrived
# the shape of what they return depends on values, or they return a value
WAITING = {
    op for name in (
        "_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique", "_unique2", "unique_consecutive",
        "unique_dim", "bincount", "repeat_interleave",
    ) for overload in getattr(OPS, name).overloads() for op in [getattr(getattr(OPS, name), overload)]
}  # fmt: skip


class Elsewhere(Tensor):
    """A tensor of the device; ``held``: what it holds."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Elsewhere:
        made = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=DEVICE,
        )  # fmt: skip
        made.held = held
        return made

    @property
    def data(self) -> Any:
        return super().data

    @data.setter
    def data(self, other: Any) -> None:
        Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        self.held = other.held

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        assert StandIn.current is not None, f"{func} of a tensor of the stand-in outside of its context"
        return StandIn.current.call(func, args, kwargs or {})


class Mark:
    """A point in the device's work: copies asked for before it have arrived once somebody has waited for it."""

    def __init__(self, device: StandIn, asked: int, coming: list[tuple[Tensor, Tensor]]) -> None:
        self.device, self.asked, self.coming = device, asked, coming

    def synchronize(self) -> None:
        self.device.on_wait()
        if self.device.asked == self.asked:
            self.device.wait("the device has nothing else to do")
        else:
            self.device.covered += 1
        for to, values in self.coming:
            to.copy_(values)


class StandIn(TorchDispatchMode):
    """The context in which the device exists. ``waits``: where the host would have waited since ``clear``, each as the
    operation and the line of Shoal that asked for it; ``copied``: bytes to and from the device."""

    current: StandIn | None = None

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.copied = 0
        self.on_wait: Callable[[], object] = lambda: None
        self.covered = 0  # waits for what was asked for before other work that the device still has to do
        self._pinned: dict[int, Tensor] = {}  # by address; kept, so that no other memory gets the address
        self.asked = 0  # operations
        self._coming: list[tuple[Tensor, Tensor]] = []  # copies to pinned memory that nobody has waited for
        self._tape: list[tuple[Any, Any, Any, Any]] | None = None  # operations and their results, while captured

    def __enter__(self) -> Any:
        StandIn.current = self
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        StandIn.current = None

    def clear(self) -> None:
        self.waits.clear()
        self.copied = 0

    def wait(self, operation: str) -> None:
        """Write down that the host waits, and where it asked for it."""
        if self._tape is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {operation}")
        lines = (f for f in reversed(traceback.extract_stack()) if f.filename.startswith(PACKAGE))
        at = next(lines, None)
        self.waits.append(operation if at is None else f"{operation} at {at.filename[len(PACKAGE) :]}:{at.lineno}")

    def beside(self) -> AbstractContextManager[None]:
        return nullcontext()

    def mark(self) -> Mark:
        coming, self._coming = self._coming, []
        return Mark(self, self.asked, coming)

    def follow(self, event: Mark, tensors: Any = ()) -> None:
        pass

    def capturing(self) -> bool:
        return self._tape is not None

    def capture(self, work: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        """Write down the operations of ``work``, which are done as well; a GPU would only write them down."""
        tape: list[tuple[Any, Any, Any, Any]] = []
        self._tape = tape
        try:
            made = work()
        finally:
            self._tape = None
        return made, lambda: self._replay(tape)

    @torch.no_grad()
    def _replay(self, tape: list[tuple[Any, Any, Any, Any]]) -> None:
        """Do the operations again, on and into the same memory, as one that is asked for."""
        self.asked += 1
        for func, args, kwargs, out in tape:
            again = tree_flatten(func(*args, **kwargs))[0]
            for to, value in zip(tree_flatten(out)[0], again, strict=True):
                if isinstance(to, Tensor) and to.data_ptr() != value.data_ptr():
                    to.copy_(value)

    @property
    def device(self) -> torch.device:
        return DEVICE

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.call(func, args, kwargs or {})

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        given = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        if DEVICE in {t.device for t in given if not isinstance(t, Elsewhere)} and not any(
            isinstance(t, Elsewhere) for t in given
        ):
            return func(*args, **kwargs)  # of tensors that are nowhere, as specifications are made with
        asked = kwargs.get("device")
        there = asked is not None and torch.device(asked) == DEVICE
        elsewhere = any(isinstance(t, Elsewhere) for t in given)
        if kwargs.get("pin_memory"):
            made = func(*args, **{**kwargs, "pin_memory": False})
            self._pinned[made.untyped_storage().data_ptr()] = made
            return made
        self._notice(func, args, kwargs, there, elsewhere)
        if (
            func is OPS.copy_.default
            and _is_there(args[1])
            and self._is_pinned(args[0])
            and _non_blocking(args, kwargs)
        ):
            self._coming.append((args[0], args[1].held.clone()))
            return args[0].fill_(GARBAGE)
        self.asked += elsewhere and func is not OPS.detach.default
        held = tree_map(_here, args), tree_map(_here, kwargs)
        out = func(*held[0], **held[1])
        if self._tape is not None and (there or elsewhere):
            self._tape.append((func, *held, out))
        if not (there or (elsewhere and asked is None)) or (func is OPS.copy_.default and not _is_there(args[0])):
            known = {id(_here(t)): t for t in given}
            return tree_map(lambda x: known.get(id(x), x), out)
        known = {id(t.held): t for t in given if isinstance(t, Elsewhere)}
        return tree_map(lambda x: _named(known, x), out)

    def _notice(self, func: Any, args: Any, kwargs: Any, there: bool, elsewhere: bool) -> None:
        if func is OPS.copy_.default:
            self._copy(args[1], _is_there(args[0]), args[0], _non_blocking(args, kwargs))
        elif func is OPS._foreach_copy_.default:
            for to, source in zip(args[0], args[1], strict=True):
                self._copy(source, _is_there(to), to, _non_blocking(args, kwargs))
        elif func is OPS._to_copy.default:
            # PyTorch takes pinned memory for what comes back without blocking
            self._copy(
                args[0], there if "device" in kwargs else _is_there(args[0]), None, bool(kwargs.get("non_blocking"))
            )
        elif not elsewhere:
            return
        elif func in WAITING:
            self.wait(func.__name__)
        elif func in (OPS.index.Tensor, OPS.index_put_.default, OPS.index_put.default):
            by_mask = any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
            filled = func is not OPS.index.Tensor and args[2].numel() == 1
            if by_mask and not filled:
                self.wait(f"{func.__name__} by a mask")
        elif func in (OPS.tensor_split.tensor_indices_or_sections,):
            self.wait(func.__name__)

    def _is_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._pinned

    def _copy(self, source: Tensor, there: bool, to: Tensor | None, non_blocking: bool) -> None:
        if _is_there(source) == there:
            return
        self.copied += source.numel() * source.element_size()
        host = to if _is_there(source) else source
        pinned = host is None or self._is_pinned(host)
        if not (non_blocking and pinned):
            self.wait(f"copy {'to' if there else 'from'} the device, {'' if pinned else 'not '}pinned")


def _named(known: dict[int, Any], x: Any) -> Any:
    """The tensor that holds ``x``, which may be one that the operation changed in place."""
    if not isinstance(x, Tensor):
        return x
    return known[id(x)] if id(x) in known else Elsewhere(x)


def _non_blocking(args: Any, kwargs: Any) -> bool:
    return bool(kwargs.get("non_blocking") or args[2:3] == (True,))


def _is_there(tensor: Any) -> bool:
    return isinstance(tensor, Elsewhere)


def _here(x: Any) -> Any:
    if isinstance(x, Elsewhere):
        return x.held
    return torch.device("cpu") if isinstance(x, torch.device) else x


@contextmanager
def stand_in() -> Iterator[StandIn]:
    """The device for as long as the context lasts."""
    enabled = torch.is_autocast_enabled
    move, load = torch.nn.Module.to, torch.nn.Module.load_state_dict

    def moved(module: Any, *args: Any, **kwargs: Any) -> Any:
        torch.__future__.set_swap_module_params_on_conversion(True)  # parameters stay the same objects, as on a GPU
        try:
            return move(module, *args, **kwargs)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)

    def loaded(module: Any, *args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* copying from a non-meta parameter")
            return load(module, *args, **kwargs)

    with (
        StandIn() as device,
        patch("torch.is_autocast_enabled", lambda kind=None: kind != DEVICE.type and enabled(kind)),
        patch("torch.nn.Module.to", moved),
        patch("torch.nn.Module.load_state_dict", loaded),
        patch("shoal.transfer.streams", lambda of: device if of == DEVICE else None),
    ):
        yield device
