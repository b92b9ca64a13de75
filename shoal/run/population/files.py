"""The files of a population with its setup and progress. Another user may have written them, so contents are checked
before use."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from shoal.api import UsageError
from shoal.records.damage import read_json, reading
from shoal.run.population.controller import Rules
from shoal.run.population.hyperparameters import Choice, Interval, Space
from shoal.run.trust import check as check_trust
from shoal.settings.config import coerce_all
from shoal.settings.flags import expect, ranged
from shoal.settings.ranges import Count, Finite, Natural, Range
from shoal.types import Values
from shoal.untrusted import brief, require_plain
from shoal.words import counted

FILE, STATE, SCORES, LINEAGE = "population.json", "state.json", "scores.csv", "lineage.csv"
Steps = Annotated[int, Range("an integer from 0 to 2**53", lambda n: 0 <= n <= 2**53)]
MAX_MEMBERS = 10_000
Members = Annotated[int, Range(f"an integer from 1 to {MAX_MEMBERS}", lambda n: 1 <= n <= MAX_MEMBERS)]
MEMBER: Values = {
    "index": Steps, "values": dict, "step": Steps, "trained": Steps, "turn": Steps, "score": Finite | None,
    "samples": list[Finite], "lost": bool,
}  # fmt: skip
COPY: Values = {
    "child": Steps, "parent": Steps, "step": Steps, "parent_step": Steps, "score": Finite | None,
    "parent_score": Finite | None, "before": dict, "after": dict,
}  # fmt: skip


@dataclass(frozen=True)
class Setup:
    """The contents of ``population.json``. values, origins, preset: the configuration that members share; space: the
    fields in which they differ; slots: processes, each of which trains one member at a time; evaluate, max_steps: as in
    ``Slice``."""

    system: str
    values: Values
    origins: dict[str, str]
    preset: str
    space: dict[str, Values]
    size: Members
    rules: Values
    steps: Count
    slots: Members
    seed: Natural
    runtime: Literal["serial", "local"] = "serial"
    evaluate: Natural = 0
    max_steps: Natural = 0

    def interval_space(self) -> Space:
        """Return ``space`` as an Interval or a Choice for each hyperparameter."""
        made: dict[str, Interval | Choice] = {}
        for name, fields in self.space.items():
            made[name] = Choice(tuple(fields["values"])) if "values" in fields else Interval(**fields)
        return made


def is_population(path: Path) -> bool:
    """Return True if a directory holds a population rather than a run."""
    return (path / FILE).is_file()


def member_path(path: Path, index: int) -> Path:
    """Return the run directory of one member."""
    return path / "members" / f"{index:03d}"


def best_member(path: Path) -> Path:
    """Return the run directory of the member with the highest score. A member that was just copied has no score. Raises
    UsageError if none has."""
    with reading(path / STATE):
        members = _members(read_json(path / STATE, "state", ("members",))["members"])
    scored = [(float(m["score"]), int(m["index"])) for m in members if m["score"] is not None]
    if not scored:
        raise UsageError(f"no member of the population in '{path}' has a score yet")
    return member_path(path, max(scored, key=lambda m: m[0])[1])


def read_setup(path: Path, trust: bool) -> Setup:
    """Return the setup of the population in ``path``. Raises UsageError if it would run a stranger's code (see
    ``run.trust``) or write through links, and ShoalError if the file is damaged."""
    if path.is_dir():
        require_plain(path, trust, writing=True)
    needed = [f.name for f in dataclasses.fields(Setup) if f.default is dataclasses.MISSING]
    facts = read_json(path / FILE, "population", needed)
    with reading(path / FILE):
        setup = Setup(**_typed(ranged(Setup), {name: value for name, value in facts.items() if name != "format"}))
        space = setup.interval_space()
        if missing := [name for name in space if name not in setup.values]:
            raise ValueError(f"its space has {brief(missing[0])}, its values have not")
        rules = _typed(ranged(Rules), setup.rules)
        Rules(**rules)
        for one in space.values():
            for number in () if isinstance(one, Choice) else (one.low, one.high):
                _expect(Finite, number, "an interval")
    setup = dataclasses.replace(setup, rules=rules)
    check_trust(path, setup.system, setup.values, trust)
    for name, one in space.items():
        for value in one.values if isinstance(one, Choice) else ():
            check_trust(path, setup.system, {**setup.values, name: value}, trust)
    return setup


def read_state(path: Path, setup: Setup, trust: bool) -> Values:
    """Return the progress of the population in ``path``, {} before its first slice. The hyperparameters of each member
    and copy are checked against the space. Raises as ``read_setup``."""
    from shoal import systems

    if not (path / STATE).is_file():
        return {}
    state = read_json(path / STATE, "state", ("members", "lineage", "generator"))
    with reading(path / STATE):
        members = _members(state["members"])
        if len(members) != setup.size:
            raise ValueError(f"it has {counted(len(members), 'member')} instead of {setup.size}")
        lineage = [_typed(COPY, copy) for copy in _list(state["lineage"])]
        if any(max(copy["child"], copy["parent"]) >= setup.size for copy in lineage):
            raise ValueError("a copy is of a member that there is not")
        sizes = {name: _expect(Steps, size, name) for name, size in dict(state.get("sizes", {})).items()}
        if foreign := sizes.keys() - {SCORES, LINEAGE}:
            raise ValueError(f"{brief(min(foreign))} is no file of a population's scores or copies")
    different = _different([*(m["values"] for m in members), *(c[k] for c in lineage for k in ("before", "after"))])
    for values in different:
        with reading(path / STATE):
            _within(setup, values)
        check_trust(path, setup.system, {**setup.values, **values}, trust)
    config = systems.load(setup.system).Config
    for values in different:
        coerce_all(config, {**setup.values, **values}, f"a member in {path / STATE}")
    return {**state, "members": members, "lineage": lineage, "sizes": sizes}


def _members(found: Any) -> list[Values]:
    """Return the members in a state, in their order. Older states lack ``trained``."""
    if len(_list(found)) > MAX_MEMBERS:
        raise ValueError(f"it has {counted(len(found), 'member')}, at most {MAX_MEMBERS:,} are read")
    members = [_typed(MEMBER, {"trained": m["step"], **m}) for m in found]
    if any(m["index"] != i for i, m in enumerate(members)):
        raise ValueError("its members are not numbered from 0 on")
    return members


def _within(setup: Setup, values: Values) -> None:
    """Raise ValueError unless these are hyperparameters of the population's space: within it, or the configured values,
    with which the first member begins."""
    space = setup.interval_space()
    if values.keys() != space.keys():
        raise ValueError(f"a member differs by {brief(list(values))} instead of {brief(list(space))}")
    for name, value in values.items():
        one, configured = space[name], setup.values[name]
        if type(value) is type(configured) and value == configured:
            continue
        if isinstance(one, Choice):
            fits = any(type(value) is type(known) and value == known for known in one.values)
        else:
            fits = type(value) in (int, float) and one.low <= value <= one.high
        if not fits:
            raise ValueError(f"a member has {name} {brief(value)}, which is not in the population's space")


def _typed(hints: Values, facts: Any) -> Values:
    """Return the ``facts`` of an object in a file, converted by their hints. Raises ValueError for other names or
    types."""
    if not isinstance(facts, Mapping):
        raise ValueError(f"expected names with values, found {brief(facts)}")
    if foreign := [name for name in facts if name not in hints]:
        raise ValueError(f"it has {brief(foreign[0])}")
    return {name: _expect(hints[name], value, name) for name, value in facts.items()}


def _expect(hint: Any, value: Any, name: str) -> Any:
    """Return ``value`` checked by ``settings.flags.expect``. Unlike on a command line, a number in quotes is
    rejected."""
    try:
        found = expect(hint, value, f"'{name}'")
    except UsageError as error:
        raise ValueError(str(error)) from None
    if any(isinstance(a, str) and not isinstance(b, str) for a, b in zip(_flat(value), _flat(found), strict=True)):
        raise ValueError(f"'{name}' is text: {brief(value)}")
    return found


def _flat(value: Any) -> Iterator[Any]:
    yield from value if isinstance(value, (list, tuple)) else [value]


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"expected a list, found {brief(value)}")
    return value


def _different(all_values: list[Values]) -> list[Values]:
    """Return the different values, each once."""
    return list({repr(sorted(values.items())): values for values in all_values}.values())
