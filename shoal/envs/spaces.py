"""Conversion between Gymnasium spaces and Shoal's flat observations and actions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gymnasium import spaces as gs
from numpy.typing import ArrayLike

from shoal.api import MASK, Action, Arrays, Observation, UsageError
from shoal.words import counted

from . import composite
from .action_box import ActionBox
from .types import Nested, Space

Path = tuple[str | int, ...]
Convert = Callable[[Nested], np.ndarray]
Leaf = tuple[str, Path, Observation, Convert]  # flat name, path in the nested batch, spec, conversion
CHANNELS = (1, 3, 4)
LARGE = 36  # pixels: anything at least as high and wide is an image; the smallest for published networks
LARGEST = float(np.finfo(np.float32).max)
NOT_FINITE = "not finite, or too large for float32"
BYTE = 255  # integers up to this size are scaled to at most 1


class ObservationCodec:
    """Flattens a batch of a space's observations.

    Images become uint8 ``[C, H, W]`` (``[H, W, C]`` is transposed if only its last axis can be channels, ``[H, W]``
    gains an axis, stacks ``[S, H, W, C]`` and ``[S, C, H, W]`` are merged), integers int64 ``one_hot``, everything else
    float32 of its own shape; integers in a Box of up to a byte are divided by the largest magnitude that its bounds
    allow. An image is a Box of uint8 with 2 to 4 dimensions that spans 0 to 255 or is at least 36 pixels high and wide
    (other bounds are spread over 0 to 255). A smaller one with other bounds is a board, whose numbers are passed to the
    MLP.

    symbolic: leaves whose small integers are codes rather than intensities, with the number of codes along the last
    axis. mask: the spec of the leaf ``MASK``.
    """

    def __init__(
        self, space: Space, env: str, symbolic: dict[str, tuple[int, ...]] | None = None,
        mask: Observation | None = None,
    ):  # fmt: skip
        self._leaves = list(_leaves(space, "obs", (), env, symbolic or {}))
        if mask is not None:
            self._leaves = [(n, p, mask, _mask) if n == MASK else (n, p, o, c) for n, p, o, c in self._leaves]
        else:  # any other observation of this name is no mask
            self._leaves = [(f"{n}_" if n == MASK else n, p, o, c) for n, p, o, c in self._leaves]
        names = [name for name, *_ in self._leaves]
        if twice := [name for name in names if names.count(name) > 1]:
            raise UsageError(f"environment {env!r} has two observations that flatten to '{twice[0]}'")
        if not self._leaves:
            raise UsageError(f"environment {env!r} has an observation space without any array: {space}")
        self.observations = {name: observation for name, _, observation, _ in self._leaves}
        self.paths = {name: path for name, path, _, _ in self._leaves}
        self._plain = len(self._leaves) == 1 and not self._leaves[0][1]

    def __call__(self, batch: Nested) -> Arrays:
        if self._plain:
            name, _, _, convert = self._leaves[0]
            return {name: convert(batch)}
        out: Arrays = {}
        for name, path, _, convert in self._leaves:
            value = batch
            for key in path:
                value = value[key]
            out[name] = convert(value)
        return out


def _leaves(space: Space, name: str, path: Path, env: str, symbolic: dict[str, tuple[int, ...]]) -> list[Leaf]:
    if isinstance(space, gs.Dict):
        parts: list[tuple[str | int, Space]] = list(space.spaces.items())
    elif isinstance(space, gs.Tuple):
        parts = list(enumerate(space.spaces))
    else:
        return [(name, path, *_leaf(space, name, env, symbolic))]
    return [leaf for key, sub in parts for leaf in _leaves(sub, f"{name}/{key}", (*path, key), env, symbolic)]


def _leaf(space: Space, name: str, env: str, symbolic: dict[str, tuple[int, ...]]) -> tuple[Observation, Convert]:
    if 0 in (shape := tuple(int(n) for n in space.shape or ())):
        raise UsageError(f"environment {env!r} has an observation '{name}' of shape {shape}: it holds no number")
    if isinstance(space, gs.Box):
        if name in symbolic:
            sizes = symbolic[name] * int(np.prod(shape[:-1]))
            return Observation((len(sizes),), "int64", "one_hot", sizes), lambda x: _codes(x)
        if space.dtype == np.uint8 and len(shape) in (2, 3, 4):
            low, high = int(space.low.min()), int(space.high.max())
            image, turn = _image(shape)
            if (low, high) == (0, BYTE):
                return image, turn
            if min(image.shape[1:]) >= LARGE and low < high:
                spread = _spread(low, high)
                return image, lambda x: spread[turn(x)]
        scale = integer_scale(space)
        if not shape:
            return Observation((1,), "float32"), lambda x: float32(x).reshape(-1, 1) / (scale or 1)
        if scale is None:
            return Observation(shape, "float32"), float32
        return Observation(shape, "float32"), lambda x: float32(x) / scale
    if isinstance(space, gs.Discrete):
        start = int(space.start)
        return (
            Observation((1,), "int64", "one_hot", (int(space.n),)),
            lambda x: (np.asarray(x, np.int64) - start)[:, None],
        )
    if isinstance(space, gs.MultiDiscrete):
        sizes = tuple(int(n) for n in space.nvec.ravel())
        first = np.asarray(space.start, np.int64).ravel()
        return Observation((len(sizes),), "int64", "one_hot", sizes), lambda x: _codes(x) - first
    if isinstance(space, gs.MultiBinary):
        sizes = (2,) * int(np.prod(space.shape))
        return Observation((len(sizes),), "int64", "one_hot", sizes), _codes
    raise UsageError(
        f"environment {env!r} has the observation {name!r} of type {type(space).__name__}, but only Box, Discrete, "
        "MultiDiscrete, MultiBinary, and Dict and Tuple of these are supported"
    )


def float32(values: ArrayLike) -> np.ndarray:
    """Return ``values`` as float32. Values that are too large become infinite without a warning."""
    array = np.asarray(values)
    if array.dtype == np.float32:
        return array
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def finite(array: np.ndarray) -> np.ndarray:
    """Return, elementwise, whether numbers are finite as float32."""
    found: np.ndarray = np.abs(array) <= LARGEST
    return found


def integer_scale(space: gs.Box) -> np.ndarray | None:
    """Return the divisor of the numbers of a Box of integers, float32 of its shape: the largest magnitude within the
    bounds. None if it would change nothing, or if numbers may be larger than ``BYTE``."""
    if not np.issubdtype(space.dtype, np.integer):
        return None
    largest = np.maximum(abs(space.low.astype(np.float64)), abs(space.high.astype(np.float64)))
    if largest.max() > BYTE or (largest <= 1).all():
        return None
    return np.maximum(largest, 1).astype(np.float32)


def _spread(low: int, high: int) -> np.ndarray:
    """Return a table that spreads the bytes ``low`` to ``high`` over 0 to 255."""
    scaled = (np.arange(BYTE + 1) - low) * (BYTE / (high - low))
    spread: np.ndarray = np.clip(scaled.round(), 0, BYTE).astype(np.uint8)
    return spread


def _mask(x: ArrayLike) -> np.ndarray:
    return np.array(x).astype(np.bool_)  # a copy, because masks of ended episodes are changed


def _codes(x: ArrayLike) -> np.ndarray:
    array = np.asarray(x, np.int64)
    return array.reshape(len(array), -1)


def _image(shape: tuple[int, ...]) -> tuple[Observation, Convert]:
    if len(shape) == 2:
        return Observation((1, *shape), "uint8", "image"), lambda x: np.asarray(x)[:, None]
    if len(shape) == 4:
        s, h, w, c = shape
        if h in CHANNELS and c not in CHANNELS:
            return Observation((s * h, w, c), "uint8", "image"), lambda x: np.asarray(x).reshape(len(x), s * h, w, c)
        return (
            Observation((s * c, h, w), "uint8", "image"),
            lambda x: np.asarray(x).transpose(0, 1, 4, 2, 3).reshape(len(x), s * c, h, w),
        )
    if shape[-1] in CHANNELS and shape[0] not in CHANNELS:
        h, w, c = shape
        return Observation((c, h, w), "uint8", "image"), lambda x: np.asarray(x).transpose(0, 3, 1, 2)
    return Observation(shape, "uint8", "image"), np.asarray


def batch_of(space: Space, obs: Nested, num: int | None = None, name: str = "obs") -> Nested:
    """Return one observation of ``space`` as a batch, or check a batch of ``num``. Raises UsageError if a part is
    missing or has another shape."""
    if isinstance(space, gs.Dict):
        if not isinstance(obs, dict) or not space.spaces.keys() <= obs.keys():
            found = sorted(obs) if isinstance(obs, dict) else type(obs).__name__
            raise UsageError(f"'{name}' should have the parts {list(space.spaces)}, found {found}")
        return {key: batch_of(sub, obs[key], num, f"{name}/{key}") for key, sub in space.spaces.items()}
    if isinstance(space, gs.Tuple):
        if not isinstance(obs, (tuple, list)) or len(obs) != len(space.spaces):
            raise UsageError(
                f"'{name}' should be a tuple of {counted(len(space.spaces), 'part')}, found {type(obs).__name__}"
            )
        return tuple(batch_of(sub, obs[i], num, f"{name}/{i}") for i, sub in enumerate(space.spaces))
    shape = tuple(space.shape or ()) if num is None else (num, *(space.shape or ()))
    try:
        array = np.asarray(obs)
    except ValueError:  # the parts have different shapes, such as the pair that reset() returns
        raise UsageError(
            f"'{name}' should have shape {shape}, found a {type(obs).__name__} of {counted(len(obs), 'part')} (of what "
            "reset() and step() return, the observation alone is expected)"
        ) from None
    if array.shape != shape:
        several = num is None and array.ndim > 0 and array.shape[1:] == shape
        batch = f": after policy.reset({len(array)}), so many are taken together" if several else ""
        raise UsageError(f"'{name}' should have shape {shape}, found {array.shape}{batch}")
    if wrong := _outside(space, array):
        raise UsageError(f"'{name}' should be of {space}, found {wrong}")
    return array[None] if num is None else array


def _outside(space: Space, array: np.ndarray) -> str:
    """Return a description of values outside the space in an observation, or a batch of them, of the right shape; "" if
    there are none. Bounds of floats are not checked, as many environments violate theirs."""
    kinds = "biuf" if isinstance(space, gs.Box) and np.issubdtype(space.dtype, np.floating) else "biu"
    if array.dtype.kind not in kinds:
        return f"values of dtype {array.dtype}"
    if kinds == "biuf":
        return "" if finite(array).all() else f"a value that is {NOT_FINITE}"
    if isinstance(space, gs.Box):
        low, high = space.low, space.high
    elif isinstance(space, gs.MultiBinary):
        low, high = np.zeros(space.shape, int), np.ones(space.shape, int)
    else:
        assert isinstance(space, (gs.Discrete, gs.MultiDiscrete))
        low = np.asarray(space.start)
        high = low + (space.n if isinstance(space, gs.Discrete) else space.nvec) - 1
    wrong = (array < low) | (array > high)
    return f"the value {array[wrong].ravel()[0]}" if wrong.any() else ""


class ActionCodec:
    """Converts Shoal's actions to those of the environment. leaves: its parts, or the whole space as one."""

    def __init__(self, space: Space, env: str):
        self._convert: composite.Convert | None
        if composite.parts(space):
            self.action, self.leaves, self._convert = composite.flattened(space, env, _action)
        else:
            self.action, self._convert = _action(space, env)
            numbers = len(self.action.sizes) + len(self.action.low)
            self.leaves = [composite.Leaf((), space, self.action, np.arange(numbers))]

    def __call__(self, action: np.ndarray) -> Nested:
        return action.copy() if self._convert is None else self._convert(action)  # the environment may write into them


def _action(space: Space, env: str) -> tuple[Action, composite.Convert | None]:
    if 0 in (space.shape or ()):
        raise UsageError(
            f"environment {env!r} has an action {space} of shape {space.shape}: there is nothing to choose"
        )
    if isinstance(space, gs.Discrete):
        start, kind = int(space.start), space.dtype
        action = Action("discrete", (int(space.n),))
        if start == 0 and kind == np.int64:
            return action, None
        return action, lambda a: (a + start).astype(kind)
    if isinstance(space, gs.MultiDiscrete):
        nvec, shape, kind = space.nvec, space.shape, space.dtype
        first = np.asarray(space.start).ravel()
        return (
            Action("multi_discrete", tuple(int(n) for n in nvec.ravel())),
            lambda a: (a + first).astype(kind).reshape(len(a), *shape),
        )
    if isinstance(space, gs.MultiBinary):
        shape = space.shape
        return (
            Action("multi_discrete", (2,) * int(np.prod(shape))),
            lambda a: a.astype(np.int8).reshape(len(a), *shape),
        )
    if isinstance(space, gs.Box) and np.issubdtype(space.dtype, np.floating):
        box = ActionBox(space)
        return Action("continuous", low=tuple(box.low.tolist()), high=tuple(box.high.tolist())), box.to_environment
    raise UsageError(
        f"environment {env!r} has the action space {space}, but only Discrete, MultiDiscrete, MultiBinary, Box of "
        "floats, and Dict and Tuple of these are supported"
    )
