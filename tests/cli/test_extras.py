"""What a package that is missing is installed by: the clone, or the index, whichever Shoal is from."""

from __future__ import annotations

import json
import types
from importlib import metadata
from pathlib import Path

import pytest

from shoal import extras
from shoal.extras import pip_install

ROOT = Path(extras.__file__).parents[1]


def test_a_clone_names_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    assert pip_install("plot") == "pip install '.[plot]'"
    monkeypatch.chdir(tmp_path)
    assert pip_install("plot") == f"pip install '{ROOT}[plot]'"


@pytest.mark.parametrize("from_clone", [True, False])
def test_an_installed_package_says_where_it_is_from(
    from_clone: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = json.dumps({"url": tmp_path.as_uri(), "dir_info": {}}) if from_clone else None
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "site-packages" / "shoal" / "extras.py"))
    monkeypatch.setattr(metadata, "distribution", lambda name: types.SimpleNamespace(read_text=lambda file: told))
    expected = f"'{tmp_path}[wandb]'" if from_clone else "'shoal[wandb]'"
    assert pip_install("wandb") == f"pip install {expected}"
