"""An environment of one's own that lives on the learner's device: 256 points that are to go to the middle of a line.

    python examples/own_device_environment.py [STEPS]

Every array is a PyTorch tensor on ``device``. Arrays of JAX, CuPy or Warp would do as well: Shoal takes them by DLPack.
"""

import sys

import torch

import shoal
from shoal.building import Action, EnvSpec, Observation

LIMIT = 20  # steps of an episode


class Points:
    """Copies of one environment, stepped together. Shoal makes them where the learner is."""

    def __init__(self, num_envs: int, device: str) -> None:
        self.num_envs, self.device = num_envs, device
        self.spec = EnvSpec(
            "Points", {"obs": Observation((1,), "float32")}, Action("discrete", (2,)), autoreset="same_step"
        )
        self.rng = torch.Generator(device)

    def starts(self) -> torch.Tensor:
        return torch.rand(self.num_envs, 1, device=self.device, generator=self.rng) * 2 - 1

    def reset(self, seed: int) -> dict[str, torch.Tensor]:
        self.rng.manual_seed(seed)
        self.place, self.steps = self.starts(), torch.zeros(self.num_envs, device=self.device)
        return {"obs": self.place}

    def step(self, action: torch.Tensor) -> tuple:
        """Move each point to the left (0) or to the right (1); an episode that ends begins anew at once."""
        moved = self.place + 0.1 * (2 * action[:, None] - 1)
        self.steps = self.steps + 1
        ended = self.steps >= LIMIT
        self.place = torch.where(ended[:, None], self.starts(), moved)
        self.steps = self.steps.masked_fill(ended, 0)
        reward = -moved[:, 0].abs()
        return {"obs": self.place}, reward, torch.zeros_like(ended), ended, {"obs": moved}


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 400_000
    run = shoal.train(
        "recurrent-ppo", env=f"{__file__}:Points", total_envs=256, unroll=LIMIT, learning_rate=3e-3,
        gamma=0.9, steps=steps,
    )  # fmt: skip
    print("return of 20 episodes:", sum(run.policy().evaluate(20)) / 20, "(by chance -11)")
