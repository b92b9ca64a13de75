"""What is said of a flag of a single letter (``-n``), which other tools have: the flags that it may mean here."""

from __future__ import annotations

from collections.abc import Sequence

MOST = 2  # flags of one answer
PROGRESS = "progress is shown on a terminal, and --quiet turns it off"
MEANINGS: dict[str, tuple[str, ...] | str] = {  # letter -> flags, the likeliest first, or a sentence
    "a": ("actors", "all"), "b": ("batch", "minibatches"), "c": ("config",), "d": ("device", "run-dir"),
    "e": ("env", "episodes", "envs"), "f": ("run-dir", "format"), "g": ("gamma",), "i": ("init-from",),
    "j": ("actors", "json"), "l": ("learning-rate", "log"), "n": ("steps", "episodes", "trials", "envs"),
    "o": ("out", "output", "run-dir"), "p": ("preset", "port"), "P": PROGRESS, "q": ("quiet",),
    "r": ("run-dir",), "s": ("seed", "steps"), "t": ("steps", "to", "trials"), "v": PROGRESS,
    "w": ("actors", "watch"), "y": ("trust",),
}  # fmt: skip


def meaning(letter: str, names: Sequence[str]) -> str:
    """Return the end of a sentence about the unknown flag of one letter: those of ``names`` (with dashes or
    underscores) that it may stand for, or that flags are whole words."""
    whole = ": flags are whole words after two dashes"
    meant = MEANINGS.get(letter) or MEANINGS.get(letter.lower(), ())
    have = [name.replace("_", "-") for name in names]
    if isinstance(meant, str):
        return f"{whole} ({meant})" if "quiet" in have else whole
    near = [f"'--{name}'" for name in meant if name in have][:MOST]
    shown = [name for name in ("env", "steps") if name in have] or have[:MOST]
    return f"{whole}; did you mean {' or '.join(near)}?" if near else f"{whole}, such as --{' or --'.join(shown)}"
