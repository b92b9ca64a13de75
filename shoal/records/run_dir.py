"""The directory of a run: its configuration, drawings and versions, and its results (metrics, parameters)."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from shoal import machine, own_code
from shoal.api import ShoalError, UsageError
from shoal.held import guarded
from shoal.metering.aggregator import MOST_INFOS, Snapshot
from shoal.paths import fixed, require_new, shown
from shoal.records import checkpoint
from shoal.records.atomic_write import write_atomic
from shoal.records.checkpoint import Checkpoint
from shoal.records.config_size import require_moderate
from shoal.records.damage import read_json, reading
from shoal.records.logs import RunLog
from shoal.records.metric_files import MetricFiles
from shoal.records.param_files import NEWEST, save_params
from shoal.records.presence import Presence
from shoal.records.report import Report
from shoal.records.run_lock import RunLock, require_unlocked
from shoal.types import Values
from shoal.untrusted import RUN_FORMAT, LeadsElsewhere, read_text, require_plain

NO_OVERWRITE = "; a run never overwrites another"
PACKAGES = ("torch", "numpy", "gymnasium", "ale-py", "envpool", "mujoco")

# never written through a link, even in a trusted run
NO_LINKS = ("run.lock", "*.csv", "*.jsonl", "best", "newest", "videos", "dumps", "logs", "logs/*.log")

log = logging.getLogger("shoal.runtime")


@contextlib.contextmanager
def new_directory(system: str, env: str, seed: int, root: Path = Path("runs")) -> Iterator[Path]:
    """Create a new, empty directory under ``runs`` and yield it. Creation is one step, so runs that start together get
    different ones. If the block raises before anything is written, the directory is removed."""
    parts = (Path(system).stem, re.sub(r"[^A-Za-z0-9_.-]+", "-", env).strip("-"), time.strftime("%Y%m%d-%H%M%S"), seed)
    base = fixed(root) / "-".join(map(str, parts))
    made = not root.exists()
    path, n = base, 2
    while True:
        try:
            path.mkdir(parents=True, mode=0o700)
            break
        except FileExistsError:
            path, n = base.with_name(f"{base.name}-{n}"), n + 1
        except OSError as error:
            raise UsageError(f"cannot create the run directory '{shown(path)}': {error.strerror}") from None
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):  # it is not empty
            path.rmdir()
            if made:
                root.rmdir()


class RunDirectory:
    """Creates ``path`` (mode 0700) and, as an observer of the run, writes its metrics.

    A full disk does not stop training: rows that cannot be written are reported once and left out.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        self._files: MetricFiles | None = None
        self._last: Snapshot | None = None
        self._failed, self._refused = False, False
        self._outdated: list[Path] = []  # files that a resumed run replaces when it writes its first row
        self._before: bytes | None = None  # config.json of a resumed run before it is changed
        # whether this process created the directory; None: the run existed before
        self._made: bool | None = not self.path.exists()
        require_unlocked(self.path)
        require_new(self.path, NO_OVERWRITE)
        try:
            with guarded(self.path.parent) as parent:
                (parent / self.path.name).mkdir(parents=True, mode=0o700, exist_ok=True)
                (parent / self.path.name).chmod(0o700)
            self.lock, self.present = RunLock(self.path), Presence(self.path)
            self._files = MetricFiles(self.path)
            self._log = RunLog(self.path)
        except UsageError:  # another process has created a run there meanwhile
            raise
        except BaseException as error:  # a full disk or an interrupt: an empty directory is removed
            self._close_files()
            if self._made:
                with contextlib.suppress(OSError), guarded(self.path.parent) as parent:
                    shutil.rmtree(parent / self.path.name, ignore_errors=True)
            if not isinstance(error, OSError):
                raise
            raise UsageError(f"cannot create the run directory '{shown(self.path)}': {error.strerror}") from None

    @classmethod
    def reopen(cls, path: Path, trust: bool) -> RunDirectory:
        """Return the locked directory of an earlier run. Nothing is changed before ``go_on``. Raises UsageError if the
        run is still going on, or if the directory contains links and ``trust`` is false."""
        if not path.is_dir():
            raise UsageError(f"no such run directory: '{shown(path)}'")
        if not (path / "config.json").is_file():
            raise UsageError(f"'{shown(path)}' holds no run: there is no config.json")
        require_plain(path, trust, writing=True)
        if link := next((file for pattern in NO_LINKS for file in path.glob(pattern) if file.is_symlink()), None):
            raise UsageError(
                f"'{shown(link)}' is a symbolic link: of what a run goes on to write, only its checkpoints may lie "
                "elsewhere; put the file or folder itself there"
            )
        out = cls.__new__(cls)
        out.path, out._failed, out._refused, out._made, out._files, out._last = path, False, False, None, None, None
        with out._writable():
            out.lock, out._log, out.present = RunLock(path), RunLog(path), Presence(path)
        with reading(path / "config.json"):
            out._outdated, out._before = [], read_text(path / "config.json").encode()
        return out

    def go_on(self, after: Checkpoint) -> None:
        """Continue from a checkpoint and remove everything that was written after it."""
        self._close_files()
        with self._writable():
            self.lock.at_least(int(after.manifest["launch"]) + 1)
            checkpoint.clean(after.path.parent)
            self._files = MetricFiles(self.path, int(after.manifest["row"]))
        self._outdated = [self.path / name for name in ("report.json", "params.json", NEWEST)]

    @contextlib.contextmanager
    def _writable(self) -> Iterator[None]:
        """Raise UsageError if the block cannot write to an existing directory: no permission, no space, or a link."""
        try:
            yield
        except OSError as error:
            name = f" ('{Path(error.filename).name}')" if isinstance(error.filename, str) else ""
            raise UsageError(f"cannot go on in '{shown(self.path)}': {error.strerror or error}{name}") from None

    def describe(
        self, config: Mapping[str, Any], drawings: Mapping[str, str], made_with: Mapping[str, Any] | None = None
    ) -> None:
        """Write ``config.json`` (with versions, hardware and git commit) and the program's drawings.

        made_with: the result of ``provenance`` if it is known; None: computed here. Raises UsageError for settings that
        are too large to be read again.
        """
        if made_with is None:
            made_with = provenance([str(config.get("system", "")), str(config.get("config", {}).get("env", ""))])
        facts = {"format": RUN_FORMAT, **config, **made_with}
        try:
            require_moderate(facts)
        except ValueError as error:
            raise UsageError(f"the settings of a run are kept in config.json: {error}") from None
        self._write("config.json", json.dumps(facts, indent=2, default=str) + "\n")
        for name, drawing in drawings.items():
            self._write(name, drawing)

    def update(self, snapshot: Snapshot) -> None:
        """Write a row of metrics. Raises DirectoryGone if the directory no longer exists."""
        self.present.require()
        assert self._files is not None
        if snapshot.left_out and not (self._last and self._last.left_out):
            log.warning(
                "the environment's info has had more than %d names of numbers: '%s' and other new ones are no metrics",
                MOST_INFOS, snapshot.left_out,
            )  # fmt: skip
        self._last, self._before = snapshot, None
        while self._outdated:
            path = self._outdated.pop()
            shutil.rmtree(path, ignore_errors=True) if path.name == NEWEST else path.unlink(missing_ok=True)
        try:
            self._files.update(snapshot)
        except OSError as error:
            if not self._failed:
                log.warning("cannot write metrics to '%s': %s (training goes on, rows are left out)", self.path, error)
            self._failed = True
        else:
            if self._failed:
                log.warning("metrics are written to '%s' again", self.path)
            self._failed = False

    def finish(self, report: Report) -> None:
        """Write the parameters and ``report.json``. The metric files are complete."""
        self.present.require()
        try:
            save_params(self.path, report)
        except OSError as error:
            raise ShoalError(f"what was learnt cannot be saved in '{self.path}': {error}") from error
        shutil.rmtree(self.path / NEWEST, ignore_errors=True)
        self.report(report)
        self._close_files()

    def failed(self, error: BaseException) -> None:
        """Write to ``report.json`` that the run failed, and why, if it can be written.

        A new run that was refused, or ended before ``describe``, is removed on ``close``. A resumed run that failed
        before its first row gets its earlier settings back.
        """
        begun = self._last is not None and self._last.steps
        empty = isinstance(error, UsageError) or not (self.path / "config.json").exists()
        self._refused = self._made is not None and not begun and empty
        if self._refused or not self.present.holds():
            return
        if self._before is not None:
            with contextlib.suppress(ShoalError):
                self._write("config.json", self._before)
        report = Report("failed", 0, 0, 0.0, math.nan, 0)
        if self._last is not None:
            report = Report.of("failed", self._last)
        elif self._outdated:  # it did not reach its first row, so the earlier files are still valid
            with contextlib.suppress(ShoalError, OSError):
                report = read_report(self.path) or report
        with contextlib.suppress(ShoalError):
            self.report(replace(report, reason="failed", error=f"{error}" or type(error).__name__))

    @property
    def advanced(self) -> bool:
        """Return True if the run has made a step that it can be resumed from."""
        return self._last is not None and self._last.steps > 0

    def close(self) -> None:
        self._log.close()
        self._close_files()
        self.lock.release()
        if self._refused and self.present.holds():
            for path in self.path.iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            if self._made:
                self.path.rmdir()

    def _close_files(self) -> None:
        with contextlib.suppress(OSError):  # a full disk, which was reported before
            if self._files is not None:
                self._files.close()

    def report(self, report: Report) -> None:
        """Write ``report.json``."""
        self._write("report.json", json.dumps({"format": RUN_FORMAT, **report.to_json()}, indent=2) + "\n")

    def _write(self, name: str, content: str | bytes) -> None:
        try:
            write_atomic(self.path / name, content)
        except OSError as error:
            raise ShoalError(f"cannot write '{self.path / name}': {error.strerror}") from None


def read_report(path: Path) -> Report | None:
    """Return how the run in ``path`` ended, or None if it has no report."""
    file = path / "report.json"
    try:
        facts = read_json(file, "report")
    except LeadsElsewhere:
        raise
    except UsageError:  # there is none, or a resumed run has removed it
        return None
    with reading(file):
        return Report.from_json(facts)


# ----------------------------------------------------------------------------------- provenance
def provenance(code: Sequence[str] = ()) -> Values:
    """Return what a run is made with: versions, hardware and the git commit. The commit is that of the user's own
    ``code`` (modules and files), of the script that runs, or else of Shoal."""
    return {"versions": versions(), "hardware": machine.hardware(), "git": git_commit(_folders(code))}


@functools.cache  # each takes a millisecond
def versions() -> dict[str, str]:
    out = {"python": platform.python_version()}
    for name in ("shoal", *PACKAGES):
        try:
            out[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return out


def _folders(code: Sequence[str]) -> Iterator[Path]:
    """Yield the folders of code that this process runs anyway."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    files = [own_code.origin(name) for name in code if ":" in name or name.endswith(".py")]
    for file in (*files, script, __file__):
        if file is not None and Path(file).is_file():
            yield Path(file).resolve().parent


def git_commit(folders: Iterable[Path]) -> str | None:
    """Return the commit of the first of these folders that is in git, with ``+changes`` if it is not clean, or None.

    git runs programs that a repository's configuration names (monitors, hooks, filters). It is therefore called only in
    folders whose code runs anyway, and without monitors and hooks.
    """
    quiet = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "--no-optional-locks")
    asked = (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno", "--ignore-submodules=all"))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    for folder in folders:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            head, changes = (
                subprocess.run(
                    ["git", "-C", str(folder), *quiet, *words], capture_output=True, text=True, timeout=5, check=True,
                    env={**environ, "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"},
                ).stdout.strip()
                for words in asked
            )  # fmt: skip
            return head + ("+changes" if changes else "")
    return None
