"""Make the entries of the zoo: train one by a command, evaluate it, and write its file, its manifest and docs/zoo.md.

    python scripts/zoo.py add NAME -- dqn --env CartPole-v1 --steps 50000     a new entry, by `shoal train` with these
    python scripts/zoo.py train NAME...        those entries again, by the commands in their manifests
    python scripts/zoo.py page [--check]       docs/zoo.md from the manifests; --check: exit 1 if it would change

A policy is the run's best one where the command has --eval-every, else the last. It is scored by 100 greedy episodes
with seeds of their own, whatever it was chosen by. An entry whose mean is below --least is not written (exit code 1).
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import shoal
from shoal import zoo
from shoal.analysis.stats import bootstrap
from shoal.records.run_dir import read_json
from shoal.systems import SYSTEMS

PAGE = Path(__file__).parents[1] / "docs" / "zoo.md"
EPISODES, SEED = 100, 1_000_000  # of a score: far from the seeds of trainings, and of evaluations as they train
MAX_BYTES = 1_000_000
HEAD = """\
# Zoo

<!-- written by scripts/zoo.py page -->

Trained policies that ship with Shoal, as small files in the package. Write `zoo:NAME` for the path of a saved policy:

```bash
shoal zoo                                        # list the policies
shoal zoo dqn-cartpole                           # how this one was trained
shoal eval zoo:dqn-cartpole --episodes 100
shoal eval zoo:dqn-cartpole --video dqn.mp4      # film an episode (extra shoal[video])
shoal record zoo:dqn-cartpole --out cartpole/dqn-v0
shoal export zoo:dqn-cartpole --to onnx
shoal train dqn --env CartPole-v1 --init-from zoo:dqn-cartpole
```

In Python:

```python
import shoal

policy = shoal.load("zoo:dqn-cartpole")
returns = policy.evaluate(10)
```

## Policies

A score is the mean return of whole greedy episodes with its bootstrapped 95 % interval. The evaluation has seeds that
neither the training nor the choice of the best parameters used. Each policy comes from one short run with one seed.
It is an example of the system, not a ranking. [Results](results.md) compare systems.

"""
TAIL = """
## How they were made

Each was trained in one process on one core (`--runtime serial`), with the system's preset for that kind of
environment. The seconds were measured on a shared machine. `python scripts/zoo.py train NAME` trains an entry again and
writes its file and its manifest. A training in the serial runtime repeats bit for bit on one machine.

"""


def make(name: str, words: list[str], least: float, before: str = "") -> bool:
    """Train, evaluate and write an entry; returns whether its score is at least ``least``."""
    with tempfile.TemporaryDirectory() as folder:
        where, python = Path(folder, "run"), [sys.executable, "-m"]
        if before:
            subprocess.run([*python, *shlex.split(before)], check=True, cwd=folder)
        command = [*python, "shoal", "train", *words, "--quiet", "--run-dir", str(where)]
        subprocess.run(command, check=True, cwd=folder)
        run, facts = shoal.Run.open(where), read_json(where / "config.json", "run")
        which = "best" if (where / "best").is_dir() else "last"
        policy = run.policy(which=which)
    returns = policy.evaluate(EPISODES, SEED, envs=EPISODES)
    low, high = bootstrap([np.array(returns)], np.mean)
    score = zoo.Score(
        float(np.mean(returns)), float(np.std(returns, ddof=1)), min(returns), max(returns), float(low), float(high),
        EPISODES, SEED,
    )  # fmt: skip
    print(f"{name}: mean {score.mean:g} [{score.low:g}, {score.high:g}] after {run.report.steps:,} steps", flush=True)
    if score.mean < least:
        return False
    settings = {field: run.config[field] for field, origin in facts["origins"].items() if origin != "default"}
    settings.pop("demonstrations", None)  # a policy is saved without them
    written = zoo.Entry(
        name, run.system, policy.cfg.env, shlex.join(["shoal", "train", *words]), facts["preset"], facts["seed"],
        run.report.steps, run.report.updates, round(run.report.seconds, 1), which, settings, score, "", before,
    )  # fmt: skip
    policy.save(written.file)
    written.file.chmod(0o644)  # for a wheel, which keeps it: safetensors writes for its owner alone
    data = written.file.read_bytes()
    if len(data) > MAX_BYTES:
        written.file.unlink()
        raise SystemExit(f"{name} has {len(data):,} bytes, more than {MAX_BYTES:,}")
    facts = {**vars(written), "sha256": hashlib.sha256(data).hexdigest()}
    written.file.with_suffix(".json").write_text(zoo.manifest(zoo.Entry(**facts)), encoding="utf-8")
    return True


def page() -> str:
    """Return docs/zoo.md."""
    rows = ["| policy | system | environment | mean return (95 % interval) | lowest | steps | KB |"]
    rows.append("| --- | --- | --- | ---: | ---: | ---: | ---: |")
    made = []
    for one in zoo.entries():
        score = one.score
        rows.append(
            f"| `zoo:{one.name}` | [{one.system}](systems/{one.system}.md) | `{one.env}` | {score.mean:.4g} "
            f"({score.low:.4g} to {score.high:.4g}) | {score.min:.4g} | {one.steps:,} "
            f"| {one.file.stat().st_size / 1000:.0f} |"
        )
        made.append(
            f"**{one.name}**: seed {one.seed}, {one.steps:,} environment steps, {one.updates:,} updates, "
            f"{one.seconds:.0f} s; the {one.parameters} parameters.\n\n```bash\n{one.commands}\n```\n"
        )
    lacking = sorted(SYSTEMS.keys() - {one.system for one in zoo.entries()})
    told = f"\nThe zoo has no policy yet of: {', '.join(lacking)}.\n" if lacking else ""
    return HEAD + "\n".join(rows) + "\n" + told + TAIL + "\n".join(made)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("add")
    add.add_argument("name")
    add.add_argument("--least", type=float, default=-np.inf, help="mean return below which nothing is written")
    add.add_argument("--before", default="", help="a command that makes the demonstrations: 'shoal record ...'")
    add.add_argument("words", nargs="+", help="what follows `shoal train`")
    train = commands.add_parser("train")
    train.add_argument("names", nargs="+")
    commands.add_parser("page").add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.command == "add":
        if not make(args.name, args.words, args.least, args.before):
            return 1
    elif args.command == "train":
        for name in args.names:
            make(name, shlex.split(zoo.entry(name).command)[2:], -np.inf, zoo.entry(name).before)
    elif args.check:
        return int(PAGE.read_text("utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
