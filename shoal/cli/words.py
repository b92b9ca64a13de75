"""The words of a command line that are no flags: directories, names."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.settings.flags import SHORT, Groups, split


def leading(args: list[str]) -> tuple[list[str], list[str]]:
    """Return the words before the first flag, and the rest."""
    n = next((i for i, word in enumerate(args) if word.startswith("--") or SHORT.fullmatch(word)), len(args))
    return args[:n], args[n:]


def divide(args: list[str], alone: Sequence[str] = ()) -> tuple[list[str], Groups]:
    """Return the words and the flags of a command whose words may stand anywhere: a flag takes one word, those that
    stand ``alone`` none."""
    words: list[str] = []
    groups: Groups = []
    waiting = iter(args)
    for word in waiting:
        if not word.startswith("--") and not SHORT.fullmatch(word):
            words.append(word)
        elif word in alone or "=" in word:
            groups += split([word])
        else:
            value = next(waiting, None)
            groups += split([word] if value is None else [word, value])
    return words, groups
