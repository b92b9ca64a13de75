"""Twenty serial updates of every system on its default environment, against stored sums of how each parameter tensor
changed: a change of any number on the way is noticed. Where the change is meant, write the new sums with

    python tests/systems/test_snapshots.py

and say in the commit why they changed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import config, learning_role, run, spy

from shoal import linear
from shoal.systems import SYSTEMS, load

FILE = Path(__file__).with_name("snapshots.json")
UPDATES, SEED, RTOL = 20, 7, 1e-3
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in SYSTEMS},
    "dqn, every switch": ("dqn", dict(double=True, dueling=True, n_step=3, prioritised=True)),
    "r2d2, zero state": ("r2d2", dict(start_state="zero", core="gru", dueling=True, rescale=None)),
    "d4pg, every switch": (
        "d4pg",
        dict(critic="mixture", prioritised=True, late_action=True, activation="tanh", policy_hidden=(8,)),
    ),
    "rainbow, qr-dqn": ("rainbow", dict(returns="quantile", noisy=False, dueling=False, prioritised=False)),
    "impala, lstm": ("impala", dict(core="lstm", core_size=16, last_action_reward=True)),
    "dd-ppo, lstm": ("dd-ppo", dict(core="lstm", core_size=16, normalise_obs=True, normalise_reward=True)),
    "recurrent-ppo, gru": ("recurrent-ppo", dict(core="gru", core_size=16, clip_value=True, clip=linear(0.2, 0))),
}


def snapshot(case: str) -> dict[str, list[float]]:
    """Of each parameter tensor, what the updates added to it: the sum, and the sum of absolute values."""
    system, fields = CASES[case]
    cfg = config(system, device="cpu", precision="fp32", steps=20_000, **fields)
    program, before = load(system).program(cfg), {}

    def keep(role: Any) -> None:
        if role.ctx.index == 0:
            before.update({k: v.to(torch.float64, copy=True) for k, v in role.learner.params().items()})

    spy(program, learning_role(system), keep)
    after = run(program, UPDATES, SEED).params["params"]
    changes = {name: value.double() - before[name] for name, value in after.items()}
    return {name: [float(f"{x:.7g}") for x in (v.sum(), v.abs().sum())] for name, v in changes.items()}


@pytest.mark.parametrize("case", CASES)
def test_parameters_after_twenty_updates(case: str) -> None:
    stored = json.loads(FILE.read_text(encoding="utf-8"))[case]
    found = snapshot(case)
    assert found.keys() == stored.keys()
    for name, (total, size) in found.items():
        expected, scale = stored[name]
        message = f"{case}, {name}: if this change is meant, run python tests/systems/test_snapshots.py"
        assert abs(total - expected) <= RTOL * scale, message
        assert abs(size - scale) <= RTOL * scale, message


def test_every_stored_case_is_checked() -> None:
    assert json.loads(FILE.read_text(encoding="utf-8")).keys() == CASES.keys()


if __name__ == "__main__":
    snapshots = {case: snapshot(case) for case in CASES}
    lines = [
        f"  {json.dumps(case)}: {{\n"
        + ",\n".join(f"    {json.dumps(name)}: {json.dumps(sums)}" for name, sums in tensors.items())
        + "\n  }"
        for case, tensors in snapshots.items()
    ]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"wrote {FILE}")
