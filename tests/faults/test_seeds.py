"""No two environments of a run share a seed: over roles, replicas, restarts and resumes (both raise the generation)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from shoal.envs import EnvOptions, make
from shoal.envs.batch import sub_seeds
from shoal.runtime.seeds import BLOCK, LIVES, replica_seed

COUNTS = st.dictionaries(st.text(min_size=1, max_size=8), st.integers(1, 300), min_size=1, max_size=4)


@st.composite
def lives(draw: st.DrawFn) -> tuple[int, dict[str, int], list[tuple[str, int, int]]]:
    """A run seed, a program's replicas, and lives of some of them: within what a run can have."""
    counts = draw(COUNTS)
    most = LIVES // sum(counts.values()) - 1
    life = st.sampled_from(sorted(counts)).flatmap(
        lambda role: st.tuples(st.just(role), st.integers(0, counts[role] - 1), st.integers(0, most))
    )
    return draw(st.integers(0, 2**63 - 1)), counts, draw(st.lists(life, min_size=2, max_size=200, unique=True))


@given(lives())
@settings(max_examples=200, deadline=None)
def test_lives_have_seeds_of_their_own(drawn: tuple[int, dict[str, int], list[tuple[str, int, int]]]) -> None:
    seed, counts, some = drawn
    first = [replica_seed(seed, counts, *life) for life in some]
    assert len(set(first)) == len(some)
    assert all(0 <= s <= 2**31 - BLOCK and s % BLOCK == 0 for s in first), "whole blocks, so none overlaps another"


@given(st.integers(0, LIVES - 1), st.integers(1, BLOCK - 1))
def test_environments_of_a_life_share_no_seed(life: int, envs: int) -> None:
    seeds = sub_seeds(life * BLOCK, envs)
    assert len(set(seeds)) == envs
    assert min(seeds) > life * BLOCK, "the first is the agent's"
    assert max(seeds) < (life + 1) * BLOCK


def test_every_life_of_a_large_run() -> None:
    counts = {"actor": 255, "learner": 1}
    seeds = {replica_seed(3, counts, role, i, g) for role, n in counts.items() for i in range(n) for g in range(200)}
    assert len(seeds) == 256 * 200


@pytest.mark.parametrize("seed", [0, 1])
def test_seeds_depend_on_the_run_alone(seed: int) -> None:
    counts = {"actor": 4, "learner": 1}
    assert replica_seed(seed, counts, "actor", 2, 1) == replica_seed(seed, dict(counts), "actor", 2, 1)
    assert replica_seed(seed, counts, "actor", 2, 1) != replica_seed(seed + 1, counts, "actor", 2, 1)


def test_a_batch_hands_them_on(tmp_path: Path) -> None:
    """What an environment really gets; ``broken_env`` raises for a seed that it has seen."""
    env = f"{Path(__file__).with_name('broken_env.py')}:Broken"
    batch = make(env, 5, 0, EnvOptions(kwargs={"folder": str(tmp_path)}))
    for life in range(3):
        batch.reset(life * BLOCK)
    names = sorted(int(p.name.split()[1]) for p in tmp_path.glob("seed *"))
    assert names == [life * BLOCK + 1 + i for life in range(3) for i in range(5)]
    assert np.diff(names).min() > 0
