"""The tests that depend on numbers, as other machines would run them: with other vector instructions, other libraries'
kernels, other numbers of threads, without what only Linux or a writable home has.

    scripts/test --everywhere               every personality, and every Python and PyTorch that is found
    scripts/test --everywhere --this-python those that need no other Python (what CI runs; ten minutes)
    scripts/test --everywhere --only avx2   those whose names contain a word

Prints a line for each, and pytest's summary of the last. Exit code 1 if any failed.
"""

from __future__ import annotations

import argparse
import os
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
NUMBERS = (  # what compares bits or tolerances, and twenty updates of every system (test_snapshots)
    "tests/ops", "tests/nets", "tests/systems/test_snapshots.py", "tests/systems/test_only_with.py",
    "tests/systems/test_identities.py", "tests/systems/test_whole_gradient.py", "tests/systems/test_data_parallel.py",
    "tests/replay/test_replay_ring.py", "tests/systems/test_trajectories.py",
)  # fmt: skip
RUNS = ("tests/systems/test_snapshots.py", "tests/faults/test_portable.py")


@dataclass(frozen=True)
class Personality:
    """One machine that is imitated. env: variables; tests: what is run; home: whether a home is there to write to;
    needs: the vector instructions without which this CPU would die of its tests, or is that machine anyway, by
    PyTorch's name of them.
    """

    name: str
    says: str
    env: dict[str, str] = field(default_factory=dict)
    tests: tuple[str, ...] = NUMBERS
    home: bool = True
    needs: str = ""


PERSONALITIES = (
    Personality("as it is", "this machine"),
    Personality("avx2", "a CPU without AVX-512", {
        "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2",
    }, needs="AVX512"),
    Personality("plain vectors", "the smallest vectors that PyTorch has", {"ATEN_CPU_CAPABILITY": "default"}),
    Personality("avx512", "a CPU with AVX-512 and without bfloat16", {
        "ATEN_CPU_CAPABILITY": "avx512", "MKL_ENABLE_INSTRUCTIONS": "AVX512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
    }, needs="AVX512"),
    Personality("bf16", "a CPU with bfloat16 and without AMX", {
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
    }, needs="AVX512"),
    Personality("no svml", "numba without Intel's vector mathematics", {"NUMBA_DISABLE_INTEL_SVML": "1"}),
    Personality("plain code", "none of what exists for speed alone", {"SHOAL_PLAIN": "1"}),
    Personality("four threads", "torch and BLAS with four threads", {
        "OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "4",
    }),
    Personality("no locale", "LANG=C and no UTF-8", {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0"}, RUNS),
    Personality("no home", "a home that nobody can write to", {}, RUNS, home=False),
)  # fmt: skip


def lacks(who: Personality) -> bool:
    """Return whether this CPU is without the vector instructions that a personality needs."""
    ladder = ("DEFAULT", "AVX2", "AVX512")  # PyTorch's names on x86; another processor's is none of these
    code = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    plain = {name: value for name, value in os.environ.items() if name != "ATEN_CPU_CAPABILITY"}
    has = subprocess.run(
        [sys.executable, "-c", code], env=plain, capture_output=True, text=True, check=True
    ).stdout.strip()
    return bool(who.needs) and who.needs not in ladder[: ladder.index(has) + 1 if has in ladder else 0]


def pythons() -> list[tuple[str, str]]:
    """Other environments with Shoal's dependencies: ``SHOAL_PYTHONS`` names their interpreters, separated by colons."""
    out = []
    for python in filter(None, os.environ.get("SHOAL_PYTHONS", "").split(":")):
        code = (
            "import sys, torch, gymnasium, numpy as np; "
            "print('Python %d.%d' % sys.version_info[:2], 'torch', torch.__version__, 'gymnasium', "
            "gymnasium.__version__, 'NumPy', np.__version__)"
        )
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{python}: left out, it lacks Shoal's dependencies", flush=True)
        else:
            out.append((python, done.stdout.strip()))
    return out


def run(who: Personality, python: str, quick: bool) -> tuple[bool, str]:
    """Run the tests of a personality: whether all passed, and pytest's summary."""
    variables = {"OMP_NUM_THREADS": "1", **os.environ, **who.env, "PYTHONPATH": str(HERE)}
    with tempfile.TemporaryDirectory() as scratch:
        if not who.home:
            home = Path(scratch, "home")
            home.mkdir()
            home.chmod(stat.S_IRUSR | stat.S_IXUSR)
            variables |= {
                "HOME": str(home),
                "XDG_CACHE_HOME": str(home / "cache"),
                "XDG_STATE_HOME": str(home / "state"),
            }
        command = [python, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider"]
        command += ["-m", "not long", *who.tests]
        if quick:
            command += ["-k", "not hypothesis"]
        done = subprocess.run(command, cwd=HERE, env=variables, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines()[-1:] or ["nothing was said"]
    for line in lines if done.returncode else ():
        if line.startswith(("FAILED", "ERROR", "E  ")):
            print(f"    {line[:200]}", flush=True)
    return done.returncode == 0, lines[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--this-python", action="store_true", help="none that needs another Python")
    parser.add_argument("--only", nargs="+", default=[], help="personalities whose names contain one of these")
    args = parser.parse_args()
    imitated = PERSONALITIES[1:] if args.this_python else PERSONALITIES  # the short tier has run them as it is
    jobs = [(who, sys.executable, who.says) for who in imitated]
    if not args.this_python:
        jobs += [(Personality(says, says), python, python) for python, says in pythons()]
    failed, last = [], ""
    for who, python, says in jobs:
        if args.only and not any(word in who.name for word in args.only):
            continue
        if lacks(who):
            print(f"{who.name:<16} {says}: left out, as this CPU has no {who.needs}", flush=True)
            continue
        begun = time.monotonic()
        passed, last = run(who, python, args.this_python)
        print(f"{who.name:<16} {says}: {last} ({time.monotonic() - begun:.0f} s)", flush=True)
        failed += [] if passed else [who.name]
    print(f"failed: {', '.join(failed)}" if failed else last)
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
