"""What exists for speed alone is tested also where ``SHOAL_PLAIN`` turns it off for the rest."""

import atexit
import os
import shutil
import tempfile

import pytest

from shoal import fast

STATE = tempfile.mkdtemp(prefix="shoal-tests-")  # what tests train with is nobody's to remember
atexit.register(shutil.rmtree, STATE, ignore_errors=True)
os.environ["XDG_STATE_HOME"] = STATE


@pytest.fixture
def fast_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "ENABLED", True)
