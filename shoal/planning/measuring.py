"""Measure the costs of a system on this machine: rehearsals at several sizes, alone and with all cores at work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from shoal.api import UsageError, WiringError
from shoal.local.apart import apart
from shoal.machine import cores, hardware
from shoal.planning.costs import Costs, network, size
from shoal.program import Program
from shoal.simulation import Behaviour
from shoal.words import counted

SECONDS = 14.0  # of rehearsals in all, beside the starts of their processes
MOST_ENVS = 256  # of one rehearsal: beyond, costs go on along a straight line
FEWEST_ACTORS = 8  # up to so many are tried until the program can be built
Measured = dict[str, tuple[float, list[Behaviour]]]


def measure(
    system: Any, cfg: Any, envs: Sequence[int], seconds: float = SECONDS, told: Callable[[str], None] = print
) -> Costs:
    """Costs of ``system`` under ``cfg``, with the fewest actors that it can have, of each of ``envs`` environments.

    envs: sizes for which costs are wanted, of which the least, the greatest and one between are measured. told: hears
    what is going on.
    """
    sizes = chosen(envs)
    programs = _programs(system, cfg, sizes)
    each = seconds / (len(programs) + 1)
    roles: dict[str, list[tuple[float, list[Behaviour]]]] = {}
    alone: list[Measured] = []
    for n, program in programs.items():
        told(f"measuring {program.name} with {counted(n, 'environment')} per actor, {each:.0f} s")
        alone.append(apart(partial(_rehearse, program, each, True)))
        for name, (bytes_, known) in alone[-1].items():
            if all(bytes_ != s for s, _ in roles.setdefault(name, [])):
                roles[name].append((bytes_, known))
    busy, last = 1.0, list(programs.values())[-1]
    if cores() > 1:
        told(f"measuring it with all {cores()} cores at work, {each:.0f} s")
        with ThreadPoolExecutor(cores()) as pool:
            jobs = [pool.submit(apart, partial(_rehearse, last, each, False)) for _ in range(cores())]
            together = [job.result() for job in jobs]
        busy = slowed(alone[-1], together)
    processor = str(hardware()["processor"])
    return Costs(cfg.system(), cfg.env, network(last), cores(), processor, busy, roles)


def chosen(envs: Sequence[int]) -> list[int]:
    """The sizes to measure: the least, the greatest and, if they are far apart, one between."""
    found = sorted({min(n, MOST_ENVS) for n in envs})
    if len(found) > 2 and found[-1] > 4 * found[0]:
        return [found[0], min(found[1:-1], key=lambda n: abs(n * n - found[0] * found[-1])), found[-1]]
    return [found[0], found[-1]] if len(found) > 1 else found


def small(system: Any, cfg: Any, envs: int) -> Program:
    """The program with as few actors as it can have, each with ``envs`` environments. Raises what the system raises."""
    for actors in range(1, FEWEST_ACTORS + 1):
        try:
            program: Program = system.program(replace(cfg, actors=actors, total_envs=0, envs=envs))
            program.validate()
            return program
        except (UsageError, WiringError):
            if actors == FEWEST_ACTORS:
                raise
    raise AssertionError


def _programs(system: Any, cfg: Any, sizes: Sequence[int]) -> dict[int, Program]:
    """Those of ``sizes`` that the system can have. UsageError if there are none."""
    out, why = dict[int, Program](), ""
    for n in sizes:
        try:
            out[n] = small(system, cfg, n)
        except (UsageError, WiringError) as error:
            why = str(error)
    if not out:
        raise UsageError(f"the costs cannot be measured: {why}")
    return out


def _rehearse(program: Program, seconds: float, teams: bool) -> Measured:
    """Rehearse in a process of its own, which is set up as the processes of a run are."""
    import torch

    from shoal.local import processes
    from shoal.planning.regularity import behaviour
    from shoal.planning.rehearsal import rehearse

    out: Measured = {}
    torch.set_num_threads(max(role.threads for role in program.roles))
    torch.set_flush_denormal(True)
    processes.keep_freed_memory()
    players = rehearse(program, seconds, teams)
    for role in program.roles:
        lockstep = [key for key, port in role.ports.items() if port.lockstep]
        known = [behaviour(player, lockstep) for player in players if player.name == role.name]
        if known:
            out[role.name] = size(program, role), known
    return out


def slowed(alone: Measured, together: Sequence[Measured]) -> float:
    """Speed of a core while all work, relative to one that works alone: from the work of the same roles. What several
    processes do together is left out."""
    one = several = 0.0
    for name, (_, known) in alone.items():
        for index, behaviour in enumerate(known):
            others = [found[name][1][index] for found in together]
            if all(len(other.cycle) == len(behaviour.cycle) for other in others):
                mine, theirs = _work(behaviour), [_work(other) for other in others]
                for place in {*mine}.intersection(*theirs):
                    one += mine[place]
                    several += sum(found[place] for found in theirs) / len(theirs)
    return min(1.0, max(0.2, one / several)) if several else 1.0


def _work(behaviour: Behaviour) -> dict[tuple[int, int], float]:
    """(step, operation) -> mean seconds of one core."""
    return {
        (i, k): op.busy.mean
        for i, step in enumerate(behaviour.cycle)
        for k, op in enumerate(step.ops)
        if op.do == "work" and op.cores == 1
    }
