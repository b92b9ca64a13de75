"""Spaces x systems: each cell trains, or is refused in one sentence before anything starts. docs/spaces.md shows
the same two tables."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces as gs
from helpers import config, learning_role, run, spy

import shoal
from shoal.api import UsageError
from shoal.systems import SYSTEMS, load

TRAINS, REFUSED = "trains", "refused"
IMAGE = gs.Box(0, 255, (12, 10, 3), np.uint8)
OBSERVATIONS: dict[str, gs.Space[Any]] = {
    "Box, vector": gs.Box(-1.0, 1.0, (3,), np.float32),
    "Box, matrix": gs.Box(-1.0, 1.0, (2, 3), np.float64),
    "Box, uint8 image": IMAGE,
    "Discrete": gs.Discrete(5, start=2),
    "MultiDiscrete": gs.MultiDiscrete([3, 4]),
    "MultiBinary": gs.MultiBinary(4),
    "Dict": gs.Dict({"camera": IMAGE, "speed": gs.Box(-1.0, 1.0, (2,)), "gear": gs.Discrete(4)}),
    "Tuple": gs.Tuple((gs.Box(-1.0, 1.0, (2,)), gs.Discrete(3))),
    "Text": gs.Text(5),
    "Sequence": gs.Sequence(gs.Discrete(3)),
}
ACTIONS: dict[str, gs.Space[Any]] = {
    "Discrete": gs.Discrete(3, start=1),
    "MultiDiscrete": gs.MultiDiscrete([2, 3]),
    "MultiBinary": gs.MultiBinary(3),
    "Box of floats": gs.Box(-2.0, 2.0, (2,), np.float32),
    "Box of integers": gs.Box(0, 5, (2,), np.int64),
    "Dict of discrete parts": gs.Dict({
        "turn": gs.Discrete(3, start=-1), "tools": gs.Tuple((gs.MultiBinary((2, 1)), gs.MultiDiscrete([2, 3]))),
    }),
    "Tuple of Boxes": gs.Tuple((gs.Box(-2.0, 2.0, (2, 1), np.float64), gs.Box(0.0, 5.0, (1,)))),
    "Dict of one Discrete": gs.Dict({"move": gs.Discrete(3, start=1)}),
    "Dict of both": gs.Dict({"move": gs.Discrete(2), "force": gs.Box(-1.0, 1.0, (1,))}),
}  # fmt: skip
HEAD = (
    "dqn",
    "apex-dqn",
    "r2d2",
    "r2d3",
    "rainbow",
    "apex-dpg",
    "d4pg",
    "qt-opt",
    "impala",
    "recurrent-ppo",
    "es",
    "dd-ppo",
    "a3c",
    "async-q",
    "async-sarsa",
    "async-nstep-q",
    "gorila",
    "downpour",
    "unreal",
)
EVERY, NONE = (TRAINS,) * len(HEAD), (REFUSED,) * len(HEAD)
POLICIES = (*NONE[:8], *EVERY[8:13], *NONE[13:])
WITH_IMAGES, BLIND = EVERY, (*EVERY[:-1], REFUSED)  # the last column's tasks need something to see
OBSERVATION_TABLE = {
    name: NONE if name in ("Text", "Sequence") else WITH_IMAGES if name in ("Box, uint8 image", "Dict") else BLIND
    for name in OBSERVATIONS
}
ACTION_TABLE = {
    "Discrete": (*EVERY[:5], *NONE[5:8], *EVERY[8:]),
    "MultiDiscrete": POLICIES,
    "MultiBinary": POLICIES,
    "Box of floats": (*NONE[:5], *EVERY[5:13], *NONE[13:]),
    "Box of integers": NONE,
    "Dict of discrete parts": POLICIES,
    "Tuple of Boxes": (*NONE[:5], *EVERY[5:13], *NONE[13:]),
    "Dict of one Discrete": (*EVERY[:5], *NONE[5:8], *EVERY[8:]),
    "Dict of both": (
        *NONE[:8],
        *EVERY[8:10],
        *NONE[10:11],
        *EVERY[11:13],
        *NONE[13:],
    ),  # es draws no choices beside a box
}
CELLS = list(product(HEAD, OBSERVATIONS, ACTIONS))


class Small(gym.Env[Any, Any]):
    """Six random observations an episode; refuses an action that is not of its space."""

    def __init__(self, obs: str, action: str) -> None:
        self.observation_space, self.action_space = OBSERVATIONS[obs], ACTIONS[action]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.time = 0
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.time += 1
        return self.observation_space.sample(), float(self.time == 2), self.time == 6, False, {}


def cfg_of(system: str, obs: str, action: str) -> Any:
    fields: dict[str, Any] = {"demonstrations": ""} if system == "r2d3" else {}  # its own are of one environment
    if system == "unreal":
        fields["pixel_cell"] = 2  # of an image of 12 x 10 pixels
    return config(system, **fields, env=f"{__name__}:Small", env_kwargs={"obs": obs, "action": action})


def expected(system: str, obs: str, action: str) -> str:
    column = HEAD.index(system)
    both = OBSERVATION_TABLE[obs][column], ACTION_TABLE[action][column]
    return TRAINS if both == (TRAINS, TRAINS) else REFUSED


def test_the_table_names_every_system() -> None:
    assert tuple(SYSTEMS) == HEAD


def in_pairs() -> set[tuple[str, str, str]]:
    """Cells that train, such that each system meets each observation and each action once or more: those of the short
    tier. Another system begins with other pairs, so that together they meet most pairs of observation and action."""
    found = set()
    for column, system in enumerate(HEAD):
        seen = [name for name in OBSERVATIONS if OBSERVATION_TABLE[name][column] == TRAINS]
        done = [name for name in ACTIONS if ACTION_TABLE[name][column] == TRAINS]
        for k in range(max(len(seen), len(done))):
            found.add((system, seen[k % len(seen)], done[(k + k // len(done) + column) % len(done)]))
    return found


def cells_that_train() -> list[Any]:
    short = in_pairs()
    cells = [cell for cell in CELLS if expected(*cell) == TRAINS]
    return [pytest.param(*cell, marks=() if cell in short else pytest.mark.long) for cell in cells]


def test_the_short_tier_has_every_observation_and_every_action_of_each_system() -> None:
    trains = [cell for cell in CELLS if expected(*cell) == TRAINS]
    short = in_pairs()
    assert short < set(trains)
    assert {cell[:2] for cell in short} == {cell[:2] for cell in trains}
    assert {cell[::2] for cell in short} == {cell[::2] for cell in trains}


@pytest.mark.parametrize("system,obs,action", cells_that_train())
def test_trains(system: str, obs: str, action: str) -> None:
    program = load(system).program(cfg_of(system, obs, action))
    before: dict[str, torch.Tensor] = {}

    def keep(role: Any) -> None:
        if role.ctx.index == 0:
            before.update({k: v.clone() for k, v in role.learner.params().items()})

    spy(program, learning_role(system), keep)
    report = run(program, updates=3)
    after = report.params["params"]
    assert report.updates >= 3 and report.steps > 0
    assert all(bool(torch.isfinite(v).all()) for v in after.values())
    assert any(not torch.equal(before[k], v) for k, v in after.items())


def cells_refused() -> list[Any]:
    """Of the short tier: each observation that a system refuses with one action that it takes, each action that it
    refuses with one observation that it takes, and one cell of which it takes neither."""
    found, once = [], set()
    for system, obs, action in CELLS:
        if expected(system, obs, action) == TRAINS:
            continue
        column = HEAD.index(system)
        takes = OBSERVATION_TABLE[obs][column] == TRAINS, ACTION_TABLE[action][column] == TRAINS
        kind = system, *(name if takes[1 - k] and not takes[k] else takes[k] for k, name in enumerate((obs, action)))
        found.append(pytest.param(system, obs, action, marks=pytest.mark.long if kind in once else ()))
        once.add(kind)
    return found


@pytest.mark.parametrize("system,obs,action", cells_refused())
def test_is_refused_before_anything_starts(system: str, obs: str, action: str) -> None:
    with pytest.raises(UsageError, match=r"support(s|ed)\b") as refusal:
        load(system).program(cfg_of(system, obs, action))
    sentence = str(refusal.value)
    assert "\n" not in sentence and "Small" in sentence
    assert any(kind in sentence for kind in ("Box", "Discrete")), sentence
    if sentence.partition(" ")[0] in SYSTEMS:  # not the system that it was made from
        assert sentence.startswith(f"{system} "), sentence


def test_a_refusal_leaves_no_run_behind(tmp_path: Path) -> None:
    env_kwargs = {"obs": "Box, vector", "action": "Box of floats"}
    with pytest.raises(UsageError, match=r"dqn supports Discrete actions; .*Small has Box\(2,\)"):
        shoal.train("dqn", env=f"{__name__}:Small", env_kwargs=env_kwargs, run_dir=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def tables(page: str) -> list[dict[str, tuple[str, ...]]]:
    """The Markdown tables of a page whose columns are the systems: row name -> cells."""
    found: list[dict[str, tuple[str, ...]]] = []
    for line in page.splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]
        if tuple(cells[1:]) == HEAD:
            found.append({})
        elif not line.startswith("|"):
            found += [{}] if found and found[-1] else []
        elif found and not re.fullmatch(r"-+", cells[0]) and len(cells) == len(HEAD) + 1:
            found[-1][cells[0]] = tuple(cells[1:])
    return [table for table in found if table]


def test_the_page_shows_these_tables() -> None:
    page = (Path(__file__).parents[2] / "docs" / "spaces.md").read_text(encoding="utf-8")
    assert tables(page) == [OBSERVATION_TABLE, ACTION_TABLE]
