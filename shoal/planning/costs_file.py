"""Reading a file of costs, which somebody else may have written: every number is looked at before it is simulated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from shoal.api import UsageError
from shoal.planning.costs import FORMAT, Costs, Sized
from shoal.simulation import Behaviour, Op, Step, Times
from shoal.simulation.behaviour import Kind
from shoal.types import Values
from shoal.untrusted import brief, counter, excerpt, number, parse_json, read_text

MAX_SECONDS = 1e6  # of one piece of work
MIN_CYCLE_SECONDS = 1e-6  # of all steps of a cycle: below, the simulated clock would stand still
MAX_CORES = 100_000
MAX_AMOUNT = 1e15  # of anything else: bytes, shares, counts


def read(path: Path) -> Costs:
    """Costs from a file. UsageError where it is not one."""
    try:
        facts = dict(parse_json(read_text(path)))
        if facts.pop("format") != FORMAT:
            raise ValueError("another format")
        roles = {name: [_sized(one) for one in _filled(found)] for name, found in facts.pop("roles").items()}
        shapes = {name: [counter(n) for n in shape] for name, shape in facts.pop("network").items()}
        cores, busy = counter(facts.pop("cores")), _amount(facts.pop("busy"))
        if not 1 <= cores <= MAX_CORES or not 0 < busy <= 1:
            raise ValueError(f"expected cores above 0 and busy from 0 to 1, found {cores} and {busy:g}")
        texts = {name: _text(facts.pop(name)) for name in ("system", "env", "processor")}
        if facts:
            raise ValueError(f"no field is called {brief(next(iter(facts)))}")
        return Costs(network=shapes, cores=cores, busy=busy, roles=roles, **texts)
    except FileNotFoundError:
        raise UsageError(f"there is no file of costs '{path}'") from None
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        told = excerpt(f"{type(error).__name__}: {error}")
        raise UsageError(f"{path} is not a file of costs, as shoal plan writes: {told}") from None


def _sized(found: Values) -> Sized:
    return _amount(found["size"]), [_behaviour(one) for one in _filled(found["behaviours"])]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a text, found {brief(value)}")
    return value


def _amount(value: Any, most: float = MAX_AMOUNT) -> float:
    found = number(value)
    if not math.isfinite(found) or not 0 <= found <= most:
        raise ValueError(f"expected a number from 0 on to {most:g}, found {brief(value)}")
    return found


def _filled(values: Any) -> Any:
    if not isinstance(values, list) or not values:
        raise ValueError(f"expected a list that is not empty, found {brief(values)}")
    return values


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, found {brief(value)}")
    return value


def _times(values: Sequence[Any]) -> Times:
    return Times(tuple(_amount(v, MAX_SECONDS) for v in values) or (0.0,))


def _op(found: Values) -> Op:
    if found["do"] not in get_args(Kind):
        raise ValueError(f"no operation is called {brief(found['do'])}")
    if found["do"] != "work":
        return Op(found["do"], _text(found["port"]))
    stale = _times(found["stale"]) if "stale" in found else None
    phases = tuple((str(name), _amount(share)) for name, share in found["phases"].items())
    cores = counter(found["cores"])
    if not 1 <= cores <= MAX_CORES:
        raise ValueError(f"expected work of 1 to {MAX_CORES:,} cores, found {cores}")
    return Op("work", "", _times(found["busy"]), _times(found["idle"]), stale, phases, cores)


def _steps(found: Sequence[Values]) -> tuple[Step, ...]:
    return tuple(
        Step(tuple(_op(op) for op in step["ops"]), {str(n): _amount(v) for n, v in step["counts"].items()})
        for step in found
    )


def _behaviour(found: Values) -> Behaviour:
    cycle, preempt = _steps(_filled(found["cycle"])), found["preempt"]
    taken = sum(op.busy.mean + op.idle.mean for step in cycle for op in step.ops)
    if taken < MIN_CYCLE_SECONDS:
        raise ValueError(f"the steps of a role take {taken:g} s, expected {MIN_CYCLE_SECONDS:g} s at least")
    if preempt is not None:
        enough, least = (_amount(share, 1.0) for share in preempt)
        if not any(op.do == "put" for step in cycle for op in step.ops):
            raise ValueError("'preempt' is of steps that put on a board, and none does")
    return Behaviour(
        cycle, _steps(found["first"]), tuple(_op(op) for op in found["start"]), _times(found["insert"]),
        _amount(found["steps_per_update"]), _truth(found["regular"]), None if preempt is None else (enough, least),
    )  # fmt: skip
