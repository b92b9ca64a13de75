"""The command ``shoal tune``."""

from __future__ import annotations

from pathlib import Path

from shoal.api import UsageError
from shoal.run import monitors
from shoal.run.flags import resolve_flags
from shoal.run.options import FLAGS as OF_RUNS, RunOptions
from shoal.run.tuning import BEST, FIELDS, Study, searchable
from shoal.runtime.interrupts import EXIT_CODES
from shoal.settings.flags import ranged, split
from shoal.settings.other_names import ALIASES
from shoal.settings.ranges import Count, Parts
from shoal.types import Values

TUNE_FLAGS = {"trials": Count, "slots": Parts, "search": str, "study": str, "seconds": OF_RUNS["seconds"],
       "runtime": str, "seed": OF_RUNS["seed"], "quiet": bool, **monitors.FLAGS}  # fmt: skip


def command(args: list[str]) -> int:
    """shoal tune SYSTEM"""
    from shoal import systems
    from shoal.cli.population import show, space_of

    if not args or args[0].startswith("--"):
        raise UsageError("shoal tune needs a system first, for example: shoal tune dqn --env CartPole-v1 --trials 40")
    name = ALIASES.get(args[0], args[0])
    module = systems.load(name)
    opts, resolved = resolve_flags(name, module, split(args[1:]), TUNE_FLAGS)
    chosen = monitors.read(opts)
    fields = opts.get("search") or ",".join(searchable(resolved.cfg))
    if not fields:
        none = f"{name} has none of {', '.join(FIELDS)} to search"
        raise UsageError(f"{none}: say which fields, by --search FIELD=LOW:HIGH")
    space = space_of(fields.replace(" ", ","), resolved.values(), name, ranged(type(resolved.cfg)), "--search")
    path = Path(opts.get("study", f"studies/{Path(name).stem}"))
    how: Values = {key: opts[key] for key in ("seconds", "runtime", "seed") if key in opts}
    study = Study(path, name, module, resolved, space, RunOptions.from_flags(how, checkpoint_every=0.0))
    tell = (lambda sentence: None) if opts.get("quiet") else show
    ended = study.search(opts.get("trials", 40), opts.get("slots", 1), tell, chosen)
    if not opts.get("quiet") and (path / BEST).is_file():
        best = study.open().best_trial
        print(f"best: trial {best.number}, {best.value:.4g}; shoal train {name} --config {path / BEST}")
    return EXIT_CODES.get(ended.reason, 0)
