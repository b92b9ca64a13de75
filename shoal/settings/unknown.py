"""The error for a setting, flag, preset or value whose name does not exist, with what serves instead."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shoal.errors import UsageError
from shoal.settings import short_flags
from shoal.settings.done_otherwise import NOT_NEEDED, in_python
from shoal.settings.nearest import did_you_mean
from shoal.settings.other_names import known_elsewhere
from shoal.untrusted import excerpt

REPLACED_FLAGS = {"anneal": "learning_rate", "anneal_clip": "clip"}  # settings that are now values of others


class UnknownSetting(UsageError):
    """A flag or a setting that does not exist, and for which nothing near is known. name: as it was given; flag:
    whether it was a flag."""

    def __init__(self, sentence: str, name: str, flag: bool) -> None:
        super().__init__(sentence)
        self.name, self.flag = name, flag


def flag_name(field: str) -> str:
    """``learning_rate`` -> ``--learning-rate``."""
    return "--" + field.replace("_", "-")


def unknown(what: str, name: str, names: Sequence[str], of: str = "") -> UsageError:
    """Return the error for a name that does not exist: with the nearest one that does, or with how its work is done
    here. An ``UnknownSetting`` where neither is known of a flag or a setting."""
    whose = f" of {of}" if of else ""
    if what == "flag" and (letter := re.fullmatch("[-_]([A-Za-z])", name)):
        return UsageError(f"unknown flag '-{letter[1]}'{whose}{short_flags.meaning(letter[1], names)}")
    show = flag_name if what == "flag" else str
    now = REPLACED_FLAGS.get(name.replace("-", "_").removeprefix("no_"))
    if now is not None and now in names:
        return UsageError(
            f"there is no '{show(name)}' any more: {show(now)} may be a schedule, as in "
            f"{show(now)} 'linear(0.001, 0)', and is constant otherwise"
        )
    of_a_setting = what in ("flag", "setting")
    told = NOT_NEEDED.get(name.replace("-", "_")) if of_a_setting and not known_elsewhere(name, names) else None
    if told is not None:
        return UsageError(f"unknown {what} '{show(name)}'{whose}: {told if what == 'flag' else in_python(told)}")
    sentence = f"unknown {what} '{excerpt(show(name))}'{whose}"
    if not (hint := did_you_mean(name, names, show)) and of_a_setting:
        return UnknownSetting(sentence, name, what == "flag")
    return UsageError(sentence + hint)
