"""No two environments of a run share a seed: over roles, replicas, restarts (lives of one launch) and resumes (the
next launch)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from broken_env import FAULTS
from hypothesis import given, settings, strategies as st

import shoal
from shoal.envs import EnvOptions, make
from shoal.envs.batch import sub_seeds
from shoal.runtime.seeds import BLOCK, LAUNCH, LIVES, life_seed

LIFE = st.builds(lambda launch, n: launch * LAUNCH + n, st.integers(0, LIVES // LAUNCH - 1), st.integers(0, LAUNCH - 1))


@given(st.integers(0, 2**63 - 1), st.lists(LIFE, min_size=2, max_size=500, unique=True))
@settings(max_examples=200, deadline=None)
def test_lives_have_seeds_of_their_own(seed: int, lives: list[int]) -> None:
    first = [life_seed(seed, life) for life in lives]
    assert len(set(first)) == len(lives)
    assert all(0 <= s <= 2**31 - BLOCK and s % BLOCK == 0 for s in first), "whole blocks, so none overlaps another"


@given(st.integers(0, 2**63 - 1))
@settings(max_examples=5, deadline=None)
def test_all_of_them(seed: int) -> None:
    assert len({life_seed(seed, life) for life in range(0, LIVES, 97)}) == len(range(0, LIVES, 97))


@given(st.integers(0, LIVES - 1), st.integers(1, BLOCK - 1))
@settings(deadline=None)
def test_environments_of_a_life_share_no_seed(life: int, envs: int) -> None:
    seeds = sub_seeds(life * BLOCK, envs)
    assert len(set(seeds)) == envs
    assert min(seeds) > life * BLOCK, "the first is the agent's"
    assert max(seeds) < (life + 1) * BLOCK


@pytest.mark.parametrize("lives, laps", [(1, 4096), (3, 1024), (64, 64), (4096, 1)])
def test_many_short_launches_share_no_seed(lives: int, laps: int) -> None:
    """A member of a population is launched again for every slice."""
    launches = [*range(0, 128 * laps, max(1, laps // 16)), 128 * laps - 1][: 2**17 // lives]
    found = [life_seed(7, launch * LAUNCH + n) for launch in dict.fromkeys(launches) for n in range(lives)]
    assert len(set(found)) == len(found) and max(found) <= 2**31 - BLOCK
    multiplier, offset = np.random.SeedSequence(7).generate_state(2).tolist()
    for life in range(0, LIVES, 9973):  # as they were when there were no more launches
        assert life_seed(7, life) == (life * (multiplier | 1) + offset) % LIVES * BLOCK


def test_they_depend_on_the_run() -> None:
    assert life_seed(0, 2) == life_seed(0, 2) != life_seed(1, 2)


def test_a_batch_hands_them_on(tmp_path: Path) -> None:
    """What an environment really gets; ``broken_env`` raises for a seed that it has seen."""
    env = f"{Path(__file__).with_name('broken_env.py')}:Broken"
    batch = make(env, 5, EnvOptions(env_kwargs={"folder": str(tmp_path)}))
    for life in range(3):
        batch.reset(life * BLOCK)
    names = sorted(int(p.name.split()[1]) for p in tmp_path.glob("seed *"))
    assert names == [life * BLOCK + 1 + i for life in range(3) for i in range(5)]
    assert np.diff(names).min() > 0


def test_a_resumed_run_goes_on_with_new_ones(tmp_path: Path) -> None:
    for fault in FAULTS:  # nothing breaks
        (tmp_path / fault).touch()
    env = f"{Path(__file__).with_name('broken_env.py')}:Broken"
    run = shoal.train(
        "impala", env=env, env_kwargs={"folder": str(tmp_path)}, run_dir=tmp_path / "r", preset="none", steps=400,
        actors=2, envs=3, unroll=5, hidden=(4,),
    )  # fmt: skip
    assert len(list(tmp_path.glob("seed *"))) == 6
    shoal.resume(run.path, steps=800)
    assert len(list(tmp_path.glob("seed *"))) == 12
