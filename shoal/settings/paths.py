"""What is a file or directory of the user's own in a configuration that is kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.envs import absolute
from shoal.types import Values


def anchored(values: Mapping[str, Any]) -> Values:
    """``values`` of a configuration with such files and directories by their whole paths, so that a run, a policy or a
    population goes on from another directory."""
    out = {**values, "env": absolute(values["env"])}
    demonstrations = values.get("demonstrations")
    if demonstrations and Path(demonstrations).is_dir():  # not the ID of a data set
        out["demonstrations"] = str(Path(demonstrations).absolute())
    return out
