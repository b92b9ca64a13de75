"""A member of a population: a run of its own that is trained in slices, each with the member's current
hyperparameters."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shoal.api import ShoalError, Tensors, UsageError
from shoal.envs import looking
from shoal.held import follows_links
from shoal.local.apart import apart, call_here
from shoal.metering.aggregator import Snapshot
from shoal.records.atomic_write import write_atomic
from shoal.records.checkpoint import FOLDER, RUN, Checkpoint, SaveOptions, completed, newest
from shoal.records.checkpoint_params import newest_params
from shoal.records.run_dir import RunDirectory, provenance
from shoal.records.run_lock import NAME as LOCK, RunLock
from shoal.roles.evaluator import Returns, evaluation_seed
from shoal.run.changes import fixed_at_start, shapes
from shoal.run.population.hyperparameters import Choice, Space
from shoal.runtime.launch import Launch
from shoal.settings.config import build, coerce_all
from shoal.settings.flags import unknown
from shoal.types import Values
from shoal.untrusted import parse_json, reached, read_text

WINDOW = 100  # episodes whose mean return is a member's score
ENDED = "slice.json"  # result of the last slice, for a population that was killed before it recorded it
FILES = ("metrics.csv", "metrics.jsonl", "performance.csv", "performance.jsonl", "episodes.csv")


def check_space(name: str, values: Values, space: Space) -> None:
    """Raise UsageError for a field of ``space`` that the named system lacks or that changes what a checkpoint must
    match, and for an interval with values that members cannot run with beside the other ``values``."""
    from shoal import systems

    with looking(apart):
        system = systems.load(name)
        plain = shapes_of(system, values)
        for field, one in space.items():
            if field not in values:
                raise unknown("field", field, list(values), f"--mutate of {name}")
            if field in ("envs", "total_envs", *fixed_at_start(system)):
                raise UsageError(f"{field} cannot be mutated: what members save is of the one they began with")
            refused: dict[str, UsageError] = {}
            for value in one.values if isinstance(one, Choice) else (one.low, one.high):
                try:
                    found = shapes_of(system, {**values, field: value})
                except UsageError as error:
                    refused[f"{value:g}" if isinstance(value, float) else str(value)] = error
                    continue
                if found != plain:
                    raise UsageError(f"{field} cannot be mutated: it changes the shapes that members exchange")
            if refused:
                where = "" if isinstance(one, Choice) else f" from {one.low:g} to {one.high:g}"
                which, why = ", ".join(refused), next(iter(refused.values()))
                raise UsageError(f"{field} cannot be mutated{where}, as members cannot run with {which}: {why}")


def shapes_of(system: Any, values: Values) -> Values:
    """Return the shapes of what members of this configuration exchange. Raises UsageError or WiringError if it makes no
    valid program."""
    cfg = build(system.Config, coerce_all(system.Config, values, "a member"))
    return {**shapes(system.program(cfg)), **cfg.kept()}


@dataclass(frozen=True)
class Slice:
    """A task: train the run in ``path`` until it has made ``until`` steps. values: every field of its configuration.
    evaluate: number of greedy episodes afterwards, whose returns replace those of the last training episodes as its
    score; 0: none. max_steps: of each of these, see ``policy.episode_limit``."""

    path: Path
    system: str
    values: Values
    origins: dict[str, str]
    preset: str
    seed: int
    until: int
    runtime: str = "serial"
    evaluate: int = 0
    max_steps: int = 0


@dataclass(frozen=True)
class Reached:
    """The result of a slice. returns: of its own last episodes (at most ``WINDOW``), none from before a copy, or of its
    evaluation; reason: as of any run; per_env: episodes that ended in each environment, inf if short ones are not more
    likely to be among them; why: for an evaluation, how many of its episodes did not end."""

    steps: int
    returns: list[float]
    seconds: float
    reason: str
    per_env: float = math.inf
    why: str = ""

    @property
    def score(self) -> float:
        """Return the mean return, or nan without an episode."""
        return sum(self.returns) / len(self.returns) if self.returns else math.nan


class _Episodes:
    """An observer that keeps and counts the slice's returns. skip: episodes left over from the slice before."""

    def __init__(self, skip: int) -> None:
        self.returns: list[float] = []
        self.ended = 0
        self._skip = skip

    def update(self, snapshot: Snapshot) -> None:
        new = [float(ret) for ret, *_ in snapshot.new_episodes]
        self.returns = [*self.returns, *new[self._skip :]][-WINDOW:]
        self.ended += len(new[self._skip :])
        self._skip = max(0, self._skip - len(new))


def train_slice(task: Slice) -> Reached:
    """Start the run, or continue it from its newest checkpoint, and save it at the end of the slice."""
    from shoal import systems
    from shoal.program import draw
    from shoal.run.options import RunOptions
    from shoal.run.runtimes import make_runtime

    torch.set_num_threads(1)
    system = systems.load(task.system)
    cfg = build(system.Config, coerce_all(system.Config, task.values, "population.json"))
    with looking(call_here if task.runtime == "serial" else apart):
        program = system.program(cfg)
    try:
        checkpoint, directory = _open(task.path)
    except UsageError as error:  # the run exists, so this is worth another try, unlike an invalid configuration
        raise ShoalError(str(error)) from None
    try:
        if checkpoint is not None:
            checkpoint.check_fits(program)
            directory.go_on(checkpoint)
            if checkpoint.steps >= task.until:  # a slice that failed after its training, or that was not recorded
                if (ended := _ended(task, checkpoint.steps)) is not None:
                    return ended
                saved = newest_params(task.path / FOLDER, program.policy_channel().name) if task.evaluate else None
                if saved is None:
                    return Reached(checkpoint.steps, [], 0.0, "steps")
                played = _evaluate(task, system, cfg, saved[1], saved[0], checkpoint.steps)
                return Reached(checkpoint.steps, [*played], 0.0, "steps", why=played.why)
        options = RunOptions(runtime=task.runtime, seed=task.seed, checkpoint_every=0.0, quiet=True)
        settings = {
            "system": task.system, "config": task.values, "origins": task.origins, "preset": task.preset,
            "actors": cfg.num_actors(), "policy": program.policy_channel().name, **options.to_json(task.until),
        }  # fmt: skip
        drawings = {"program.mmd": draw.mermaid(program), "program.txt": draw.text(program)}
        directory.describe(settings, drawings, _provenance(task.system, str(task.values["env"])))
        pending, before = 0, 0.0
        if checkpoint is not None:
            with checkpoint.fitting(RUN):
                counted = checkpoint.read(RUN)["aggregator"]
                # not the seconds of the manifest, in which the writing of the checkpoint is included
                pending, before = len(counted["new_episodes"]), float(counted["seconds"])
        episodes = _Episodes(pending)
        saving = SaveOptions(task.path / FOLDER, 0.0, options.checkpoint_replay_gb * 1e9, launch=directory.lock.launch)
        report = make_runtime(task.runtime, options.hang_timeout).launch(program, Launch(
            seed=task.seed, stop=options.stop(task.until), run_dir=task.path,
            observers=[directory, episodes], saving=saving, resume=checkpoint, exact=False,
            went_back=directory.go_on,
        ))  # fmt: skip
        directory.finish(report)
        returns, why = episodes.returns, ""
        if task.evaluate and report.reason != "steps":
            returns = []  # training episodes are not comparable with its score
        elif task.evaluate:
            params = report.params[program.policy_channel().name]
            played = _evaluate(task, system, cfg, params, report.updates, report.steps)
            returns, why = [*played], played.why
        whole = bool(returns) and bool(task.evaluate or cfg.whole_episodes)
        per_env = math.inf if whole else episodes.ended / (cfg.envs * cfg.num_actors())
        reached = Reached(report.steps, returns, report.seconds - before, report.reason, per_env, why)
        if report.reason == "steps":
            noted = {"until": task.until, "steps": reached.steps, "returns": returns, "seconds": reached.seconds}
            with contextlib.suppress(OSError):  # a full disk
                write_atomic(task.path / ENDED, json.dumps(noted) + "\n")
        return reached
    finally:
        directory.close()


def _ended(task: Slice, steps: int) -> Reached | None:
    """Return the result of this slice if it ended with the checkpoint of ``steps``, or None if it is unknown."""
    try:
        noted = parse_json(read_text(task.path / ENDED))
        if (noted["until"], noted["steps"]) != (task.until, steps):
            return None
        numbers = [noted["seconds"], *noted["returns"]]
        if not all(type(x) in (int, float) and math.isfinite(x) for x in numbers):
            return None
        return Reached(steps, list(noted["returns"]), noted["seconds"], "steps")
    except (OSError, ValueError, LookupError, TypeError, OverflowError):
        return None


def _evaluate(task: Slice, system: Any, cfg: Any, params: Tensors, updates: int, steps: int) -> Returns:
    """Return the returns of ``task.evaluate`` greedy episodes with these parameters."""
    from shoal.policy.policy import play

    agent = system.agent(cfg, task.seed)
    agent.load(params, updates)
    return play(agent, cfg, task.evaluate, evaluation_seed(task.seed, steps), True, envs=8, max_steps=task.max_steps)


@functools.cache  # otherwise each slice would start git twice
def _provenance(*code: str) -> Values:
    return provenance(code)


def _open(path: Path) -> tuple[Checkpoint | None, RunDirectory]:
    """Return the newest checkpoint (None: there is none, and the run starts anew) and the directory."""
    if completed(path / FOLDER):
        # the population was checked as a whole: as its user trusts it, so does each member
        return newest(path / FOLDER), RunDirectory.reopen(path, trust=follows_links(path))
    if path.exists():  # left by a slice that was killed before its first checkpoint
        with reached(path.parent) as members:
            RunLock(path).release()  # raises UsageError if the run is still going on
            shutil.rmtree(members / path.name)
    if not path.parent.is_dir():
        raise ShoalError(f"the directory of the population in '{path.parent.parent}' is gone")
    return None, RunDirectory(path)


def copy_member(parent: Path, child: Path, steps: int) -> int:
    """Make ``child`` a copy of ``parent`` at its checkpoint of ``steps`` (or its newest): networks, optimiser,
    statistics, counters and metric files. Return the checkpoint's steps. The parent may continue meanwhile. Raises
    UsageError for links in a population that follows none."""
    with reached(child.parent) as members:
        new = members / f".{child.name}.new"
        try:
            return _copy_member(parent, members / child.name, new, steps)
        finally:
            shutil.rmtree(new, ignore_errors=True)


def _copy_member(parent: Path, child: Path, new: Path, steps: int) -> int:
    cause: Exception | None = None
    for _ in range(5):
        shutil.rmtree(new, ignore_errors=True)
        wanted = parent / FOLDER / f"{steps:012d}"
        source = wanted if (wanted / "manifest.json").is_file() else newest(parent / FOLDER).path
        try:
            with reached(source) as there:
                shutil.copytree(there, new / FOLDER / source.name, symlinks=True)
        except (FileNotFoundError, shutil.Error) as error:  # removed when the parent completed its next one
            cause = error
            continue
        break
    else:
        raise ShoalError(f"the checkpoint of '{parent}' cannot be copied to '{child}': {cause}")
    with reached(parent) as there:
        for name in FILES:
            shutil.copy(there / name, new / name, follow_symlinks=False)
        # the child keeps its launch number, and so its sequence of seeds
        for name, of in ((LOCK, child), ("config.json", there)):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(of / name, new / name, follow_symlinks=False)
    os.chmod(new, 0o700)
    old = child.with_name(f".{child.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if child.exists():
        os.rename(child, old)
    os.rename(new, child)
    shutil.rmtree(old, ignore_errors=True)
    return int(source.name.partition(".")[0])  # the name of a checkpoint begins with its steps
