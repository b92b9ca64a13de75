"""CartPole in PyTorch: thousands of copies stepped together on the learner's device.

Barto, Sutton and Anderson 1983, "Neuronlike Adaptive Elements That Can Solve Difficult Learning Control Problems".
Constants, Euler steps and initial states are those of Gymnasium's ``CartPole-v1``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from shoal.api import Action, EnvSpec, Observation, State, Tensors
from shoal.on_device import DeviceEnvBatch, DeviceStep, go_on_drawing

GRAVITY, CART, POLE, HALF_LENGTH, FORCE, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02  # m/s^2, kg, kg, m, N, s per step
FAR, TILTED = 2.4, 12 * math.pi / 180  # metres from the centre and radians beyond which an episode ends
TOTAL = CART + POLE


class CartPole:
    """A ``DeviceEnvBatch`` with observations ``[E, 4]``: position and velocity of the cart, angle and angular velocity
    of the pole."""

    def __init__(self, num_envs: int, device: torch.device | str = "cpu", max_episode_steps: int = 500) -> None:
        self.num_envs, self.device, self._limit = num_envs, torch.device(device), max_episode_steps
        self.spec = EnvSpec(
            "device:CartPole-v1", {"obs": Observation((4,), "float32")}, Action("discrete", (2,)),
            autoreset="same_step", backend="device",
        )  # fmt: skip
        self._rng = torch.Generator(self.device)
        self.place = torch.zeros(num_envs, 4, dtype=torch.float64, device=self.device)  # float64 as in Gymnasium
        self.steps = torch.zeros(num_envs, dtype=torch.int64, device=self.device)

    def reset(self, seed: int) -> Tensors:
        self._rng.manual_seed(seed)
        self.place, self.steps = self._starts(), torch.zeros_like(self.steps)
        return {"obs": self.place.float()}

    def step(self, action: Tensor) -> DeviceStep:
        """Push each cart to the left (0) or to the right (1). action: int64 ``[E]``."""
        moved = dynamics(self.place, action)
        steps = self.steps + 1
        terminated = (moved[:, 0].abs() > FAR) | (moved[:, 2].abs() > TILTED)
        truncated = ~terminated & (steps >= self._limit)
        ended = terminated | truncated
        self.place = torch.where(ended[:, None], self._starts(), moved)
        self.steps = steps.masked_fill(ended, 0)
        reward = torch.ones(self.num_envs, device=self.device)
        return DeviceStep({"obs": self.place.float()}, reward, terminated, truncated, {"obs": moved.float()})

    def state_dict(self) -> State:
        return {"place": self.place, "steps": self.steps, "rng": self._rng.get_state()}

    def load_state_dict(self, state: State) -> None:
        """Restore the state. Later random numbers are equal only on a device of the same kind; otherwise they are drawn
        anew."""
        self.place, self.steps = state["place"].to(self.device), state["steps"].to(self.device)
        go_on_drawing(self._rng, state["rng"])

    def _starts(self) -> Tensor:
        shape = (self.num_envs, 4)
        return torch.rand(shape, dtype=torch.float64, device=self.device, generator=self._rng) * 0.1 - 0.05


def dynamics(place: Tensor, action: Tensor) -> Tensor:
    """Return the states ``[E, 4]`` of carts and poles one step later (float64 ``[E, 4]``)."""
    x, x_speed, angle, angle_speed = place.unbind(1)
    force = FORCE * (2 * action.double() - 1)
    cos, sin = angle.cos(), angle.sin()
    push = (force + POLE * HALF_LENGTH * angle_speed.square() * sin) / TOTAL
    turn = (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4 / 3 - POLE * cos.square() / TOTAL))
    speed_up = push - POLE * HALF_LENGTH * turn * cos / TOTAL
    moved = (x + SECONDS * x_speed, x_speed + SECONDS * speed_up, angle + SECONDS * angle_speed)
    return torch.stack((*moved, angle_speed + SECONDS * turn), 1)


ON_DEVICE: dict[str, Callable[..., DeviceEnvBatch]] = {"device:CartPole-v1": CartPole}
