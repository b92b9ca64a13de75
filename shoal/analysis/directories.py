"""Learning curves of run directories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.analysis.curves import Curve, Group, curve_of, grouped
from shoal.api import UsageError
from shoal.run import Run


def load(path: str | Path, trust: bool = False) -> Curve:
    """The curve of a run directory; NoEpisode if no episode has ended there. ``trust``: as in ``Run.open``."""
    return curve_of(Run.open(path, trust=trust))


def groups(
    paths: Sequence[str | Path], trust: bool = False, left_out: Callable[[str], object] = lambda sentence: None
) -> list[Group]:
    """The runs of ``paths`` as ``curves.grouped`` puts them together. UsageError for one that is given twice.
    ``trust``: as in ``Run.open``."""
    resolved = [Path(path).resolve() for path in paths]
    twice = [str(path) for path, r in zip(paths, resolved, strict=True) if resolved.count(r) > 1]
    if twice:
        raise UsageError(f"'{twice[0]}' is given twice: it would count as two runs")
    return grouped([Run.open(path, trust=trust) for path in paths], left_out)
