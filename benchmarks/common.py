"""What the benchmarks share: finding the peers, running both sides in turn, medians and ratios, what is written down.

A *side* is one command that prints its figures as one JSON line, the last that it prints. Peers have virtual
environments of their own, made by ``benchmarks/peers/setup.sh``, under ``$SHOAL_PEERS`` (default
``~/.cache/shoal-peers``); one that is missing is skipped with a message. Shoal runs in this interpreter's environment,
in a process of its own as well, so that both sides start from nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    from shoal.program import Channel
    from shoal.shm.layout import Plan

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SHOAL = "shoal"
LOAD_AT_START = os.getloadavg()[0]

Figures = dict[str, Any]
Case = TypeVar("Case")


@dataclass(frozen=True)
class Side:
    """One contender of a case: ``peer`` names its environment (``shoal``: this one), ``script`` and ``args`` the
    command; ``env``: environment variables on top; ``note``: its configuration in words."""

    peer: str
    script: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    name: str = ""  # in tables; default: the peer's

    @property
    def label(self) -> str:
        return self.name or self.peer


def parser(text: str | None, seconds: float, repeats: int = 3) -> argparse.ArgumentParser:
    """The options every benchmark has."""
    out = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--only", nargs="+", default=[], metavar="NAME", help="cases (and sides) whose name contains one")
    out.add_argument("--list", action="store_true", help="list the cases and their configurations, run nothing")
    out.add_argument("--seconds", type=float, default=seconds, help="of each measurement")
    out.add_argument("--repeats", type=int, default=repeats, help="rounds; every side runs once in each")
    out.add_argument("--smoke", action="store_true", help="a few seconds: does it work? writes no results")
    return out


def refuse(why: str) -> NoReturn:
    """End the command as one does that was typed wrong."""
    print(why, file=sys.stderr)
    sys.exit(2)


def chosen(cases: Mapping[str, Case], args: argparse.Namespace, smoke: Sequence[str]) -> dict[str, Case]:
    """The cases that ``--only`` names, without it all or, of a smoke run, ``smoke``; exits if there is none."""
    wanted = args.only or (smoke if args.smoke else [""])
    found = {name: case for name, case in cases.items() if any(word in name for word in wanted)}
    if not found:
        refuse(f"no case called {' or '.join(wanted)}; there are {', '.join(cases)}")
    return found


def shorten(args: argparse.Namespace, seconds: float = 1.0) -> None:
    """Of a smoke run: one round, and measurements of no more than so many seconds."""
    if args.smoke:
        args.seconds, args.repeats = min(args.seconds, seconds), 1


def listed(cases: Mapping[str, Sequence[Side]], about: Mapping[str, str] | None = None) -> None:
    """Print each case, what it is about if that is given, and the commands of its sides."""
    for name, sides in cases.items():
        print(f"{name}: {about[name]}" if about else name)
        for side in sides:
            print(f"    {side.label}: {side.script} {' '.join(side.args)}")


# ------------------------------------------------------------------------------------------------- the sides
def peers_root() -> Path:
    return Path(os.environ.get("SHOAL_PEERS", "~/.cache/shoal-peers")).expanduser()


def interpreter(peer: str) -> Path | None:
    """The Python of a peer's environment; None, said once, if there is none."""
    if peer == SHOAL:
        return Path(sys.executable)
    path = peers_root() / peer / "bin" / "python"
    if path.exists():
        return path
    if peer not in _missing:
        _missing.add(peer)
        print(f"{peer}: skipped, no {path} (benchmarks/peers/setup.sh {peer} makes it)", flush=True)
    return None


_missing: set[str] = set()


def run_side(side: Side, extra: Sequence[str] = (), timeout: float = 900) -> Figures | None:
    """Run a side once. None if its peer is missing; {"error": ...} if it failed."""
    python = interpreter(side.peer)
    if python is None:
        return None
    command = [
        str(python),
        str(HERE / side.script),
        *side.args[: _split(side.args)],
        *extra,
        *side.args[_split(side.args) :],
    ]
    environ = {**os.environ, **side.env}
    if side.peer == SHOAL:
        environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    else:
        environ.pop("PYTHONPATH", None)
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, told = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"error": f"no result within {timeout:.0f} s"}
    finally:
        end(process)
    for line in reversed(out.splitlines()):
        if line.startswith("{"):
            return dict(json.loads(line))
    tail = (told or out).strip().splitlines()[-3:]
    return {"error": f"exit code {process.returncode}: {' / '.join(tail)}"}


def end(process: subprocess.Popen[str]) -> None:
    """Leave nothing of a side behind that has not ended by itself: peers' workers outlive a killed parent."""
    import psutil

    if process.poll() is not None:
        return
    started: list[Any] = [*psutil.Process(process.pid).children(recursive=True), process]
    for one in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.communicate()


def _split(args: Sequence[str]) -> int:
    """Where a side's own options end: some scripts pass what follows ``--`` on to their library."""
    return list(args).index("--") if "--" in args else len(args)


def alternate(
    sides: Sequence[Side], repeats: int, extra: Sequence[str] = (), timeout: float = 900
) -> dict[str, list[Figures]]:
    """Every side once per round, in turn, so that a change of the machine's speed meets all of them."""
    out: dict[str, list[Figures]] = {side.label: [] for side in sides}
    for number in range(repeats):
        for side in sides:
            figures = run_side(side, extra, timeout)
            if figures is not None:
                out[side.label].append(figures)
                print(f"  round {number + 1}, {side.label}: {brief(figures)}", flush=True)
    return {label: found for label, found in out.items() if found}


def brief(figures: Figures) -> str:
    shown = {k: v for k, v in figures.items() if isinstance(v, (int, float, str)) and k not in ("peer", "version")}
    return ", ".join(f"{k} {v:,.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in shown.items())


def middle(found: Sequence[Figures], key: str) -> float:
    """Median of ``key`` over the rounds that have it; nan if none has."""
    values = [float(f[key]) for f in found if isinstance(f.get(key), (int, float))]
    return median(values) if values else float("nan")


def ratio(ours: float, theirs: float) -> float:
    """nan where one side has no figure."""
    return ours / theirs if theirs else float("nan")


# ---------------------------------------------------------------------------------------------- Shoal's parts
def wired(channel: Channel, writers: int = 1) -> Plan:
    """The layout of one channel from so many writers to one reader, for ends that are made by hand."""
    from shoal.program import Program
    from shoal.shm import layout

    program = Program("benchmark")
    program.role("writer", None, replicas=writers, out=program.channel(channel).writer())
    program.role("reader", None, inp=channel.reader())
    return layout.plan(program)


# ------------------------------------------------------------------------------------------------ the results
def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    import numpy
    import psutil
    import torch

    from shoal.nets.precision import bf16_unit

    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    capability = torch.backends.cpu.get_cpu_capability()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "isa": " + ".join(filter(None, (capability, bf16_unit()))),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "load_at_start": LOAD_AT_START,
    }


def timed_rows(run: Path) -> list[dict[str, float]]:
    """The rows so far of a run that goes on; the newest may be in one of its two files only, and is left out then."""
    from shoal.records.metric_files import read_curve

    if not (run / "performance.csv").exists():
        return []
    return [row for row in read_curve(run) if "seconds" in row]


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A markdown table; numbers are rounded to what is meant by them."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    if value != value:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def publish(name: str, about: str, tables: Mapping[str, str], figures: Mapping[str, Any], smoke: bool) -> None:
    """Print the tables, and keep them and their raw figures in ``benchmarks/results/NAME`` unless it was a smoke run.
    Both are keyed by case; cases of earlier runs stay, each with the machine as it was then."""
    facts = machine()
    cases = {c: {"machine": facts, "table": body, "figures": figures.get(c)} for c, body in tables.items()}
    print("\n" + _markdown(name, about, cases), flush=True)
    if smoke:
        return
    folder = RESULTS / name
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "results.json"
    cases = {**(json.loads(kept.read_text()) if kept.exists() else {}), **cases}
    kept.write_text(json.dumps(cases, indent=1) + "\n")
    (folder / "results.md").write_text(_markdown(name, about, cases))
    print(f"wrote {folder}", flush=True)


def recorded(name: str, case: str) -> Any:
    """The raw figures of a case as they were published last, or an empty mapping."""
    kept = RESULTS / name / "results.json"
    return json.loads(kept.read_text()).get(case, {}).get("figures", {}) if kept.exists() else {}


def _markdown(name: str, about: str, cases: Mapping[str, Mapping[str, Any]]) -> str:
    out = f"# {name}\n\n{about.strip()}\n"
    for title, case in cases.items():
        facts = ", ".join(f"{k} {v}" for k, v in case["machine"].items() if v is not None)
        out += f"\n## {title}\n\n{case['table']}\n\n{facts}\n"
    return out
