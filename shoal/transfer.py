"""Copies between the host and a GPU for which nobody waits longer than needed: through pinned memory, on a stream of
their own. On the CPU there is nothing to copy, and elsewhere than on a GPU each copy is a plain one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from shoal.api import Batch, Tensors, Update

PROBS = "/probs"  # of a batch, on the way among its items
T = TypeVar("T")
ALIGNMENT = 16  # bytes, of each tensor in a buffer of several


class CannotCapture(RuntimeError):
    """What is to be captured in a graph depends on values that are not those of the device."""


class Event(Protocol):
    """A point in a stream's work."""

    def synchronize(self) -> None:
        """Block until the device has come there."""


class Streams:
    """What a GPU works off in order, and a second stream beside it for copies."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._copies: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def beside(self) -> AbstractContextManager[Any]:
        """Work that is asked for inside the context is done beside the rest."""
        return torch.cuda.stream(self._copies)

    def mark(self) -> Event:
        """Return the point that the current stream has been asked to come to."""
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event  # type: ignore[no-any-return]

    def follow(self, event: Any, tensors: Sequence[Tensor] = ()) -> None:
        """Let what is asked of the current stream from now on come after ``event``, which other streams have
        ``tensors`` from: their memory is not used anew before."""
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(stream)

    def capturing(self) -> bool:
        """Return whether the device's work is written down now, and not done."""
        return torch.cuda.is_current_stream_capturing()

    def capture(self, work: Callable[[], T]) -> tuple[T, Callable[[], object]]:
        """Write down what ``work`` asks of the device, without doing it. Returns what ``work`` returns, whose tensors
        have values only once the second result, which does all of it at once, has been called. Raises RuntimeError
        where ``work`` waits for the device."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            made = work()
        return made, graph.replay


@cache
def _of_gpu(device: torch.device) -> Streams:
    return Streams(device)


def streams(device: torch.device) -> Streams | None:
    """Return the streams of a GPU; None for another device."""
    return _of_gpu(device) if device.type == "cuda" else None


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on ``device``, without waiting for what the device has been asked before; itself if
    it is there."""
    if device.type == "cpu" or tensor.device.type != "cpu" or (found := streams(device)) is None:
        return tensor.to(device)
    if found.capturing():  # the copy would be made again and again from memory that has changed its owner
        raise CannotCapture("it sends values of the host to the device")
    here = _pinned(tensor).copy_(tensor)
    there = here.to(device, non_blocking=True)
    if tensor.dtype == torch.bool:  # flags, by which the host decides what it asks of the device
        there.here = here  # type: ignore[attr-defined]
    return there


def on_host(tensor: Tensor) -> Tensor:
    """Return a tensor with these values in the host's memory, not to be written. The host waits for the device unless
    they are flags that it has sent, or a view of such."""
    if tensor.device.type == "cpu":
        return tensor
    base = tensor if tensor._base is None else tensor._base
    here: Tensor | None = getattr(base, "here", None)
    if here is None:
        if (found := streams(tensor.device)) is not None and found.capturing():
            raise CannotCapture("the host reads values of the device")
        return tensor.cpu()
    return here.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


class Upload:
    """Tensors of the host on their way to a device, beside what the device does. They have been read when this is made;
    those that are on the device stay as they are."""

    def __init__(self, tensors: Tensors, device: torch.device) -> None:
        self._streams = streams(device)
        self._arrived: Event | None = None
        if self._streams is None:
            self._tensors = {k: v.to(device) for k, v in tensors.items()}
            return
        with self._streams.beside():
            self._tensors = {k: send(v, device) for k, v in tensors.items()}
            self._arrived = self._streams.mark()
        self._sent = [self._tensors[k] for k, v in tensors.items() if self._tensors[k] is not v]

    def take(self) -> Tensors:
        """Return them on the device, which waits for them before it goes on."""
        if self._streams is not None and self._arrived is not None:
            self._streams.follow(self._arrived, self._sent)
        return self._tensors


def upload(batch: Batch, device: torch.device) -> Callable[[], Batch]:
    """Begin to copy a batch to a device; the result returns it there. The batch itself is no longer read, so that the
    next may take its place."""
    given = batch.items if batch.probs is None else {**batch.items, PROBS: batch.probs}
    sent, keys = Upload(given, device), None if batch.keys is None else batch.keys.clone()

    def take() -> Batch:
        items = dict(sent.take())
        return batch._replace(probs=items.pop(PROBS, None), items=items, keys=keys)

    return take


class Download:
    """Tensors of a device, as they are when this is made, on their way to the host."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        away = [t.device for t in tensors if t.device.type != "cpu"]
        found = streams(away[0]) if away else None
        self._arrived: Event | None = None
        if found is None:
            self._here = [t.detach().cpu() for t in tensors]
            return
        self._here = [_pinned(t).copy_(t.detach(), non_blocking=True) for t in tensors]
        self._arrived = found.mark()

    def take(self) -> list[Tensor]:
        """Block until they have arrived, and return them."""
        if self._arrived is not None:
            self._arrived.synchronize()
            self._arrived = None
        return self._here


def read(
    numbers: Sequence[Tensor], tensors: Sequence[Tensor] = (), meanwhile: Callable[[], object] | None = None
) -> tuple[list[float], list[Tensor]]:
    """Return the values of scalars [] and copies of ``tensors`` that lie on one device, for which the host waits once,
    after ``meanwhile``."""
    coming = Download([torch.stack([n.detach() for n in numbers]), *tensors])
    if meanwhile is not None:
        meanwhile()
    values, *rest = coming.take()
    return values.tolist(), rest


def received(
    loss: Tensor, further: Sequence[Tensor], update: Update, tensors: Sequence[Tensor] = (),
    meanwhile: Callable[[], object] | None = None,
) -> tuple[list[float], Update, list[Tensor]]:  # fmt: skip
    """Return the values of ``loss`` and ``further`` scalars, the update, and ``tensors``, all in the host's memory,
    after one wait for the device."""
    names = [name for name, value in update.metrics.items() if isinstance(value, Tensor)]
    asked = [loss, *further, *(torch.as_tensor(update.metrics[name]) for name in names)]
    priorities = () if update.priorities is None else (update.priorities,)
    values, (*copies,) = read(asked, (*tensors, *priorities), meanwhile)
    known = dict(zip(names, values[len(asked) - len(names) :], strict=True))
    told = Update({**update.metrics, **known}, copies.pop() if priorities else None)
    return values[: len(asked) - len(names)], told, copies


class Mirror:
    """A copy, in the host's memory, of tensors on a GPU that go on changing: ``begin``, and later ``take``."""

    def __init__(self, tensors: Tensors) -> None:
        found = streams(next(iter(tensors.values())).device)
        assert found is not None, "a mirror is of tensors on a GPU"
        self._streams, self._arrived = found, None
        nbytes = sum(_room(t) for t in tensors.values())
        self._there = torch.empty(nbytes, dtype=torch.uint8, device=found.device)
        self._here = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        self._copies = list(_views(self._there, tensors).values())
        self._views = _views(self._here, tensors)

    _arrived: Event | None

    @property
    def pending(self) -> bool:
        """Whether a copy was begun that nobody has taken."""
        return self._arrived is not None

    @torch.no_grad()
    def begin(self, tensors: Tensors) -> None:
        """Begin to copy them as they are now. The last copy must have been taken."""
        assert not self.pending, "the last copy has not been taken"
        torch._foreach_copy_(self._copies, list(tensors.values()))
        made = self._streams.mark()
        with self._streams.beside():
            self._streams.follow(made)
            self._here.copy_(self._there, non_blocking=True)
            self._arrived = self._streams.mark()

    def take(self) -> Tensors:
        """Block until the copy is complete, and return it; the next ``begin`` overwrites it."""
        if self._arrived is not None:
            self._arrived.synchronize()
            self._arrived = None
        return self._views


def _pinned(like: Tensor) -> Tensor:
    """Memory of the host from and to which a GPU copies by itself; PyTorch keeps it until such a copy is complete."""
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)


def _room(tensor: Tensor) -> int:
    return -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT


def _views(buffer: Tensor, tensors: Tensors) -> Tensors:
    """Parts of a buffer of bytes in the types and shapes of ``tensors``."""
    out, at = {}, 0
    for name, t in tensors.items():
        part = buffer[at : at + t.numel() * t.element_size()]
        out[name] = part.view(t.dtype).view(t.shape)
        at += _room(t)
    return out
