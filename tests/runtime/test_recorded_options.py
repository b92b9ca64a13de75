"""Options of a run in config.json: each one of the class is written there and read back."""

import json
from dataclasses import dataclass

import pytest

from shoal.run import options
from shoal.settings.flags import ranged


def test_an_option_of_one_line_is_in_config_json_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Longer(options.RunOptions):
        patience_of_mine: int = 3

    monkeypatch.setattr(options, "TYPES", ranged(Longer))
    facts = json.loads(json.dumps(Longer(patience_of_mine=7).to_json(10)))
    assert facts["patience_of_mine"] == 7
    assert Longer.from_json(facts) == Longer(patience_of_mine=7)
    del facts["patience_of_mine"]  # a run of before
    assert Longer.from_json(facts) == Longer()
