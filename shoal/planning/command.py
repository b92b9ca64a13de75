"""``shoal plan``: how fast a system would be on machines of other sizes, and what would hold it back."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.api import UsageError, WiringError
from shoal.envs import looking
from shoal.local.apart import apart
from shoal.machine import cores
from shoal.paths import require_folder
from shoal.planning import costs_file, show
from shoal.planning.costs import Costs
from shoal.planning.measuring import SECONDS, measure
from shoal.planning.scan import Planner, Point, Row, advice, configured, knee, points
from shoal.records.atomic_write import write_output
from shoal.run.flags import resolve_flags
from shoal.settings.flags import coerce, describe, split
from shoal.settings.ranges import Envs, Natural, Parts, Positive, UpToAnHour
from shoal.simulation import Machine, machine as machines
from shoal.untrusted import excerpt
from shoal.words import counted

FLAGS = {
    "target": Positive, "costs": str, "machine": str,
    "out": str, "json": bool, "save-costs": str, "seconds": UpToAnHour, "seed": Natural,
}  # fmt: skip
SIZES = {"--actors": Parts, "--learners": Parts, "--nodes": Parts, "--envs": Envs}  # flags that take several numbers
ACTORS = (1, 2, 4, 8, 16)
SEARCH = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # actors that --target tries
EXAMPLE = "shoal plan needs a system first, for example: shoal plan impala --env CartPole-v1"


def command(args: list[str]) -> int:
    """shoal plan SYSTEM"""
    from shoal import systems
    from shoal.settings.other_names import ALIASES

    if not args or args[0].startswith("--"):
        raise UsageError(EXAMPLE)
    name = ALIASES.get(args[0], args[0])
    system = systems.load(name)
    groups = split(args[1:])
    sizes = [(flag, words) for flag, words in groups if flag in SIZES]
    rest = [g for g in groups if g not in sizes]
    wanted = {flag: counts(flag, words) for flag, words in sizes}
    opts, resolved = resolve_flags(name, system, rest, FLAGS)
    cfg, quiet = resolved.cfg, bool(opts.get("json"))
    if cfg.acts_by_server():
        raise UsageError("shoal plan knows actors that choose actions themselves, not a server: give --inference actor")
    machine = machines.read(Path(opts["machine"])) if "machine" in opts else None
    target, seconds = opts.get("target"), opts.get("seconds", SECONDS)
    _check_outputs(opts)
    actors = wanted.get("--actors") or list(SEARCH if target else ACTORS)
    nodes = wanted.get("--nodes", [1])
    if max(nodes) > 1 and machine is None:
        raise UsageError("several --nodes need --machine FILE.toml, which says how they are connected")
    if machine is not None and cfg.shares_gradient and not cfg.learner_processes:
        show.note(
            f"the learner's processes are counted by the {counted(cores(), 'core')} of this machine: "
            f"--learner-processes N says how many there are on the machine of {opts['machine']}"
        )
    todo = points(actors, wanted.get("--learners", [0]), nodes, wanted.get("--envs", [0]))

    def progress(row: Row) -> None:
        if not quiet:
            show.progress(row)

    with looking(apart):
        known = _costs(system, name, cfg, opts, todo, seconds, quiet)
        busy = known.busy
        planner = Planner(system, cfg, known, machine or Machine.here(cores(), busy), int(opts.get("seed", 0)))
        if target is not None:
            row = planner.smallest(target, todo, progress)
            rows = [row]
        else:
            rows = planner.rows(todo, progress)
    if all(row.figures is None for row in rows):
        raise UsageError(f"none of the sizes can be: {rows[0].why}")
    _tell(rows, known, cfg, opts, target)
    return 0


def _costs(
    system: Any, name: str, cfg: Any, opts: dict[str, Any], todo: Sequence[Point], seconds: float, quiet: bool
) -> Costs:
    """From a file, or measured here and kept."""
    if "costs" in opts:
        path = Path(opts["costs"])
        known = costs_file.read(path)
        known.check(cfg.system(), cfg.env, path)
        return known
    learners = max(point.learners for point in todo)  # several are joined by a channel that one does not have
    several = configured(cfg, Point(cfg.actors, learners)) if learners else cfg
    known = measure(system, several, envs_of(system, cfg, todo), seconds, (lambda text: None) if quiet else show.note)
    path = Path(opts.get("save-costs", "costs.json"))
    known.write(path)
    if not quiet:
        show.costs(known)
        show.note(f"kept in {path}: --costs {path} plans with them again")
    return known


def envs_of(system: Any, cfg: Any, todo: Sequence[Point]) -> list[int]:
    """The environments of an actor for which costs are needed: what an actor has and, where a batch is one message of
    each, what all have. UsageError if no point can be."""
    found, why = set(), ""
    for point in todo:
        try:
            made = configured(cfg, point)
            program = system.program(made)
        except (UsageError, WiringError) as error:
            why = why or str(error)
            continue
        found.add(made.envs)
        if any(port.each for role in program.roles for port in role.ports.values() if port.channel.kind == "queue"):
            found.add(made.envs * made.num_actors())
    if not found:
        raise UsageError(f"none of the sizes can be: {why}")
    return sorted(found)


def counts(flag: str, words: Sequence[str]) -> list[int]:
    """``1,2,4,8,...`` as numbers: after dots, on as the last two go on, to 16 times the last or to the largest."""
    text = ",".join(words)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    dots = parts[-1:] == ["..."]
    size = SIZES[flag]
    try:
        numbers: list[int] = [coerce(size, part) for part in (parts[:-1] if dots else parts)]
        if not numbers:
            raise ValueError
    except ValueError:
        wanted = describe(tuple[size, ...])  # type: ignore[valid-type]
        raise UsageError(f"{flag} expects {wanted}, such as 1,2,4,8, found {excerpt(text) or 'nothing'}") from None
    out = sorted(set(numbers))
    while dots and len(out) < 24 and out[-1] < 16 * numbers[-1]:
        following = out[-1] * 2 if len(out) < 2 or out[-1] % out[-2] == 0 else 2 * out[-1] - out[-2]
        try:
            out.append(coerce(size, following))
        except ValueError:
            break
    return out


def _check_outputs(opts: dict[str, Any]) -> None:
    if (out := opts.get("out")) is not None:
        if Path(out).suffix != ".svg":
            raise UsageError(f"--out expects a name that ends in .svg, found '{out}'")
        require_folder(Path(out))
    if "save-costs" in opts:
        require_folder(Path(opts["save-costs"]))


def _tell(rows: list[Row], known: Costs, cfg: Any, opts: dict[str, Any], target: float | None) -> None:
    bend = knee(rows)
    if opts.get("json"):
        told = {"system": known.system, "env": known.env, "cores": known.cores, "busy": known.busy,
                "rows": [row.as_json() for row in rows]}  # fmt: skip
        told["knee"] = None if bend is None else bend.point.actors
        print(json.dumps(told, indent=1))
    else:
        show.table(rows)
        last = next(row for row in reversed(rows) if row.figures is not None)
        assert last.figures is not None
        print(f"bottleneck of the largest: {last.figures.bottleneck()}")
        print(f"what would move it: {advice(last, cfg)}")
        if target is not None:
            print(f"the smallest that makes {target:,.0f} steps per second: {counted(last.point.actors, 'actor')}")
        elif bend is not None:
            print(f"knee: beyond {counted(bend.point.actors, 'actor')}, one more adds less than half of its share")
        for name in irregular(known):
            print(f"note: the steps of role '{name}' have no order that repeats; each is drawn as often as it was seen")
    if "out" in opts:
        from shoal.planning.picture import svg

        write_output(Path(opts["out"]), svg(rows, f"{known.system} on {known.env}"))
        print(opts["out"], file=sys.stderr if opts.get("json") else sys.stdout)


def irregular(known: Costs) -> list[str]:
    """Roles whose order of steps was not found."""
    return [name for name, found in known.roles.items() if any(not b.regular for _, bs in found for b in bs)]
