"""The notebook of the tutorials runs from its first cell to its last, with few steps and without Jupyter."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "tutorials" / "cartpole.ipynb"


class Display:
    """What IPython's ``display`` returns, which counts how often it was updated."""

    updates = 0

    def update(self, shown: object) -> None:
        self.updates += 1


def cells() -> list[tuple[str, list[str]]]:
    """(source, tags) of each code cell."""
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return [("".join(c["source"]), c["metadata"].get("tags", [])) for c in found if c["cell_type"] == "code"]


def test_notebook_runs_from_training_to_an_own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    display, shown = ModuleType("IPython.display"), Display()
    display.display = lambda figure, display_id: shown  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "notebook"}
    for source, tags in cells():
        exec(compile(source, NOTEBOOK.name, "exec"), namespace)
        if "parameters" in tags:
            assert namespace.keys() >= {"steps", "runtime"}
            namespace.update(steps=3_000, runtime="serial")
    assert shown.updates == len(namespace["points"]) > 0
    assert namespace["points"][-1][0] >= 3_000 and len(namespace["returns"]) == 20
    assert namespace["own"].report.steps >= 3_000 and "Thermostat" in namespace["own"].config["env"]


def test_notebook_is_committed_without_outputs_and_each_cell_is_short() -> None:
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None
    for source, _ in cells():
        assert len(source.splitlines()) <= 30 and ast.parse(source)
