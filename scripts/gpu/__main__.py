"""Tests and measures Shoal on a GPU in stages, each with a time limit; what a stage finds is written at once.

    scripts/gpu-check --out FOLDER
    scripts/gpu-check --device cpu --smoke
    scripts/gpu-check --only "Pong" --list

Writes FOLDER/results.jsonl (one line for each thing found, then one for the end of each stage), FOLDER/STAGE.log, and
FOLDER/table.md, for docs/performance.md. Exit code 1 if a stage failed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpu_table import table
from running import Results, run_stage
from stages import stages

WHOLE = 540.0  # seconds, at most, of all stages together


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--smoke", action="store_true", help="a moment of a few stages: does the script work?")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder of what is found")
    parser.add_argument("--whole", type=float, default=WHOLE, help="seconds of all stages together")
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help="stages whose name contains one")
    parser.add_argument("--list", action="store_true", help="list the stages, run nothing")
    args = parser.parse_args()
    chosen = [s for s in stages(args.device, args.smoke) if any(word in s.name for word in args.only)]
    if not chosen:
        names = ", ".join(s.name for s in stages(args.device, args.smoke))
        print(f"gpu-check: no stage is called {' or '.join(args.only)}; there are {names}", file=sys.stderr)
        return 2
    if args.list:
        for stage in chosen:
            print(f"{stage.name} (at most {stage.seconds:.0f} s): {' '.join(stage.command)}")
        return 0
    results = Results(args.out)
    results.describe(args.device)
    failed = [stage.name for stage in chosen if not run_stage(stage, args.whole - results.seconds(), args.out, results)]
    text = table(results.lines)
    (args.out / "table.md").write_text(text, encoding="utf-8")
    print(text)
    print(f"{len(chosen) - len(failed)} of {len(chosen)} stages are well, in {results.seconds():.0f} s; see {args.out}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
