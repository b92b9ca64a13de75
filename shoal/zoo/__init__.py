"""The zoo: trained policies that ship with Shoal, each a small file beside a manifest of how it was made and scored."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.errors import ShoalError, UsageError
from shoal.settings.flags import unknown
from shoal.untrusted import parse_json, read_text

PREFIX = "zoo:"  # of a name where a path may stand, too
FOLDER = Path(__file__).parent / "policies"


@dataclass(frozen=True)
class Score:
    """The raw returns of whole episodes, played by the greedy policy. mean, std (of a sample), min, max: of the
    returns; low, high: bootstrapped 95 % interval of the mean; seed: of the first environment, the next have the next
    seeds, and each plays one episode."""

    mean: float
    std: float
    min: float
    max: float
    low: float
    high: float
    episodes: int
    seed: int


@dataclass(frozen=True)
class Entry:
    """A trained policy of the zoo. command: what trained it; before: the command that made the demonstrations which it
    reads, "" without; preset, seed, steps (environment steps), updates, seconds
    (of training): of that run; parameters: ``last``, or ``best`` by the run's own evaluations; settings: of its
    configuration, those that are not defaults; sha256: of its file."""

    name: str
    system: str
    env: str
    command: str
    preset: str
    seed: int
    steps: int
    updates: int
    seconds: float
    parameters: str
    settings: dict[str, Any]
    score: Score
    sha256: str
    before: str = ""

    @property
    def file(self) -> Path:
        """The file that ``Policy.save`` wrote."""
        return FOLDER / f"{self.name}.safetensors"

    @property
    def commands(self) -> str:
        """What to run, in this order, one command a line."""
        return "\n".join(filter(None, (self.before, self.command)))

    @property
    def source(self) -> str:
        """The name to give where a saved policy is expected."""
        return PREFIX + self.name


def names() -> list[str]:
    """Return the names of all entries, in alphabetical order."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def entry(name: str) -> Entry:
    """Return the entry ``name``, with or without ``zoo:`` before it. UsageError for a name that there is not."""
    name = name.removeprefix(PREFIX)
    if name not in (known := names()):
        raise UsageError(f"{unknown('policy', name, known, 'the zoo')} (`shoal zoo` lists all)")
    file = FOLDER / f"{name}.json"
    try:
        facts = parse_json(read_text(file))
        return Entry(**{"name": name, **facts, "score": Score(**facts["score"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ShoalError(f"the zoo's manifest '{file}' is damaged: {error}; install Shoal again") from error


def entries() -> list[Entry]:
    """Return all entries, by name."""
    return [entry(name) for name in names()]


def is_zoo(source: str | os.PathLike[str]) -> bool:
    """Return whether ``source`` names an entry of the zoo (``zoo:NAME``) rather than a path."""
    return str(source).startswith(PREFIX)


def located(source: str | os.PathLike[str]) -> Path:
    """Return the file of the entry that ``source`` names, or else ``source`` as a path. UsageError for ``zoo:NAME``
    with a name that there is not."""
    return entry(str(source)).file if is_zoo(source) else Path(source)


def manifest(entry: Entry) -> str:
    """Return the text of an entry's manifest, which ``entry`` reads."""
    facts = {name: value for name, value in vars(entry).items() if name != "name"}
    return json.dumps({**facts, "score": vars(entry.score)}, indent=1) + "\n"
