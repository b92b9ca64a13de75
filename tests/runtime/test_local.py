"""The supervisor: ends, failures, restarts, and what is left behind."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from shoal import api
from shoal.runtime.local import LocalRuntime

sys.path.insert(0, str(Path(__file__).parent))
from programs import Source, pipeline

pytestmark = pytest.mark.timeout(40)


def test_ends_by_updates() -> None:
    report = LocalRuntime().launch(pipeline(), seed=1, stop=api.Stop(updates=200))
    assert report.reason == "updates"
    assert report.updates >= 200
    assert report.steps >= report.updates


def test_a_role_that_raises_is_named_with_its_traceback() -> None:
    with pytest.raises(api.RoleFailed) as failure:
        LocalRuntime().launch(pipeline(partial(Source, crash_at=3)), seed=1, stop=api.Stop(seconds=20))
    assert (failure.value.role, failure.value.index, failure.value.exitcode) == ("source", 0, 1)
    assert "boom at 3" in failure.value.cause
    assert "in step" in failure.value.cause


def test_a_role_that_raises_once_is_restarted() -> None:
    program = pipeline(partial(Source, crash_at=3), on_failure="restart")
    report = LocalRuntime().launch(program, seed=1, stop=api.Stop(updates=50))
    assert report.restarts == 1
