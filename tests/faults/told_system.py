"""IMPALA whose roles tell their process ids: a file ROLE-INDEX in the folder $SHOAL_TEST_PIDS."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from shoal.api import Context
from shoal.program import Program
from shoal.systems import impala
from shoal.systems.impala import PRESETS, Config, agent

__all__ = ["PRESETS", "Config", "agent", "program"]


def tell(make: Any, ctx: Context, **ports: Any) -> Any:
    role = make(ctx, **ports)
    path = Path(os.environ["SHOAL_TEST_PIDS"], f"{ctx.role}-{ctx.index}")
    path.with_suffix(".tmp").write_text(str(os.getpid()))
    path.with_suffix(".tmp").rename(path)
    return role


def program(cfg: Config) -> Program:
    p = impala.program(cfg)
    p.roles = [replace(role, make=partial(tell, role.make)) for role in p.roles]
    return p
