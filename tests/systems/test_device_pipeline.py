"""A learner's pipeline on a GPU, shown on a stand-in: what it learns, and how often the host waits for the device."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from helpers import ASYNCHRONOUS, config, learning_role, run, spy
from stand_in import DEVICE, StandIn, stand_in
from test_cuda_learning import SCALED, assert_moved_alike
from test_snapshots import CASES, SEED

from shoal.api import Tensors
from shoal.systems import load

UPDATES = 4
FURTHER: dict[str, tuple[str, dict[str, Any]]] = {
    "recurrent-ppo, normalised": ("recurrent-ppo", dict(normalise_obs=True, normalise_reward=True, target_kl=9.0)),
    "impala, pop-art": ("impala", dict(pop_art=True, normalise_obs=True, env="Pendulum-v1")),
    "impala, images": ("impala", dict(env="toy:catch", torso="impala-shallow", replay=8)),
    "impala, two learners": ("impala", dict(learners=2, actors=2)),
    "apex-dqn, rmsprop": ("apex-dqn", dict(optimiser="rmsprop")),
}
CASES_HERE = {name: case for name, case in {**CASES, **FURTHER}.items() if case[0] not in (*ASYNCHRONOUS, "es")}
# Waits of a step of the role that learns: one for each gradient step, and one to publish (qt-opt: two sets)
WAITS = {
    "qt-opt": 3, "dd-ppo, lstm": 3, "recurrent-ppo": 5, "recurrent-ppo, normalised": 5, "recurrent-ppo, gru": 9,
}  # fmt: skip


def learned(case: str, device: str, waits: list[list[str]], stand: StandIn | None = None) -> tuple[Tensors, Tensors]:
    """The learner's parameters before and after a serial run; ``waits``: of each step of the role that learns."""
    system, fields = CASES_HERE[case]
    cfg = config(system, **{"device": device, "precision": "fp32", "steps": 20_000, **SCALED.get(system, {}), **fields})
    program, before = load(system).program(cfg), {}

    def keep(role: Any) -> None:
        if role.ctx.index == 0:
            before.update({k: v.detach().cpu().double().clone() for k, v in role.learner.params().items()})
            if stand is not None:
                step = role.step
                role.step = lambda: (stand.clear(), step(), waits.append(list(stand.waits)))

    spy(program, learning_role(system), keep)
    after = run(program, UPDATES, SEED).params["params"]
    return before, {k: v.double() for k, v in after.items()}


@pytest.mark.parametrize("case", CASES_HERE)
def test_a_system_learns_the_same_on_a_device_and_waits_once_for_each_gradient(case: str) -> None:
    here = learned(case, "cpu", [])
    waits: list[list[str]] = []
    with stand_in() as device:
        there = learned(case, DEVICE.type, waits, device)
    assert_moved_alike(here, there, UPDATES)
    for step in waits[1:]:  # the first loads what all begin with
        assert len(step) <= WAITS.get(case, 2), Counter(step)
