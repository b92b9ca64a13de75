"""How a package that Shoal can do without is installed: by the extra of its name, from wherever Shoal itself came."""

from __future__ import annotations

import json
import os
import shlex
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit


def pip_install(extra: str) -> str:
    """Return the command that installs an extra: of the clone that this Shoal runs or was installed from, else by its
    name on the index."""
    source = _clone()
    if source is None:
        return f"pip install 'shoal[{extra}]'"
    shown = os.path.relpath(source)
    return f"pip install {shlex.quote(('.' if shown == '.' else str(source)) + f'[{extra}]')}"


def _clone() -> Path | None:
    """The directory of the source; None where Shoal is from an index."""
    here = Path(__file__).resolve().parents[1]
    if (here / "pyproject.toml").is_file():
        return here
    try:
        url = json.loads(metadata.distribution("shoal").read_text("direct_url.json") or "{}").get("url", "")
    except (metadata.PackageNotFoundError, ValueError):
        return None
    parts = urlsplit(url)
    path = Path(unquote(parts.path))
    return path if parts.scheme == "file" and path.is_dir() else None
