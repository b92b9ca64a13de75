"""Installed packages that register environments. They are found by searching the text of their files, without importing
them."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
import sys
import threading
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import gymnasium

from shoal.words import counted

SECONDS = 5.0  # time limit of a search, as files on a network disk are slow
NOTICE_SECONDS = 2.0  # seconds after which the user is told what takes so long
FEWEST = 5  # letters that an id and a text must share; shorter matches occur in too many packages
MINATAR = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
_NEED = re.compile(r"(gym(nasium)?|pettingzoo)(?![\w-])(?!.*\bextra\s*==)")  # in the metadata of a distribution


class Search:
    """One search of the files that register environments, with the results for the id ``env``.

    named: ``MODULE:ENV`` with the module whose text contains the longest prefix of the id, "" if none is long enough
    (many packages compose their ids). whole: that text contains the whole id, apart from the version. ids: complete ids
    in the files, each with its module. akin: ``MODULE:ENV`` with a package whose name resembles the id. unfinished: the
    time limit was reached.
    """

    def __init__(self, env: str) -> None:
        base = re.sub(r"-v\d+$", "", env)
        begin = env.rpartition("/")[0] + "/" if "/" in env else ""
        best, longest = "", len(begin) + FEWEST - 1
        self.whole, self.unfinished = False, False
        self.ids: dict[str, str] = {}
        until = time.monotonic() + SECONDS
        known = packages(plain(base))
        akin = [name for name in known if _akin(plain(name), plain(base))]
        self.akin = f"{min(akin, key=len)}:{env}" if akin else ""
        for module, text in _texts(known, until):
            self.ids |= {id: f"{module}:{id}" for id in re.findall(r"[\"']([\w./-]+-v\d+)[\"']", text)}
            shared = longest
            while shared < len(base) and any(quote + base[: shared + 1] in text for quote in "\"'"):
                shared += 1
            if shared > longest:
                best, longest = module, shared
                # not only the prefix of a longer id
                self.whole = re.search("[\"']" + re.escape(base) + "(?![A-Za-z0-9])", text) is not None
        self.named = f"{best}:{env}" if best else ""
        self.unfinished = time.monotonic() > until


def modules_with(word: str) -> list[str]:
    """Return the modules to import for environments whose ids may contain ``word``, ignoring case: their files contain
    a string that begins with it, or an id that contains it."""
    pattern = re.compile(rf"[\"'](?:[\w/.-]*{re.escape(word)}[\w./-]*-v\d+[\"']|{re.escape(word)})", re.IGNORECASE)
    found = {
        module for module, text in _texts(packages(plain(word)), time.monotonic() + SECONDS) if pattern.search(text)
    }
    return sorted(module for module in found if module.partition(".")[0] not in sys.modules)


def packages(wanted: str = "") -> list[str]:
    """Return the modules of installed distributions that require Gymnasium, the older ``gym`` or PettingZoo, have "gym"
    in their names, or are named like ``wanted`` (in the form of ``plain``)."""
    found: set[str] = set()
    for one in metadata.distributions():
        called = plain(one.name or "")
        if "gym" in called or _akin(called, wanted) or any(_NEED.match(need) for need in one.requires or ()):
            top = (one.read_text("top_level.txt") or "").split()
            files = () if top else one.files or ()
            found |= {*top, *(file.parts[0] for file in files if len(file.parts) > 1 and file.suffix == ".py")}
    return sorted(name for name in found - {"gymnasium", "gym", "shoal"} if name.isidentifier())


def plain(name: str) -> str:
    """Return the letters and digits of a name in lower case."""
    return re.sub(r"[\W_]", "", name).lower()


def _akin(package: str, wanted: str) -> bool:
    """Return True if the name of a package resembles the wanted one, ignoring "gym"; both in the form of ``plain``."""
    core = re.sub("gym(nasium)?|envs?$", "", package)
    return min(len(core), len(wanted)) >= FEWEST and (core in wanted or wanted in core)


def _texts(modules: list[str], until: float) -> Iterator[tuple[str, str]]:
    """Yield (text, module to import) for files of packages that register something, until the time ``until``."""
    for package in modules:
        yield from _registering(package, until)


def registering_modules(package: str) -> list[str]:
    """Return the modules of a package whose files register something, those nearest to its top level first."""
    found = {module for module, _ in _registering(package, time.monotonic() + SECONDS)}
    return sorted(found, key=lambda module: (module.count("."), module))


def parallel_games(package: str) -> list[str]:
    """Return ``MODULE:parallel_env`` for each module of a package that has PettingZoo's parallel environment of a
    versioned game (``simple_spread_v3``)."""
    spec = importlib.util.find_spec(package)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec is not None else []
    files = [(folder, file) for folder in folders for file in sorted(folder.rglob("*_v[0-9]*.py"))]
    games = [file.relative_to(folder).with_suffix("") for folder, file in files if "parallel_env" in _text(file)]
    return [".".join((package, *game.parts)) + ":parallel_env" for game in games]


def _registering(package: str, until: float) -> Iterator[tuple[str, str]]:
    spec = importlib.util.find_spec(package)
    for folder in map(Path, (spec.submodule_search_locations or ()) if spec is not None else ()):
        top = _text(folder / "__init__.py")
        for file in folder.rglob("*.py"):
            if time.monotonic() > until:
                return
            if re.search(r"\bregister\w*\(", text := _text(file)):
                parts = file.parent.relative_to(folder).parts
                imported = not parts or file.name != "__init__.py" or parts[0] in top
                yield package if imported else ".".join((package, *parts)), text


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def import_package(package: str) -> bool:
    """Import ``package`` so that it registers its environments, and return True if it is installed. MinAtar's are
    registered through its ``register_envs``, because importing the package loads plotting libraries."""
    if importlib.util.find_spec(package) is None:
        return False
    if package != "minatar":
        importlib.import_module(package)
    elif "MinAtar/Breakout-v1" not in gymnasium.registry:
        for game in MINATAR:
            name = game.title().replace("_", "")
            for version, minimal in ((0, False), (1, True)):
                kwargs = {"game": game, "use_minimal_action_set": minimal}
                gymnasium.register(f"MinAtar/{name}-v{version}", entry_point="minatar.gym:BaseEnv", kwargs=kwargs)
    return True


@contextlib.contextmanager
def saying(what: str) -> Iterator[None]:
    """Print to standard error ``what`` is being done, once it has taken ``NOTICE_SECONDS``."""
    after = counted(NOTICE_SECONDS, "second")
    notice = threading.Timer(NOTICE_SECONDS, lambda: print(f"shoal: {what} (for {after} so far)", file=sys.stderr))
    notice.daemon = True
    notice.start()
    try:
        yield
    finally:
        notice.cancel()
