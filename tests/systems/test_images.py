"""Every system learns from images and acts on them, also where convolutions are in bfloat16, as they are by default on
a processor that multiplies it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from helpers import config, learning_role, run, spy

from shoal.systems import SYSTEMS, load


class Pictures(gymnasium.Env[np.ndarray, np.ndarray]):
    """Noise of a ``shape`` that wants an action near 0."""

    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, shape: tuple[int, ...] = (20, 20, 1)) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 20
        return self._picture(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return self._picture(), -float(np.square(action).sum()), False, self.left == 0, {}

    def _picture(self) -> np.ndarray:
        return self.np_random.integers(0, 256, self.observation_space.shape, np.uint8)


BOXES = ("apex-dpg", "d4pg", "qt-opt")
CASES: list[tuple[str, dict[str, Any]]] = [
    *((system, dict(env=f"{__name__}:Pictures" if system in BOXES else "toy:catch")) for system in SYSTEMS),
    *((system, dict(env="toy:catch", dueling=True)) for system in ("dqn", "rainbow", "r2d2", "gorila")),
    ("r2d2", dict(env="toy:catch", dueling=True, core="none")),
    *((system, dict(env="toy:catch", core="lstm", core_size=8)) for system in ("impala", "recurrent-ppo", "a3c")),
    ("d4pg", dict(env=f"{__name__}:Pictures", prioritised=True, critic="mixture")),
    ("impala", dict(env="toy:catch", torso="impala-deep")),
    ("d4pg", dict(env=f"{__name__}:Pictures", env_kwargs={"shape": (84, 84, 3)}, batch=4, replay=64)),
    ("apex-dpg", dict(env=f"{__name__}:Pictures", env_kwargs={"shape": (4, 84, 84, 1)}, batch=4, replay=64)),
]


def precise() -> list[Any]:
    """Every case in both precisions, es in fp32, which it computes in alone. The short tier takes them in turn: a
    system of several cases meets both there, and each meets images once more, in what auto means, in test_matrix."""
    found, turn = [], {system: i for i, system in enumerate(SYSTEMS)}
    for system, fields in CASES:
        turn[system] += 1
        for j, precision in enumerate(("auto",) if system == "es" else ("fp32", "bf16")):
            short = system == "es" or j == turn[system] % 2
            found.append(pytest.param(system, fields, precision, marks=() if short else pytest.mark.long))
    return found


@pytest.mark.parametrize(
    "system, fields, precision", precise(), ids=lambda x: x if isinstance(x, str) else "-".join(map(str, x))
)
def test_images_are_learned_from(system: str, fields: dict[str, Any], precision: str) -> None:
    if system == "r2d3":
        fields = {**fields, "demonstrations": ""}
    if system in BOXES:
        fields = {**fields, "samples_per_insert": 1.0}
    if system == "d4pg":
        fields = {**fields, "v_min": -40.0, "v_max": 0.0}
    cfg = config(system, precision=precision, **fields)
    program, before = load(system).program(cfg), {}

    def keep(role: Any) -> None:
        if role.ctx.index == 0:
            before.update({k: v.clone() for k, v in role.learner.params().items()})

    spy(program, learning_role(system), keep)
    report = run(program, 3)
    assert report.updates >= 3
    params = report.params[program.policy_channel().name]
    agent = load(system).agent(cfg)
    agent.load(params, 1)
    seen = {name: np.zeros((2, *leaf.shape), leaf.dtype) for name, leaf in cfg.env_spec().observations.items()}
    act = agent.act(seen, np.ones(2, bool), agent.initial_state(2))
    assert len(act.action) == 2 and np.isfinite(act.action).all()
    assert all(torch.isfinite(p).all() for p in params.values() if p.is_floating_point())
    assert any(not torch.equal(before[k], v) for k, v in params.items() if k in before), "an update counts"
