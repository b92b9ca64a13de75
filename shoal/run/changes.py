"""Changes of settings and options when a run is resumed: which are allowed, and how they are recorded.

A setting may change unless that changes the shape of something that was saved (parameters, messages, replays, roles) or
the meaning of the optimiser's state. ``fixed_at_start`` of a config class names fields of the latter kind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from shoal.api import UsageError, WiringError
from shoal.envs import EnvOptions
from shoal.program import Program
from shoal.records.checkpoint import differences, shape_of
from shoal.run.evaluation import Evaluation
from shoal.run.options import RESUMABLE, RESUMABLE_FLAGS
from shoal.run.runtimes import is_deterministic
from shoal.settings.config import build, default_values
from shoal.settings.entries import over
from shoal.settings.fields import RUN_FLAGS, RUN_OPTIONS
from shoal.settings.flags import expect, flag_name, ranged, short_name, unknown
from shoal.settings.schedule import plain
from shoal.types import Values
from shoal.untrusted import excerpt
from shoal.words import counted

ROLLOUT = {"envs", "total_envs", "unroll"}  # if a replica keeps its rollout itself, no channel shows its shape
REPLAYS_ENVIRONMENTS = "the serial runtime plays its environments again, as they were"
MOST_RESUMED = 1_000
SHOWN_CHANGES = 20  # changes that a report shows, and settings of each
# options of a replay table that affect only items added later
FREE = {"alpha", "alpha_evict", "batches", "eps", "eta", "gamma", "rescale"}


def wanted(system: Any, name: str, values: Mapping[str, Any], given: Mapping[str, Any], flags: bool) -> Values:
    """Return the settings ``given`` (as flags or as arguments) that differ from ``values``, converted to their types.
    ``Entries`` are merged into the old value. Raises UsageError for unknown names and values out of range."""
    hints, known = ranged(system.Config), default_values(system.Config)
    out = {}
    for key, value in given.items():
        if key not in known:
            near = list(known) if flags else [*known, *RESUMABLE]
            raise unknown("flag" if flags else "setting", key, near, short_name(name))
        typed = expect(hints[key], over(values[key], value), _shown(key, flags))
        if typed != values[key]:
            out[key] = typed
    return out


def check(
    system: Any, values: Mapping[str, Any], new: Mapping[str, Any], runtime: str, path: Path, flags: bool
) -> None:
    """Raise UsageError unless a run with the settings ``values`` may be resumed with those in ``new``."""
    advice = f"begin another run with its parameters (init_from '{path}')"
    for name, why in _at_start(system, runtime):
        if name in new:
            raise UsageError(f"{_shown(name, flags)} cannot change when a run goes on, {why}: {advice}")
    built = build(system.Config, {**values, **new})
    for name, value in new.items():
        if getattr(built, name) != value:
            raise UsageError(f"{_shown(name, flags)} cannot change when a run goes on, it follows from other settings")

    def built_with(names: Sequence[str]) -> Values:
        cfg = build(system.Config, {**values, **{name: new[name] for name in names}})
        return {**shapes(system.program(cfg), is_deterministic(runtime)), **cfg.kept()}

    before, blamed = built_with(()), list(new)
    if before == (now := built_with(blamed)):
        if is_deterministic(runtime) and (cut := ROLLOUT & new.keys()):
            named = _shown(min(cut), flags)
            raise UsageError(f"{named} cannot change when a run goes on, {REPLAYS_ENVIRONMENTS}: {advice}")
        return
    for name in new:
        with contextlib.suppress(UsageError, WiringError):  # building with an arbitrary combination may fail
            if before != (alone := built_with([name])):
                blamed, now = [name], alone
                break
    which = " and ".join(_shown(name, flags) for name in blamed)
    found = next(differences(before, now))
    raise UsageError(f"{which} cannot change when a run goes on, it changes what was saved ({found}): {advice}")


def refuse_options(names: Iterable[str], flags: bool) -> None:
    """Raise UsageError for a name among the settings that is an option of the run and cannot change."""
    for name in names:
        if name.replace("-", "_") in (RUN_FLAGS if flags else RUN_OPTIONS):
            raise UsageError(
                f"{_shown(name, flags)} is an option of the run, and stays as it was when the run goes on; "
                f"{', '.join(_shown(n, flags) for n in (RESUMABLE_FLAGS if flags else RESUMABLE))} may change"
            )


def evaluation(facts: Mapping[str, Any], anew: Evaluation | Values | None, flags: bool) -> Values:
    """Return the option ``evaluation`` of a run with the ``facts`` of a config.json, or {} if it does not change.
    ``anew``: the whole option, or the parts that change. Raises UsageError if the run cannot be resumed with it."""
    was = {"video": False, "max_steps": 0, **facts["evaluation"]}  # older versions lack these options
    now = {**was, **(asdict(anew) if isinstance(anew, Evaluation) else anew or {})}
    if now == was:
        return {}
    named = "--eval-every" if flags else "'evaluation'"
    if not (was["every"] and now["every"]):
        raise UsageError(f"{named} cannot begin or end when a run goes on: its program has an evaluator, or has none")
    if is_deterministic(facts["runtime"]):
        raise UsageError(f"{named} cannot change when a run goes on, {REPLAYS_ENVIRONMENTS}")
    return {"evaluation": Evaluation(**now)}


def note(facts: Values, values: Mapping[str, Any], new: Mapping[str, Any], steps: int) -> None:
    """Replace ``values`` by ``new`` settings in the ``facts`` of a config.json, and append the change with the step at
    which the run is resumed. Changes recorded after that step are moved to it. ``resumed`` lists the steps at which the
    run was resumed. Of both the latest ``MOST_RESUMED`` are kept."""
    earlier = [{**change, "steps": min(change["steps"], steps)} for change in facts.get("changes", [])]
    before, after = plain({name: values[name] for name in new}), plain(dict(new))
    if new:
        same = {name: facts["config"][name] for name in ("env", "actors") if name in facts["config"]}
        facts["config"] = {**plain(dict(values)), **same, **after}
        earlier.append({"steps": steps, "settings": {name: [before[name], after[name]] for name in new}})
    facts["origins"] = facts["origins"] | dict.fromkeys(new, "resume")
    facts["changes"] = earlier[-MOST_RESUMED:]
    before_it = [at for at in facts.get("resumed", []) if type(at) is int and at < steps]
    facts["resumed"] = [*before_it, steps][-MOST_RESUMED:]


def told(changes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line for each of the latest ``SHOWN_CHANGES`` changes of a run: ``learning_rate 0.001 -> 0.0001 at
    20,000 steps``. The first line counts those that are left out."""
    left_out = len(changes) - SHOWN_CHANGES
    lines = [f"{counted(left_out, 'earlier change')}, which config.json lists"] if left_out > 0 else []
    for change in changes[-SHOWN_CHANGES:]:
        pairs = [f"{excerpt(name)} {_text(was)} -> {_text(now)}" for name, (was, now) in change["settings"].items()]
        more = [counted(len(pairs) - SHOWN_CHANGES, "more setting")] if len(pairs) > SHOWN_CHANGES else []
        lines.append(", ".join(pairs[:SHOWN_CHANGES] + more) + f" at {counted(change['steps'], 'step')}")
    return lines


def _at_start(system: Any, runtime: str) -> Iterator[tuple[str, str]]:
    """Yield the settings that must not change, each with the reason."""
    yield "env", "another environment is another run"
    for name in fixed_at_start(system):
        yield name, "what was saved is of the one it had"
    if is_deterministic(runtime):
        for field in fields(EnvOptions):
            yield field.name, REPLAYS_ENVIRONMENTS


def fixed_at_start(system: Any) -> list[str]:
    """Return the settings that saved state depends on although no tensor shape shows it."""
    return [name for cls in system.Config.__mro__ for name in vars(cls).get("fixed_at_start", ())]


def shapes(program: Program, server: bool = False) -> Values:
    """Return the shapes that must not change: ``shape_of`` (with its ``server``), and the contents of each replay."""
    tables = {name: vars(c.table) for name, c in program.channels.items() if c.table is not None}
    replays = {name: {k: v for k, v in table.items() if k not in FREE} for name, table in tables.items()}
    return {**shape_of(program, server), "replays": replays}


def _shown(name: str, flags: bool) -> str:
    return flag_name(name) if flags else f"'{name}'"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return excerpt(" ".join(map(str, value)))
    return f"{value:g}" if isinstance(value, float) else excerpt(value)
