"""The commands that list what there is: systems, environments, runs; and completion for shells."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.api import UsageError
from shoal.cli.words import leading
from shoal.paths import fixed, shown
from shoal.settings.flags import choice, options, split
from shoal.terminal import OFF_TERMINAL
from shoal.untrusted import excerpt
from shoal.words import counted

if TYPE_CHECKING:
    from shoal.zoo import Entry

KINDS = {  # of systems, in the order of their list
    "values, discrete actions": ("dqn", "apex-dqn", "rainbow", "r2d2", "r2d3", "gorila", "downpour"),
    "values, by asynchronous workers": ("async-q", "async-sarsa", "async-nstep-q"),
    "policy and value": ("recurrent-ppo", "dd-ppo", "impala", "a3c", "unreal"),
    "continuous actions": ("apex-dpg", "d4pg", "qt-opt"),
    "search": ("es",),
}
POPULATION = ("pbt", "Population-based training of any of them: shoal train pbt --of SYSTEM --mutate FIELD,...")


def _words(args: list[str], command: str, most: int) -> tuple[list[str], list[str]]:
    """Return what a command starts with, at most so many words, and the flags after them."""
    words, rest = leading(args)
    if (n := len(words)) > most:
        raise UsageError(f"shoal {command} takes {('no word', 'one word')[most]}, found {n}: {' '.join(words)}")
    return words, rest


# --------------------------------------------------------------------------------------- systems
def systems(args: list[str]) -> int:
    """shoal systems"""
    from shoal.systems import described

    _, flags = _words(args, "systems", 0)
    as_json = options(split(flags), {"json": bool}, "systems").get("json")
    all_of_them = described()
    said = {name: all_of_them[name] for names in KINDS.values() for name in names}
    if as_json:
        print(json.dumps({**said, POPULATION[0]: POPULATION[1]}, indent=1))
        return 0
    for kind, names in KINDS.items():
        print(f"{kind}:")
        for name in names:
            print(_entry(name, said[name]))
    print(f"over runs:\n{_entry(*POPULATION)}")
    return 0


def _entry(name: str, sentence: str) -> str:
    """Return a name with what it is, as many lines as the terminal is narrow."""
    wide = shutil.get_terminal_size((OFF_TERMINAL, 0)).columns
    return textwrap.fill(sentence, max(40, wide), initial_indent=f"  {name:<16}", subsequent_indent=" " * 18)


# ---------------------------------------------------------------------------------- environments
def environments(args: list[str]) -> int:
    """shoal envs [WORD]"""
    from shoal.cli.installed import installed_environments
    from shoal.envs.installed import modules_with, packages, saying
    from shoal.envs.registry import PACKAGES
    from shoal.settings.kinds import env_kind, preset_kinds
    from shoal.systems import SYSTEMS, load

    words, flags = _words(args, "envs", 1)
    as_json = options(split(flags), {"json": bool}, "envs").get("json")
    word = words[0].lower() if words else ""
    presets = {name: load(name).PRESETS for name in SYSTEMS}
    rows = []
    with saying("the environments of the installed packages are being looked for"):
        module = words[0].replace("-", "_") if words else ""
        package = module.partition(".")[0]
        known = sorted(installed_environments(), key=str.lower)
        a_kind = word and any(word == env_kind(env) for env in known)  # the package mujoco registers nothing itself
        own = _of_package(module) if not a_kind and package in {*packages(package)} - {*PACKAGES} else []
        others = [] if own else [name for name in modules_with(word) if name not in PACKAGES]
    for env in own or known:
        if own or word in env.lower() or word == env_kind(env):
            kinds = preset_kinds(env)
            serves = [name for name, served in presets.items() if any(kind in served for kind in kinds)]
            rows.append((env, env_kind(env) or "", serves))
    if not rows and not others:
        raise UsageError(
            f"no environment that is installed has '{word}' in its name or as its kind (`shoal envs` lists all)"
        )
    if as_json:
        print(json.dumps([{"env": env, "kind": kind, "presets": serves} for env, kind, serves in rows], indent=1))
        return 0
    wide = max((len(env) for env, *_ in rows), default=0) + 2
    width = max(wide + 40, shutil.get_terminal_size((OFF_TERMINAL, 0)).columns)
    for env, kind, serves in rows:
        for line in textwrap.wrap(
            f"{env:<{wide}}{kind:<12}{' '.join(serves)}",
            width,
            subsequent_indent=" " * (wide + 12),
            break_on_hyphens=False,
        ):
            print(line)
    if others:
        print(f"{'more' if rows else 'they'} may be in packages that `shoal envs PACKAGE` imports: {', '.join(others)}")
    return 0


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Discard what a package prints and warns of while it is imported: what is listed may be JSON."""
    out, err = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    with out, err, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _of_package(module: str) -> list[str]:
    """Return the ids of an installed package, each with the module to import for it. UsageError if it cannot be
    imported, or registers nothing."""
    import gymnasium

    from shoal import own_code
    from shoal.envs.installed import parallel_games, registering_modules
    from shoal.envs.unknown import ids_of, old_gym

    games = parallel_games(module.partition(".")[0])
    before = {*gymnasium.registry}
    for name in (module, *registering_modules(module.partition(".")[0])):
        try:
            with _unheard():
                register = getattr(own_code.by_name(name, f"package '{name}'"), "register_envs", None)
        except UsageError:
            if games:
                continue
            raise
        if not ids_of(module) and callable(register):
            with own_code.failing(f"package '{name}' cannot register its environments"):
                register()
        if ids := {*ids_of(module), *gymnasium.registry} - before or {*ids_of(module)}:
            return [*games, *(f"{name}:{id}" for id in sorted(ids, key=str.lower))]
    if games:
        return games
    package = module.partition(".")[0]
    old = old_gym()
    if ids := {id for id, home in old.ids.items() if home.partition(".")[0] == package}:
        first, *more = sorted(ids, key=str.lower)
        named = ", ".join([first, *more[:4]]) + (f" and {counted(len(more) - 4, 'other')}" if len(more) > 4 else "")
        told = f"package '{module}' registers with the old gym, not with Gymnasium: {named}"
        raise UsageError(f"{told}; for the first, {old.way(f'{module}:{first}')}")
    way = f"a class or a function of it that makes one is named as --env {module}:NAME"
    raise UsageError(f"package '{module}' registers no environment with Gymnasium when it is imported; {way}")


# ------------------------------------------------------------------------------------------ runs
def runs(args: list[str]) -> int:
    """shoal runs [DIRECTORY]"""
    words, flags = _words(args, "runs", 1)
    given = options(split(flags), {"json": bool, "trust": bool}, "runs")
    folder, trust = fixed(words[0]) if words else Path("runs"), bool(given.get("trust"))
    if not folder.is_dir():
        raise UsageError(f"no such directory: '{shown(folder)}'")
    all_of_them = (_run(path, trust) for path in _directories(folder))
    found = sorted((one for one in all_of_them if one), key=lambda run: -float(run["written"]))
    if given.get("json"):
        print(json.dumps(found, indent=1))
        return 0
    if not found:
        print(f"no run in {shown(folder)}")
        return 0
    heads = ("run", "system", "environment", "seed", "steps", "return", "seconds", "state")
    _print_rows(heads, [[excerpt(run[head]) for head in heads] for run in found])
    return 0


def _print_rows(heads: tuple[str, ...], rows: list[list[str]]) -> None:
    """Print a table, or its rows one below the other where a terminal is too narrow for it."""
    widths = [max(len(row[i]) for row in (list(heads), *rows)) + 2 for i in range(len(heads))]
    wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else sum(widths)
    if sum(widths) - 2 > wide:
        for first, *others in rows:
            said = ", ".join(f"{head} {cell}" for head, cell in zip(heads[1:], others, strict=True))
            print(textwrap.fill(first, wide))
            print(textwrap.fill(said, wide, initial_indent="  ", subsequent_indent="  "))
        return
    for row in (list(heads), *rows):
        print("".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def _directories(folder: Path) -> list[Path]:
    """The run directories in ``folder``, or itself if it is one."""
    if (folder / "config.json").is_file():
        return [folder]
    return [path for path in folder.iterdir() if (path / "config.json").is_file()]


def _run(path: Path, trust: bool) -> dict[str, Any] | None:
    """Return what is shown of a run; None for a directory that is damaged or holds links, which is said."""
    from shoal.api import ShoalError
    from shoal.records.damage import reading
    from shoal.untrusted import require_plain

    try:
        require_plain(path, trust)
        with reading(path):
            return _shown(path)
    except ShoalError as error:
        print(f"shoal: {error}; it is left out", file=sys.stderr)
        return None


def _shown(path: Path) -> dict[str, Any]:
    from shoal.records.damage import read_json
    from shoal.records.metric_files import read_curve
    from shoal.records.run_dir import read_report
    from shoal.run.run import check_config

    facts, report = read_json(path / "config.json", "run", ("system", "config", "seed")), read_report(path)
    check_config(path / "config.json", facts)
    rows = [] if report is not None else read_curve(path)
    last: dict[str, Any] = dict(rows[-1]) if rows else {}
    timed = next((row["seconds"] for row in reversed(rows) if "seconds" in row), 0.0)  # the newest is written after
    steps, score, seconds = (
        (report.steps, report.episode_return, report.seconds) if report is not None
        else (int(last.get("steps", 0)), last.get("episode_return"), timed)
    )  # fmt: skip
    shown = "-" if score is None or score != score else round(score, 2)
    return {
        "run": path.name, "system": facts["system"], "environment": facts["config"].get("env", ""),
        "seed": facts["seed"], "steps": steps, "return": shown,
        "seconds": round(float(seconds)), "state": report.reason if report is not None else _state(path),
        "written": path.stat().st_mtime,
    }  # fmt: skip


def _state(path: Path) -> str:
    """Of a run without a report: whether it runs."""
    from shoal.records.run_lock import is_locked

    return "running" if is_locked(path) else "killed"


# ------------------------------------------------------------------------------------------- zoo
def zoo(args: list[str]) -> int:
    """shoal zoo [NAME]"""
    from shoal.zoo import entries, entry

    words, flags = _words(args, "zoo", 1)
    as_json = options(split(flags), {"json": bool}, "zoo").get("json")
    found = [entry(words[0])] if words else entries()
    if as_json:
        data = [{**asdict(one), "file": str(one.file), "bytes": one.file.stat().st_size} for one in found]
        print(json.dumps(data[0] if words else data, indent=1))
    elif words:
        print("\n".join(_described(found[0])))
    else:
        heads = ("name", "system", "environment", "mean return", "95 % interval", "episodes", "steps", "KB")
        _print_rows(heads, [_zoo_row(one) for one in found])
        print(f"\nshoal zoo NAME: how one was made; shoal eval zoo:{found[0].name}: play it" if found else "none")
    return 0


def _zoo_row(one: Entry) -> list[str]:
    score = one.score
    return [
        one.name, one.system, one.env, f"{score.mean:.4g}", f"{score.low:.4g} to {score.high:.4g}", str(score.episodes),
        f"{one.steps:,}", f"{one.file.stat().st_size / 1000:.0f}",
    ]  # fmt: skip


def _described(one: Entry) -> Iterator[str]:
    score = one.score
    yield f"{one.source}: {one.system} on {one.env}, preset {one.preset}"
    yield f"  made by      {one.command}"
    if one.before:
        yield f"  after        {one.before}"
    yield (
        f"  training     seed {one.seed}, {counted(one.steps, 'step')}, {counted(one.updates, 'update')}, "
        f"{one.seconds:.0f} s"
    )
    yield f"  parameters   {one.parameters}; {one.file.stat().st_size:,} bytes, SHA-256 {one.sha256}"
    yield (
        f"  score        mean {score.mean:.4g} (95 % interval {score.low:.4g} to {score.high:.4g}), std "
        f"{score.std:.4g}, min {score.min:.4g}, max {score.max:.4g} over {score.episodes} greedy episodes, environment "
        f"seeds from {score.seed} on"
    )
    yield "  settings     " + ", ".join(f"{name}={value}" for name, value in one.settings.items())


# ------------------------------------------------------------------------------------ completion
def completion(args: list[str]) -> int:
    """shoal completion SHELL"""
    from shoal.cli.completion import SHELLS, script

    words, flags = _words(args, "completion", 1)
    options(split(flags), {}, "completion")
    if not words:
        raise UsageError(f"shoal completion needs a shell: {', '.join(SHELLS)}")
    choice("shoal completion", words[0], tuple(SHELLS))
    print(script(words[0]), end="")
    return 0
