"""The torchrun runtime: this process is a rank, steps it, and talks with the others by torch.distributed alone."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar, cast

import torch

from shoal.api import Context, Diverged, RoleFailed, ShoalError, Stopped, UsageError
from shoal.local import processes
from shoal.local.failures import cause_of
from shoal.metering.aggregator import Aggregator
from shoal.metering.recorder import OTHER, Telemetry, recorder as recorder_of
from shoal.program import Program, RoleSpec, held
from shoal.records import dumps
from shoal.records.checkpoint import Checkpoint, Unloadable
from shoal.runtime import memory, seeds
from shoal.runtime.all_reduce import ReduceEnd
from shoal.runtime.interrupts import Interrupts
from shoal.runtime.launch import CannotGoOn, Launch, Report, run_from_newest
from shoal.serial.channels import SerialParams
from shoal.torchrun import checkpoint
from shoal.torchrun.ends import BoardEnd, FirstParams, Remarks
from shoal.torchrun.group import Group
from shoal.torchrun.place import Place, place
from shoal.types import Values
from shoal.words import counted

log = logging.getLogger("shoal.runtime")
Loaded = TypeVar("Loaded")

LIVES = 1_000_000  # generations that one launch of a run may use, as in the local runtime
FINAL_CHECKPOINT = 0  # number of the checkpoint at the end of a run
ROWS = 7_200  # metric files of a run of days grow with the logarithm of its length
ENDS = ("steps", "updates", "seconds", "episode_return", "observer")  # why a run ends, by ``Stop.reached``

_groups: list[Group] = []  # the one of this process, once it was needed


def group(hang_timeout: float = 0.0) -> Group:
    """The group of the processes that torchrun started; made once, when all of them ask for it."""
    found = place()
    if found is None:
        raise UsageError("torchrun has not started this process: torchrun --nproc-per-node N -m shoal train ...")
    if not _groups:
        _groups.append(Group(found, hang_timeout))
    return _groups[0]


class TorchrunRuntime:
    """Launches a program of equal ranks, each of which is one of torchrun's processes. All of them call ``launch``;
    what the first is given of observers, directories and limits of time is for all of them.

    hang_timeout: seconds that a rank may give no sign of life; 0: for ever.
    """

    def __init__(self, *, hang_timeout: float = 60.0) -> None:
        found = place()
        if found is None:
            raise UsageError(
                "the runtime 'torchrun' needs processes that torchrun started: "
                "torchrun --nproc-per-node N -m shoal train SYSTEM ..."
            )
        self.place, self.hang_timeout = found, hang_timeout

    def check(self, program: Program) -> None:
        """See ``runtime.launch.Runtime``: whether it is made of ranks, as many as torchrun has started."""
        program.validate()
        roles = [role for role in program.roles if role.name != "evaluator"]
        kinds = sorted({channel.kind for channel in program.channels.values()} - {"reduce", "board", "params"})
        if len(roles) != 1 or kinds:
            has = f"channels of the kind {kinds[0]}" if kinds else f"the roles {', '.join(r.name for r in roles)}"
            raise UsageError(
                f"torchrun starts equal ranks, which share nothing but what they reduce; {program.name} has {has}: "
                "start it without torchrun (dd-ppo is a system of ranks)"
            )
        if len(program.roles) > 1:
            raise UsageError("--eval-every needs a process beside the ranks, and torchrun starts none: use shoal eval")
        role, ranks = roles[0], self.place.world
        if role.replicas != ranks:
            raise UsageError(
                f"torchrun has started {counted(ranks, 'process')}, each of which is a rank, but {program.name} has "
                f"{counted(role.replicas, 'rank')} (--actors): expected as many, for example --nproc-per-node "
                f"{role.replicas}"
            )
        seen = torch.cuda.device_count()
        if role.device.startswith("cuda") and (role.device != "cuda" or seen < self.place.local_world):
            raise UsageError(
                f"torchrun has started {counted(self.place.local_world, 'process')} on this machine, and each takes "
                f"a GPU of its "
                f"own (--device cuda), but PyTorch finds {seen}: expected --device cpu or fewer processes"
            )
        own = role.memory + held(program).get(role.name, 0) // role.replicas
        memory.check_fits({role.name: own * self.place.local_world})

    def launch(self, program: Program, launch: Launch) -> Report:
        """See ``runtime.launch.Runtime``. Raises RoleFailed, which names rank and host, where a rank fails, dies or
        hangs; or Stopped, where a rank before this one says so."""
        self.check(program)
        joined = group(self.hang_timeout)
        joined.role, joined.hang_timeout = program.roles[0].name, self.hang_timeout  # it may have been made before
        with Interrupts() as interrupts, _settings(program.roles[0]) as device:
            joined.join(device)
            with joined.breaking():
                report = self._run(program, launch, joined, interrupts, device)
            joined.leave()
        return report

    def _run(
        self, program: Program, launch: Launch, joined: Group, interrupts: Interrupts, device: torch.device
    ) -> Report:
        try:
            return run_from_newest(launch, lambda from_this: _Rank(program, from_this, joined, interrupts, device).go())
        except Unloadable:
            if self.place.first:
                raise
            raise Stopped("the first rank says which checkpoint cannot be loaded") from None


class _Rank:
    """One launch, as one of the ranks sees it."""

    def __init__(
        self, program: Program, launch: Launch, joined: Group, interrupts: Interrupts, device: torch.device
    ) -> None:
        self.program, self.launch, self.group, self.interrupts = program, launch, joined, interrupts
        self.spec, self.leads = program.roles[0], joined.place.first
        number = joined.share(launch.saving.launch if launch.saving is not None else 0)
        self.saving = replace(launch.saving, launch=number) if launch.saving is not None else None
        self.observers = [*launch.observers, *([launch.display] if launch.display is not None else [])]
        if not self.leads:
            self.observers = []
        self.aggregator, self.remarks = Aggregator(), Remarks(self._now)
        self.recorder = recorder_of(launch.spans)
        self.recorder.show = lambda phase: joined.beat()
        self.generation = number * LIVES
        rank = joined.place.rank
        self.before: dict[str, int] = {}
        if (resume := launch.resume) is not None:
            self.before = self._agreed(resume, lambda: checkpoint.counted_before(resume, program, rank))
        self.steps = 0 if launch.resume is None else launch.resume.steps  # of all ranks, as far as this one knows
        self.saved, self.stepped = 0, False
        self.ends = checkpoint.Ends()
        context = Context(
            self.spec.name, rank, self.spec.replicas, self.generation,
            seeds.life_seed(launch.seed, seeds.LAUNCH * number + rank), self.recorder,
            total_steps=launch.stop.steps, run_dir=launch.run_dir, counts=self.before, steps=lambda: self.steps,
        )  # fmt: skip
        self.role = self._telling(lambda: self.spec.make(context, **self._ports(device, number)))

    def go(self) -> Report:
        try:
            self._telling(self._begin)
            reason = self._telling(self._run)
            for end in self.ends.reducers.values():
                end.finish()
            if self.saving is not None:
                self._save(FINAL_CHECKPOINT)
            self._report()
            return self._result(self.group.share(reason))
        finally:
            with contextlib.suppress(Exception):  # the run has its result, or its error
                getattr(self.role, "close", lambda: None)()

    # --------------------------------------------------------------------------------------- pieces
    def _ports(self, device: torch.device, number: int) -> Values:
        """The ends of this rank's channels; ``number`` of the launch."""
        out: Values = {}
        for key, port in self.spec.ports.items():
            channel, rank = port.channel, self.group.place.rank
            if rank >= port.of(self.spec.replicas):
                out[key] = None
            elif channel.kind == "reduce":
                out[key] = ReduceEnd(self.group, channel, self.remarks, self.recorder, device)
                self.ends.reducers[channel.name] = out[key]
            elif channel.kind == "board":
                end = self.ends.boards.setdefault(channel.name, BoardEnd(self.group, channel, f"{number}"))
                end.place(*end.row)
                out[key] = end
            else:
                params = self.ends.params.setdefault(channel.name, SerialParams(channel))
                out[key] = params if port.direction == "write" else FirstParams(params, port)
        for channel in self.program.channels.values():
            if channel.kind == "params":
                self.ends.params.setdefault(channel.name, SerialParams(channel))
        return out

    def _begin(self) -> None:
        """From the beginning, or from a checkpoint; with the parameters that the first rank has."""
        if self.launch.resume is None:
            getattr(self.role, "start", lambda: None)()
        else:
            resume = self.launch.resume
            self._agreed(
                resume,
                lambda: checkpoint.load(resume, self.group, self.program, self.role, self.ends, self.aggregator),
            )
            if self.leads:
                self.launch.loaded()
        for name, params in self.ends.params.items():
            spec = self.program.channels[name].spec
            version = self.group.share(params.version)
            if version:
                empty = {k: torch.zeros(f.shape, dtype=getattr(torch, f.dtype)) for k, f in spec.items()}
                tensors = {k: params.published()[k].contiguous() for k in spec} if self.leads else empty
                self.group.spread(tensors)
                if not self.leads:
                    params.load_state_dict({"version": version, "tensors": tensors, "older": []})
        self.group.exchange(None)  # every row of a board is there
        for end in self.ends.reducers.values():
            end.put_again()

    def _run(self) -> str:
        """Step until the ranks agree that the run ends; returns why."""
        began = shown = saved = time.monotonic()
        while True:
            self.role.step()
            self.stepped = True
            self.recorder.enter(OTHER)
            self.group.beat()
            now = time.monotonic()
            if self.leads and now - shown >= max(self.launch.interval, (now - began) / ROWS):
                shown = now  # said until it is heard, and once
                self.remarks.say(report=1)
            if self.leads and self.saving is not None and 0 < self.saving.every <= now - saved:
                saved = now
                self.remarks.say(save=1)
            news = self.remarks.news()
            if news is None:
                continue
            self.steps = news["steps"]
            if reason := self._ended(news):
                return reason
            if news["report"]:
                shown = now
                self._report()
                if self.leads and (limit := self.launch.stop.reached(self.aggregator)):
                    self.remarks.say(ended=ENDS.index(limit) + 1)
            if news["save"]:
                saved = now
                self.saved += 1
                self._save(self.saved)

    def _ended(self, news: dict[str, int]) -> str:
        """Why the run ends after this round, by what all ranks said: the same for all of them; "": it goes on."""
        stop = self.launch.stop
        if news["interrupted"] or news["terminated"]:
            return "interrupted" if news["interrupted"] else "terminated"
        for name, limit in (("steps", stop.steps), ("updates", stop.updates)):
            if limit is not None and news[name] >= limit:
                return name
        return ENDS[news["ended"] - 1] if news["ended"] else ""

    def _now(self) -> dict[str, float]:
        """Return the figures that are sent with every item."""
        counts = {"steps": self._counted("env_steps"), "updates": self._counted("updates")}
        reason = self.interrupts.reason
        return {**counts, "interrupted": reason == "interrupted", "terminated": reason in ("terminated", "hung up")}

    def _counted(self, name: str) -> int:
        return self.before.get(name, 0) + self.recorder.totals.get(name, 0)

    def _report(self) -> None:
        """Bring the figures of all ranks to the first, and show them."""
        drained = self.group.gather(vars(self.recorder.drain()))
        if drained is None:
            return
        for index, telemetry in enumerate(drained):
            self.aggregator.add(self.spec.name, Telemetry(**telemetry), index)
        if self.observers and self.aggregator.changed:
            snapshot = self.aggregator.snapshot({}, memory.used())
            for observer in self.observers:
                observer.update(snapshot)

    def _save(self, number: int) -> None:
        assert self.saving is not None
        with self.recorder.phase("checkpoint"):
            self._report()  # so that the figures are those of this moment
            counted = {name: self._counted(name) for name in ("env_steps", "updates", "actions")}
            checkpoint.save(
                self.saving, number, self.group, self.program, self.role, self.ends, counted, self.aggregator
            )  # fmt: skip

    def _result(self, reason: str) -> Report:
        """Return what the first rank found, at all of them."""
        run = self.aggregator
        figures = self.group.share((run.steps, run.updates, run.seconds, run.episode_return, run.episodes))
        steps, updates, seconds, episode_return, episodes = figures
        params = {name: params.published() for name, params in self.ends.params.items() if params.version}
        return Report(
            reason=reason, steps=steps, updates=updates, seconds=seconds, episode_return=episode_return,
            episodes=episodes, params=params if self.leads else {},
        )  # fmt: skip

    def _agreed(self, source: Checkpoint, load: Callable[[], Loaded]) -> Loaded:
        """The result of ``load``. Unloadable in all ranks where one of them cannot load its part."""
        found, why = None, ""
        try:
            found = load()
        except Unloadable as error:
            why = error.why
        if failed := next(filter(None, self.group.exchange(why)), ""):
            raise Unloadable(source, failed)
        return cast("Loaded", found)

    def _telling(self, part: Any) -> Any:
        """The result of ``part``; the others hear of what goes wrong in it."""
        try:
            return part()
        except (RoleFailed, Stopped, Unloadable):
            raise  # another rank's failure, or one of all
        except Exception as error:
            resume = self.launch.resume
            if resume is not None and not self.stepped and not isinstance(error, (ShoalError, OSError, MemoryError)):
                log.info("failed", exc_info=True)
                error = CannotGoOn(resume, error)
            dump = dumps.save(error, self.launch.run_dir) if isinstance(error, Diverged) else ""
            self.group.failed(f"{type(error).__name__}: {error}")
            rank = self.group.place.rank
            cause = f"on the host {self.group.place.host}: {cause_of(error)}{dump}"
            raise RoleFailed(self.spec.name, rank, self.generation, None, cause) from error


@contextlib.contextmanager
def _settings(role: RoleSpec) -> Iterator[torch.device]:
    """This process as that of a rank, and its device: the GPU of its number on this machine, if it asks for one."""
    found: Place | None = place()
    assert found is not None
    threads = torch.get_num_threads()
    torch.set_num_threads(role.threads)
    torch.set_flush_denormal(True)  # as in the processes of the local runtime
    processes.keep_freed_memory()
    if role.device == "cuda":
        torch.cuda.set_device(found.local_rank)
    try:
        yield torch.device("cuda", found.local_rank) if role.device == "cuda" else torch.device("cpu")
    finally:
        torch.set_num_threads(threads)
