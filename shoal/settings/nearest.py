"""The valid name that a wrong one stands for: by what other libraries call it, by its words, by a slip of the hand.

A wrong suggestion does more harm than none. Likeness of letters counts only as a slip (``is_slip``): ``rollout_steps``
shares most letters with ``novelty_steps``, and none of its sense.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from shoal.settings.other_names import (
    COUNTS,
    FILLERS,
    SETTINGS,
    UNITS,
    WORDS,
    foreign_names,
    is_foreign,
    known_elsewhere,
)
from shoal.untrusted import MAX_QUOTED_CHARACTERS

MOST = 2  # names of one suggestion
LETTERS_A_SLIP = 4  # one wrong letter is a slip among so many right ones


def did_you_mean(name: str, names: Sequence[str], show: Callable[[str], str] = str) -> str:
    """Return the valid names near to a wrong one as the end of a sentence, each as ``show`` writes it, or ""."""
    near = [f"'{show(found)}'" for found in near_names(name, names)]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def nearest(name: str, names: Sequence[str]) -> str | None:
    """Return the first of ``near_names``, or None."""
    return next(iter(near_names(name, names)), None)


def near_names(name: str, names: Sequence[str]) -> list[str]:
    """Return the valid names that a wrong one may stand for, at most ``MOST``; the first rule that finds any decides:
    what other libraries call it, initials (``nr``), the same words, some of the words (``epsilon`` for three settings
    of it, of which those come first that other libraries have too), one slip of spelling in four letters, a name that
    goes on (``learning_rate_decay``)."""
    if len(name) > MAX_QUOTED_CHARACTERS:
        return []
    name = "_".join(split_words(name)).removeprefix("no_")
    if found := known_elsewhere(name, names):
        return [found]
    plain = {n: n.replace("-", "_").lower() for n in names}
    rules = [_by_initials, _by_words, _by_part, _by_slip, _by_beginning, _by_slip_of_others]
    if is_foreign(name):  # this system has no such setting, and some of its words would mean another
        rules = [_by_words, _by_slip]
    return next((near[:MOST] for rule in rules if (near := rule(name, plain))), [])


def is_slip(wrong: str, right: str) -> bool:
    """Return True if one slip of the hand in ``LETTERS_A_SLIP`` letters, or a single one, makes ``right`` of
    ``wrong``."""
    return len(wrong) > 2 and slips(wrong, right) <= max(1, min(len(wrong), len(right)) // LETTERS_A_SLIP)


def slips(wrong: str, right: str) -> int:
    """Return how many letters are wrong, missing, too many or exchanged with their neighbour (the optimal string
    alignment distance, Boytsov 2011)."""
    before: list[int] = [0] * (len(right) + 1)
    row: list[int] = [*range(len(right) + 1)]
    for i, letter in enumerate(wrong, 1):
        last, row = row, [i, *[0] * len(right)]
        for j, other in enumerate(right, 1):
            row[j] = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == right[j - 2] and other == wrong[i - 2]:
                row[j] = min(row[j], before[j - 2] + 1)
        before = last
    return row[-1]


def split_words(name: str) -> list[str]:
    """Return the words of a name in small letters: ``PPOConfig``, ``ppo_config`` and ``ppo-config`` are one."""
    apart = re.sub("(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name[:MAX_QUOTED_CHARACTERS])
    return [word for word in re.split("[-_]+", apart.lower()) if word]


def _words(name: str) -> list[str]:
    """Return the words of a name, each as Shoal calls it: ``entropy_coef`` -> entropy, cost."""
    return [part for word in name.split("_") if word for part in WORDS.get(word, word).split("_")]


def _senses(name: str) -> list[list[str]]:
    """Return the words of a wrong name: all, without those that add nothing (``num_``), without units (``_size``)."""
    words = _words(name)
    bare = [word for word in words if word not in FILLERS]
    if bare and bare != words and COUNTS & {*words} and not bare[-1].endswith("s"):
        bare[-1] += "s"  # num_env
    short = [word for word in bare if word not in UNITS]
    return [senses for senses in (words, bare, short) if senses]


def _by_initials(name: str, plain: dict[str, str]) -> list[str]:
    initials = (n for n, p in plain.items() if "_" in p and "".join(part[:1] for part in p.split("_")) == name)
    return [*initials][:1]


def _by_words(name: str, plain: dict[str, str]) -> list[str]:
    for words in _senses(name):
        same = [n for n, p in plain.items() if sorted(_words(p)) == sorted(words)]
        if same:
            return same[:1]
    return []


def _by_part(name: str, plain: dict[str, str]) -> list[str]:
    if len(name) < 3:
        return []
    for words in _senses(name):
        if all(len(word) < 3 for word in words):
            continue
        whole = words == _words(name) or len(words) > 1  # of "buffer_len" alone "buffer" is no part of "double_buffer"
        start = "_".join(words)
        begun = [n for n, p in plain.items() if "_".join(_words(p)).startswith(start) or p.startswith(name)]
        held = [n for n, p in plain.items() if {*words} <= {*_words(p)}] if whole or COUNTS & {*_words(name)} else []
        if begun or held:
            return sorted(begun or held, key=lambda n: plain[n] not in SETTINGS)
    return []


def _by_slip(name: str, plain: dict[str, str]) -> list[str]:
    ways = {name, "_".join(_words(name))}
    far = {n: min(slips(way, p) for way in ways) for n, p in plain.items() if any(is_slip(way, p) for way in ways)}
    return [n for n in far if far[n] == min(far.values())]


def _by_slip_of_others(name: str, plain: dict[str, str]) -> list[str]:
    name = name.replace("_", "")
    others = [other for other in foreign_names() if len(name) > 5 and is_slip(name, other)]
    return [found for other in others if (found := known_elsewhere(other, plain))][:1]


def _by_beginning(name: str, plain: dict[str, str]) -> list[str]:
    begun = [n for n, p in plain.items() if "_" in p and name.startswith(f"{p}_")]
    return [max(begun, key=len)] if begun else []
