"""Put single-line faults into the library, one at a time, and print those that no test notices.

    python scripts/faults shoal/ops --sample 150     # a random sample of the faults of a folder
    python scripts/faults shoal/systems/dqn.py     # all faults of a file
    python scripts/faults shoal/ops --again          # those that lived are tried again, after new tests
    python scripts/faults shoal/ops --list           # only the names of the faults

A fault changes an operator, a bound, a number, a condition or a call, leaves out a term, a keyword or a statement, or
puts the default in the place of a setting. Each is tried in a fork of this process, which has imported PyTorch, Numba
and pytest but not Shoal, on a copy of the repository. The tests are those quick ones that call the faulty function: in
the first run of a test file it is recorded which functions of Shoal each of its tests calls, and how long it takes.

Results are appended to a file (JSON lines) under ``--work``, so that an interrupted run goes on. Faults that change
nothing that could be observed are listed in ``equivalent*.txt``, each with the reason. See
docs/decisions/mutation-testing.md.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from finder import ROOT, Fault, faults_of
from trial import Slot

EQUIVALENT = Path(__file__).parent.glob("equivalent*.txt")
# Folder -> the folders of its tests. Of these, tests that take longer than ``--slowest`` are left out.
TESTS = {
    "shoal/ops": ("tests/ops",),
    "shoal/nets": ("tests/nets", "tests/systems"),
    "shoal/fast": ("tests/ops", "tests/nets"),
    "shoal/learning": ("tests/systems", "tests/ops"),
    "shoal/topology": ("tests/systems",),
    "shoal/systems": ("tests/systems", "tests/ops"),
    "shoal/run": ("tests/population", "tests/cli"),
    "shoal/roles": ("tests/roles", "tests/systems", "tests/runtime"),
    "shoal/replay": ("tests/replay",),
    "shoal/serial": ("tests/runtime", "tests/systems"),
    "shoal/shm": ("tests/runtime",),
    "shoal/envs": ("tests/envs", "tests/systems"),
    "shoal/demonstrations": ("tests/systems", "tests/cli"),
    "shoal/records": ("tests/runtime", "tests/cli", "tests/faults"),
    "shoal/metering": ("tests/runtime",),
    "shoal/policy": ("tests/cli", "tests/systems"),
    "shoal/settings": ("tests/cli", "tests/systems", "tests/population"),
    "shoal/torchrun": ("tests/runtime", "tests/faults/test_store_garbage.py"),
    "shoal/analysis": ("tests/cli", "tests/test_stats.py"),
    "shoal/program": ("tests/systems", "tests/runtime"),
    "shoal/runtime": ("tests/runtime",),
    "shoal/local": ("tests/runtime",),
    "shoal/ray_runtime": ("tests/cluster",),
    "shoal/planning": ("tests/planning", "tests/simulation"),
    "shoal/simulation": ("tests/simulation", "tests/planning"),
    "shoal/watch": ("tests/watch",),
    "shoal/zoo": ("tests/cli",),
    "shoal/cli": ("tests/cli",),
}
# Trainings, and processes that are started anew
NEVER = (
    "members",
    "learning",
    "bottleneck",
    "matrix",
    "local",
    "torchrun",
    "orphans",
    "launch",
    "resume",
    "background",
)
MARGIN = 30.0  # seconds of the processor that a fault may take beyond five times what its tests take without it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", help="files or folders of shoal/")
    parser.add_argument("--sample", type=int, default=0, help="so many faults, drawn at random; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="regular expression for the names of faults")
    parser.add_argument("--again", action="store_true", help="try again those that lived")
    parser.add_argument("--list", action="store_true", help="print the faults and end")
    parser.add_argument("--slots", type=int, default=2, help="faults tried at a time")
    parser.add_argument("--slowest", type=float, default=3.0, help="seconds of the slowest test that is run")
    parser.add_argument("--budget", type=float, default=40.0, help="seconds of tests for a fault")
    parser.add_argument("--tests", nargs="*", help="files or folders of tests, in place of the folder's own")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "faults", help="where results are kept")
    parser.add_argument("--least", type=float, default=0.95, help="part that must be noticed; else the exit code is 1")
    args = parser.parse_args()
    for path in [] if args.tests else files(args.paths):
        if folder(path) not in TESTS:
            parser.error(f"TESTS has no tests of {folder(path)}: say which with --tests")
    known = equivalents()
    faults = [f for path in files(args.paths) for f in faults_of(path) if re.search(args.only, f.key)]
    if args.sample and args.sample < len(faults):
        faults = random.Random(args.seed).sample(faults, args.sample)
    if args.list:
        print(*(f"{f.path}:{f.line} {f.function}: {f.name}" for f in faults), sep="\n")
        return
    args.work.mkdir(parents=True, exist_ok=True)
    results = args.work / "results.jsonl"
    done = {r["key"]: r for r in map(json.loads, results.read_text().splitlines())} if results.exists() else {}
    wanted = [
        f for f in faults
        if f.key not in known and (f.key not in done or (args.again and done[f.key]["result"] == "lives"))
    ]  # fmt: skip
    if wanted:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by way of what is cleaned up
        warm()
        work = Path(tempfile.mkdtemp(prefix="faults-"))
        slots: list[Slot] = []
        try:
            slots += [Slot(work / str(i)) for i in range(args.slots)]
            tests = baseline(slots[0], args, wanted)
            for slot in slots[1:]:  # with what Numba has compiled
                shutil.rmtree(slot.folder)
                shutil.copytree(slots[0].folder, slot.folder)
            with results.open("a") as out:
                attempt(wanted, slots, tests, args, done, out)
        finally:
            for slot in slots:
                slot.end()
            shutil.rmtree(work)
    sys.exit(not report(faults, done, known, args.least))


def files(paths: list[str]) -> list[str]:
    found = [f for p in paths for f in ([Path(p)] if p.endswith(".py") else sorted(Path(p).rglob("*.py")))]
    return [str(f.resolve().relative_to(ROOT)) for f in found]


def folder(path: str) -> str:
    """Return the folder of shoal/ that a file is in, by which its tests are found."""
    return "/".join(path.split("/")[:2])


def equivalents() -> dict[str, str]:
    """Keys of faults that change nothing, with the reason: lines in pairs, the second one indented."""
    text = "\n".join(path.read_text() for path in sorted(EQUIVALENT))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(zip(lines[::2], (line.strip() for line in lines[1::2]), strict=True))


def warm() -> None:
    """Import what takes long and is not Shoal's."""
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.setrecursionlimit(2000)
    for name in (
        "torch", "numba", "scipy.stats", "gymnasium", "pytest", "hypothesis", "yaml", "safetensors.torch",
        "torch.distributions", "numba.core.typing.templates", "psutil", "cloudpickle",
        "multiprocessing.pool", "_pytest.assertion.rewrite", "numba.np.ufunc", "rich.console", "ale_py",
    ):  # fmt: skip
        __import__(name)
    import torch

    torch.set_num_threads(1)


def baseline(slot: Slot, args: Any, faults: list[Fault]) -> dict[str, dict[str, Any]]:
    """What is known of each test that passes: test -> seconds, and the functions that it calls."""
    folders = args.tests or {d for f in faults for d in TESTS[folder(f.path)]}
    copy = slot.folder
    paths = sorted({p for d in folders for p in ([copy / d] if d.endswith(".py") else (copy / d).rglob("test_*.py"))})
    paths = [p for p in paths if p.stem.removeprefix("test_") not in NEVER]
    kept = args.work / "tests.json"
    known = json.loads(kept.read_text()) if kept.exists() else {}
    for path in paths:
        name, digest = str(path.relative_to(copy)), hashlib.sha256(path.read_bytes()).hexdigest()
        if known.get(name, {}).get("digest") != digest or known[name]["slowest"] < args.slowest:
            print(f"recording {name}", flush=True)
            tests = slot.record(name, args.slowest)
            known[name] = dict(digest=digest, slowest=args.slowest, tests=tests)
            print(f"  {sum(t['good'] for t in tests.values())} of {len(tests)} tests are quick and pass", flush=True)
            kept.write_text(json.dumps(known))
    out = {}
    for path in paths:
        tests = known[str(path.relative_to(copy))]["tests"]
        shared = {call for t in tests.values() for call in t["setup"]}  # by fixtures that only the first test makes
        out |= {k: {**t, "calls": shared.union(t["calls"])} for k, t in tests.items() if t["good"]}
    return out


def attempt(
    faults: list[Fault], slots: list[Slot], tests: dict[str, dict[str, Any]], args: Any, done: dict[str, Any], out: Any
) -> None:
    """Try every fault; writes what becomes of each. A test that notices one is run once more, after the same tests,
    without the fault: if it fails then too, it is left out from now on, and the fault tried again."""
    waiting, begun = list(reversed(faults)), time.monotonic()
    busy: dict[Slot, tuple[list[str], str]] = {}  # the tests, and the one that is checked without the fault
    trusted: set[str] = set()

    def start(slot: Slot, fault: Fault, chosen: list[str], checked: str = "") -> None:
        seconds = MARGIN + 5 * sum(tests[t]["seconds"] for t in chosen)
        slot.start(fault, chosen, seconds, dependents(fault.path), bool(checked))
        busy[slot] = chosen, checked

    def end(fault: Fault, result: str, test: str, seconds: float, count: int) -> None:
        done[fault.key] = entry = dict(key=fault.key, result=result, test=test, seconds=round(seconds, 1), tests=count)
        out.write(json.dumps(entry) + "\n")
        out.flush()
        if result == "lives":
            print(f"lives: {fault.path}:{fault.line} {fault.function}: {fault.name}", flush=True)

    while waiting or busy:
        for slot in [s for s in slots if s not in busy]:
            if waiting:
                fault = waiting.pop()
                chosen = choose(fault, tests, args.budget)
                if chosen:
                    start(slot, fault, chosen)
                else:
                    end(fault, "lives", "", 0.0, 0)
        time.sleep(0.02)
        for slot in list(busy):
            if (found := slot.poll()) is None:
                continue
            (result, test), fault, (chosen, checked) = found, slot.fault, busy.pop(slot)
            assert fault is not None
            if checked and result == "noticed":
                print(f"fails without a fault, and is left out: {checked}", flush=True)
                tests.pop(checked)
                waiting.append(fault)
            elif not checked and test in tests and test not in trusted:
                start(slot, fault, chosen[: chosen.index(test) + 1], test)
            else:
                trusted.add(checked)
                result, test = ("noticed", checked) if checked else (result, test)
                end(fault, result, test, time.monotonic() - slot.begun, len(chosen))
    print(f"{len(faults)} faults in {time.monotonic() - begun:.0f} s")


def choose(fault: Fault, tests: dict[str, dict[str, Any]], budget: float) -> list[str]:
    """The tests that call the faulty function, those first that call little else; where none calls it (it is compiled,
    or a constant), those that call what mentions its name, and so on."""
    name = fault.function.rpartition(".")[2]
    call = f"{fault.path}::{name}"
    if name == "__init__":
        call = f"{fault.path}::__init__"
    found = [t for t, known in tests.items() if call in known["calls"]]
    for callers in () if found else mentioning(name):
        if found := [t for t, known in tests.items() if callers & known["calls"]]:
            break
    found.sort(key=lambda t: (len(tests[t]["calls"]), tests[t]["seconds"]))
    total, out = 0.0, []
    for test in found:
        total += tests[test]["seconds"]
        if total > budget and out:
            break
        out.append(test)
    return out


@cache
def words() -> dict[str, set[str]]:
    """Function of Shoal ("path::name", module level: "path::<module>") -> the names in it."""
    out: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "shoal").rglob("*.py")):
        where = str(path.relative_to(ROOT))
        for node in ast.walk(tree := ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                out[f"{where}::{node.name}"] |= _names(node)
        for node in tree.body:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    for name in _names(target):
                        out[f"{where}::{name}"] |= _names(node.value)
    return out


def _names(node: ast.AST) -> set[str]:
    found = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return found | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}


def mentioning(name: str) -> Iterator[set[str]]:
    """Functions that mention ``name``; those and functions that mention one of them; and so on."""
    names, out = {name}, set()
    for _ in range(5):
        out = out | {function for function, said in words().items() if said & names}
        names |= {function.partition("::")[2] for function in out}
        yield out


@cache
def dependents(path: str) -> set[str]:
    """``path`` and what imports it, directly or not: of these, what Numba has compiled may hold what is faulty now."""
    imported = {}
    for file in sorted((ROOT / "shoal").rglob("*.py")):
        text = file.read_text()
        imported[str(file.relative_to(ROOT))] = set(re.findall(r"(?:from|import) (shoal[\w.]*)", text))
    found, new = set(), {path}
    while new:
        found |= new
        modules = {p.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for p in new}
        new = {p for p, names in imported.items() if names & modules} - found
    return {p for p in found if "jit" in (ROOT / p).read_text()}


def report(faults: list[Fault], done: dict[str, Any], known: dict[str, str], least: float) -> bool:
    """Print how many are noticed in each folder; whether it is enough."""
    count: dict[str, Counter[str]] = defaultdict(Counter)
    for fault in faults:
        result = "equivalent" if fault.key in known else done.get(fault.key, {}).get("result", "not tried")
        count[folder(fault.path)][result] += 1
    good = True
    for fault in faults:
        if fault.key not in known and done.get(fault.key, {}).get("result") == "lives":
            print(f"lives: {fault.path}:{fault.line} {fault.function}: {fault.name}")
    for name, found in count.items():
        tried = found["noticed"] + found["lives"]
        share = found["noticed"] / max(1, tried)
        print(
            f"{name}: {tried} faults, {found['noticed']} noticed ({share:.1%}), {found['lives']} live, "
            f"{found['equivalent']} change nothing, {found['not tried']} not tried"
        )
        good &= share >= least
    return good


if __name__ == "__main__":
    main()
