"""A state (nested dicts of tensors, arrays and plain values) stored as two files, ``NAME.json`` and
``NAME.safetensors``.

Tensors and arrays are stored in the safetensors file, everything else in the JSON. Neither can contain code. Writing
streams arrays from their memory and hashes them on the way. It allocates nothing of their size and uses no threads, so
that a forked process can do it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.api import ShoalError
from shoal.untrusted import by_name, excerpt, open_bytes, parse_json, read_text

CHUNK = 1 << 24  # bytes written and hashed at a time
MARK = "$"  # a dict with this single key encodes a value that JSON lacks
_CODES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
}  # fmt: skip
_NAMES = {code: name for name, code in _CODES.items()}


@dataclass
class PackedState:
    """A state that is ready to be written. arrays: name -> (dtype, shape, its bytes, flat)."""

    tree: Any
    arrays: dict[str, tuple[str, tuple[int, ...], np.ndarray]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(data.nbytes for _, _, data in self.arrays.values())


@dataclass(frozen=True)
class FileDigest:
    """A file as listed in the manifest."""

    size: int
    sha256: str


# ---------------------------------------------------------------------------------------- packing
def pack(state: Any) -> PackedState:
    """Return ``state`` with its arrays separated. CPU tensors and contiguous arrays are not copied. Raises ShoalError
    for values of other types."""
    out = PackedState(None)
    out.tree = _encode(state, "", out)
    return out


def _encode(value: Any, path: str, out: PackedState) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {MARK: "float", "value": repr(value)}
    if isinstance(value, torch.Tensor):
        return _encode_array("tensor", path, *_tensor_bytes(value), out)
    if isinstance(value, np.generic):
        return _encode(value.item(), path, out)
    if isinstance(value, np.ndarray):
        if value.dtype.name not in _CODES:
            raise ShoalError(f"a state cannot hold arrays of {value.dtype}: '{path}'")
        flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        return _encode_array("array", path, value.dtype.name, value.shape, flat, out)
    if isinstance(value, (list, tuple)):
        items = [_encode(v, f"{path}/{i}", out) for i, v in enumerate(value)]
        return items if isinstance(value, list) else {MARK: "tuple", "items": items}
    if isinstance(value, Mapping):
        if all(isinstance(k, str) for k in value) and MARK not in value:
            return {k: _encode(v, f"{path}/{k}", out) for k, v in value.items()}
        pairs = [[_encode(k, path, out), _encode(v, f"{path}/{k}", out)] for k, v in value.items()]
        return {MARK: "dict", "items": pairs}
    raise ShoalError(f"a state holds numbers, strings, arrays and tensors; '{path}' is a {type(value).__name__}")


def _tensor_bytes(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], np.ndarray]:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), flat.view(torch.uint8).numpy()


def _encode_array(kind: str, path: str, dtype: str, shape: tuple[int, ...], data: np.ndarray, out: PackedState) -> Any:
    name = path.removeprefix("/") or "state"
    while name in out.arrays:
        name += "+"
    out.arrays[name] = (dtype, tuple(shape), data)
    return {MARK: kind, "name": name}


def _decode(value: Any, arrays: Arrays | _Loaded) -> Any:
    if isinstance(value, list):
        return [_decode(v, arrays) for v in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(MARK)
    if kind is None:
        return {k: _decode(v, arrays) for k, v in value.items()}
    if kind == "float":
        return float(value["value"])
    if kind == "tuple":
        return tuple(_decode(v, arrays) for v in value["items"])
    if kind == "dict":
        return {_decode(k, arrays): _decode(v, arrays) for k, v in value["items"]}
    return arrays.get(value["name"], kind == "tensor")


# ------------------------------------------------------------------------------------------ bytes
def to_bytes(state: Any) -> bytes:
    """Return ``state`` as one message: the length of its JSON, the JSON, and its arrays, if any."""
    packed = pack(state)
    text = json.dumps(packed.tree, allow_nan=False).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *(_safetensors(packed) if packed.arrays else ())])


def from_bytes(data: bytes) -> Any:
    """Return the state that ``to_bytes`` encoded. Raises ShoalError for any other bytes."""
    from safetensors import SafetensorError

    end = 8 + int.from_bytes(data[:8], "little")
    try:
        if len(data) < end:
            raise ValueError(f"{end:,} bytes were expected, {len(data):,} came")
        return _decode(parse_json(data[8:end].decode()), _Loaded(data[end:]))
    except (ValueError, TypeError, KeyError, AttributeError, SafetensorError) as error:
        raise ShoalError(f"a message is damaged, or from another version of Shoal: {excerpt(error)}") from None


# ------------------------------------------------------------------------------------------ files
def write(packed: PackedState, folder: Path, name: str) -> dict[str, FileDigest]:
    """Write ``name.json`` and ``name.safetensors`` into ``folder`` and return their sizes and hashes. Call ``sync`` to
    force them to disk."""
    out = {}
    if packed.arrays:
        out[f"{name}.safetensors"] = _write_file(folder / f"{name}.safetensors", _safetensors(packed))
    text = json.dumps(packed.tree, allow_nan=False).encode()
    out[f"{name}.json"] = _write_file(folder / f"{name}.json", iter((text,)))
    return out


def _safetensors(packed: PackedState) -> Iterator[Any]:
    """Yield the bytes of the file: length of the header, header, arrays. Arrays with large items come first, so that
    all are aligned."""
    order = sorted(packed.arrays.items(), key=lambda item: -np.dtype(_bits(item[1][0])).itemsize)
    header, at = {}, 0
    for name, (dtype, shape, data) in order:
        header[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [at, at + data.nbytes]}
        at += data.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, (_, _, data) in order:
        for start in range(0, data.nbytes, CHUNK):
            yield data[start : start + CHUNK].data


def _bits(dtype: str) -> str:
    return "uint16" if dtype == "bfloat16" else dtype


def _write_file(path: Path, chunks: Iterator[Any]) -> FileDigest:
    digest, size = hashlib.sha256(), 0
    path.unlink(missing_ok=True)  # another user may have put a link there
    with open(path, "xb") as file:
        for chunk in chunks:
            digest.update(chunk)
            file.write(chunk)
            size += len(chunk)
    return FileDigest(size, digest.hexdigest())


def sync(paths: Iterable[Path]) -> None:
    """Force files and folders to disk. Writing starts for all of them before the first is waited for."""
    descriptors: list[int] = []
    with contextlib.ExitStack() as stack:
        for path in paths:
            descriptors.append(os.open(path, os.O_RDONLY))
            stack.callback(os.close, descriptors[-1])
            with contextlib.suppress(OSError, AttributeError):  # a hint that not every system supports
                os.posix_fadvise(descriptors[-1], 0, 0, os.POSIX_FADV_DONTNEED)  # starts writing without waiting
        for descriptor in descriptors:
            os.fsync(descriptor)


def hash_file(path: Path) -> FileDigest:
    """Return size and hash of an existing file. Raises as ``untrusted.open_bytes``."""
    digest = hashlib.sha256()
    with open_bytes(path) as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
        return FileDigest(file.tell(), digest.hexdigest())


def read(folder: Path, name: str) -> Any:
    """Return the state that was written. Its arrays and tensors are not shared with anything."""
    tree = parse_json(read_text(folder / f"{name}.json"))
    return _decode(tree, Arrays(folder / f"{name}.safetensors"))


class _Loaded:
    """The arrays of a message, decoded on first use."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def get(self, name: str, tensor: bool) -> Any:
        part = self._parts[name]
        dtype = _NAMES[part["dtype"]]
        flat = np.frombuffer(part["data"], _bits(dtype) if tensor else dtype).copy()  # a copy, owned by the caller
        shaped = flat.reshape(part["shape"])
        return torch.from_numpy(shaped).view(getattr(torch, dtype)) if tensor else shaped

    @cached_property
    def _parts(self) -> dict[str, Any]:
        from safetensors import deserialize

        return dict(deserialize(self._data))  # type: ignore[no-untyped-call]


class Arrays:
    """The arrays of a safetensors file. The file may be missing if the state has no arrays."""

    def __init__(self, path: Path) -> None:
        from safetensors import safe_open

        self._path = path
        kinds = ("np", "pt") if path.is_file() else ()
        self._files: list[Any] = []
        for kind in kinds:
            with by_name(path) as name:
                self._files.append(safe_open(name, kind))

    def get(self, name: str, tensor: bool) -> Any:
        if not self._files:
            raise ShoalError(f"'{self._path}' is missing")
        return self._files[tensor].get_tensor(name)
