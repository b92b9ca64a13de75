"""Every system trains across processes: all of its roles start, wait for each other, and end in order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import config

from shoal.local.runtime import LocalRuntime
from shoal.runtime.launch import Launch, Stop
from shoal.systems import SYSTEMS, load


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_local_run_updates_and_ends_in_order(system: str) -> None:
    shown: dict[str, Any] = {"demonstrations": ""} if system == "r2d3" else {}  # which another process cannot import
    program = load(system).program(config(system, **shown))
    report = LocalRuntime().launch(program, Launch(seed=0, stop=Stop(updates=4)))
    assert report.reason == "updates" and report.updates >= 4 and report.steps > 0 and report.restarts == 0
    assert report.params and all(bool(torch.isfinite(v).all()) for p in report.params.values() for v in p.values())
