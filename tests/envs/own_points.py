"""An environment of the user's own that lives on a device, in PyTorch or, by DLPack, in NumPy."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from shoal.building import Action, EnvSpec, Observation

SPEC = EnvSpec(
    "Points", {"obs/place": Observation((2,), "float32"), "obs/age": Observation((1,), "int64", "one_hot", (8,))},
    Action("continuous", low=(-1.0, -1.0), high=(1.0, 1.0)), autoreset="same_step",
)  # fmt: skip


class Points:
    """Points on a plane, each step moved by its action; of 7 steps is an episode. wrong: what it does wrong."""

    spec = SPEC

    def __init__(self, num_envs: int, device: str, wrong: str = "") -> None:
        self.num_envs, self.device, self.wrong = num_envs, device, wrong
        if wrong == "spec":
            self.spec = "points"  # type: ignore[assignment]
        elif wrong == "autoreset":
            self.spec = EnvSpec("Points", SPEC.observations, SPEC.action)
        elif wrong == "step":
            self.step = None  # type: ignore[assignment,method-assign]
        elif wrong == "kind":
            self.spec = EnvSpec(
                "Points", {"obs": Observation((2,), "float64")}, SPEC.action, autoreset="same_step"
            )  # fmt: skip
        elif wrong == "one_hot":
            self.spec = EnvSpec(
                "Points", {"obs": Observation((2,), "int64", "one_hot", (8,))}, SPEC.action, autoreset="same_step"
            )  # fmt: skip
        elif wrong == "mixed":
            mixed = Action("mixed", (2,), (-1.0,), (1.0,))
            self.spec = EnvSpec("Points", SPEC.observations, mixed, autoreset="same_step")
        self.actions: list[Any] = []
        self.rng = torch.Generator(device)

    def starts(self) -> torch.Tensor:
        return torch.rand(self.num_envs, 2, device=self.device, generator=self.rng) * 2 - 1

    def shown(self, place: torch.Tensor, age: torch.Tensor) -> Any:
        age = age[:, None]
        if self.wrong == "names":
            return {"obs": place}
        if self.wrong == "list":
            return {"obs/place": place.tolist(), "obs/age": age}
        if self.wrong == "shape":
            return {"obs/place": place[:, :1], "obs/age": age}
        if self.wrong == "device":
            return {"obs/place": place.to("meta"), "obs/age": age}
        if self.wrong in ("BufferError", "TypeError", "RuntimeError"):
            return {"obs/place": Refusing(getattr(builtins, self.wrong)), "obs/age": age}
        if self.wrong == "type":
            return {"obs/place": place.double(), "obs/age": age}
        return {"obs/place": place, "obs/age": age}

    def reset(self, seed: int) -> Any:
        self.rng.manual_seed(seed)
        self.place, self.age = self.starts(), torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        return self.shown(self.place, self.age)

    def step(self, action: torch.Tensor) -> Any:
        self.actions.append(action)
        moved, age = self.place + 0.2 * action, self.age + 1
        ended = age >= 7
        self.place, self.age = torch.where(ended[:, None], self.starts(), moved), age.masked_fill(ended, 0)
        reward = -moved.abs().sum(1)
        if self.wrong == "four":
            return self.shown(self.place, self.age), reward, ended, ended
        final = self.shown(moved, age.clamp(max=7))
        return self.shown(self.place, self.age), reward, torch.zeros_like(ended), ended, final


class Refusing:
    """An array of a library that cannot give it."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __dlpack__(self, **_: Any) -> Any:
        raise self.error("it is elsewhere")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class Counted(Points):
    """The same, whose episodes were all ended by the task."""

    def step(self, action: torch.Tensor) -> Any:
        obs, reward, terminated, truncated, final = super().step(action)
        return obs, reward, truncated, terminated, final


class Vector(VectorEnv):
    """Of Gymnasium's kind, though it takes both."""

    def __init__(self, num_envs: int, device: str) -> None: ...


class OnlyDevice:
    def __init__(self, device: str) -> None: ...


class OnlyNumber:
    def __init__(self, num_envs: int) -> None: ...


class Saving(Points):
    """The same, which saves its state."""

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "age": self.age, "rng": self.rng.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place, self.age = state["place"].to(self.device), state["age"].to(self.device)
        self.rng.set_state(state["rng"].cpu())


class Elsewhere(Points):
    """The same, whose arrays are NumPy's."""

    def shown(self, place: torch.Tensor, age: torch.Tensor) -> Any:
        return {"obs/place": place.numpy(), "obs/age": age[:, None].numpy()}

    def step(self, action: torch.Tensor) -> Any:
        obs, *numbers, final = super().step(torch.from_numpy(np.from_dlpack(action)))
        return (obs, *(x.numpy() for x in numbers), final)
