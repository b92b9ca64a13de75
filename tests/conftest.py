"""What exists for speed alone is tested also where ``SHOAL_PLAIN`` turns it off for the rest."""

import pytest

from shoal import fast


@pytest.fixture
def fast_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "ENABLED", True)
