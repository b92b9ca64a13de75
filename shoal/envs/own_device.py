"""User-defined environments on a device: their arrays, from whatever library, are converted to PyTorch tensors and
checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.utils.dlpack
from gymnasium.vector import VectorEnv
from torch import Tensor

from shoal.api import EnvSpec, State, Tensors, UsageError
from shoal.on_device import DeviceStep

from .advice import constructing

PARTS = ("observations", "rewards", "terminated", "truncated", "last observations")  # the parts of a step's result
KINDS = {"vector": "float32", "image": "uint8", "one_hot": "int64", "mask": "bool"}


def on_any_device(factory: object) -> bool:
    """Return True if ``factory`` is a class that takes a device for its environments and is no Gymnasium vector
    environment."""
    if not inspect.isclass(factory) or issubclass(factory, VectorEnv):
        return False
    try:
        names = inspect.signature(factory).parameters
    except ValueError:  # not written in Python
        return False
    return "num_envs" in names and "device" in names


class OwnDeviceEnvs:
    """A ``DeviceEnvBatch`` of the environments that ``factory(num_envs=, device=, **given)`` makes. Arrays of other
    libraries are converted by DLPack without a copy. Raises UsageError for arrays whose shape or type differs from
    ``spec``."""

    def __init__(
        self, env: str, factory: Callable[..., Any], num_envs: int, device: torch.device | str, **given: Any
    ) -> None:  # fmt: skip
        self._name, self.num_envs, self.device = env, num_envs, torch.device(device)
        with constructing(env):
            self.env = factory(num_envs=num_envs, device=str(device), **given)
        self.spec = self._described()
        self._bounds = [torch.tensor(side, device=device) for side in (self.spec.action.low, self.spec.action.high)]

    def reset(self, seed: int) -> Tensors:
        with constructing(self._name):
            found = self.env.reset(seed)
        return self._observations(found, "reset")

    def step(self, action: Tensor) -> DeviceStep:
        """Step with actions ``[E, ...]``. Continuous actions are clipped to their bounds."""
        low, high = self._bounds
        found = self.env.step(action if self.spec.action.kind != "continuous" else action.clamp(low, high))
        if not isinstance(found, tuple) or len(found) != len(PARTS):
            raise self._wrong(f"its step returned {_words(found)}, expected a tuple of {', '.join(PARTS)}")
        obs, reward, terminated, truncated, final = found
        return DeviceStep(
            self._observations(obs, "step"),
            self._tensor(reward, "rewards", (), torch.float32),
            self._tensor(terminated, "terminated", (), torch.bool),
            self._tensor(truncated, "truncated", (), torch.bool),
            self._observations(final, "last observations"),
        )

    def state_dict(self) -> State:
        """Return the environments' own state, or {} if they have none; a resumed run then begins new episodes."""
        return dict(self.env.state_dict()) if hasattr(self.env, "state_dict") else {}

    def load_state_dict(self, state: State) -> None:
        self.env.load_state_dict(state)

    def _described(self) -> EnvSpec:
        found = getattr(self.env, "spec", None)
        if not isinstance(found, EnvSpec):
            raise self._wrong(
                "it takes num_envs and device, so that it needs an attribute 'spec' of the type "
                f"shoal.building.EnvSpec, and has {_words(found)}"
            )
        if found.autoreset != "same_step":
            raise self._wrong(f"its spec says autoreset='{found.autoreset}', expected 'same_step'")
        for name, leaf in found.observations.items():
            if leaf.dtype != KINDS[leaf.kind]:
                raise self._wrong(f"'{name}' of its spec is {leaf.kind} of {leaf.dtype}, expected {KINDS[leaf.kind]}")
            if leaf.kind == "one_hot" and leaf.shape != (len(leaf.size),):
                raise self._wrong(
                    f"'{name}' of its spec has the shape {list(leaf.shape)}, expected [{len(leaf.size)}]: an integer "
                    "for each number in its size"
                )
        if found.action.kind == "mixed":
            raise self._wrong("its actions are mixed, expected discrete, multi_discrete or continuous ones")
        lacking = [name for name in ("reset", "step") if not callable(getattr(self.env, name, None))]
        if lacking:
            raise self._wrong(f"it has no method '{lacking[0]}'")
        return found

    def _observations(self, found: Any, where: str) -> Tensors:
        leaves = self.spec.observations
        given = found if isinstance(found, Mapping) else {next(iter(leaves)): found}
        if given.keys() != leaves.keys():
            raise self._wrong(f"{where}: found observations {sorted(given)}, expected {sorted(leaves)} as in its spec")
        return {
            name: self._tensor(given[name], f"{where}: '{name}'", leaf.shape, getattr(torch, leaf.dtype))
            for name, leaf in leaves.items()
        }

    def _tensor(self, found: Any, what: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return ``found`` as a tensor [E, *shape]. Raises UsageError if it is none."""
        if not isinstance(found, Tensor):
            if not hasattr(found, "__dlpack__"):
                raise self._wrong(f"{what}: found {_words(found)}, expected a tensor, or an array that has __dlpack__")
            try:
                found = torch.utils.dlpack.from_dlpack(found)
            except (RuntimeError, BufferError, TypeError) as error:  # depends on the other library
                raise self._wrong(f"{what}: PyTorch cannot take {_words(found)}: {error}") from error
        expected = (self.num_envs, *shape)
        if found.shape != expected or found.dtype != dtype or found.device.type != self.device.type:
            raise self._wrong(
                f"{what}: found {_of(found.shape, found.dtype)} on {found.device.type}, expected "
                f"{_of(expected, dtype)} on {self.device.type}"
            )
        tensor: Tensor = found
        return tensor

    def _wrong(self, what: str) -> UsageError:
        return UsageError(f"environment {self._name!r}: {what}")


def _of(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"


def _words(found: object) -> str:
    return "nothing" if found is None else f"a {type(found).__name__}"
