"""What exists for speed alone is tested also where ``SHOAL_PLAIN`` turns it off for the rest."""

import atexit
import gc
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from devices import ABSENT, PRESENT
from tiers import tier

from shoal import fast

STATE = tempfile.mkdtemp(prefix="shoal-tests-")  # what tests train with is nobody's to remember
atexit.register(shutil.rmtree, STATE, ignore_errors=True)
os.environ["XDG_STATE_HOME"] = STATE


@pytest.fixture
def fast_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "ENABLED", True)


@pytest.fixture(autouse=True, scope="session")
def patient_search() -> None:
    """Let the search for an unknown environment among installed packages take its time on a busy machine."""
    from shoal.envs import installed

    installed.SECONDS = installed.NOTICE_SECONDS = 60.0


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep Python's garbage collector off until all tests are found, and from looking at them ever after: they stay to
    the end, and four workers would each look through some millions of objects again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the slow and the long tier; skip those that need a GPU where there is none."""
    here = Path(__file__).parent
    for item in items:
        if (found := tier(item.path.relative_to(here).as_posix(), item.name)) != "short":
            item.add_marker(found)
            if item.get_closest_marker("timeout") is None:  # minutes here are more of them on a slower machine
                item.add_marker(pytest.mark.timeout(600))
        if not PRESENT and item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason=ABSENT))
