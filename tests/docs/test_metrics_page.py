"""docs/metrics.md is the glossary, and the glossary names exactly what runs record."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.metering import glossary
from shoal.records.metric_files import read_curve
from shoal.run.evaluation import Evaluation
from shoal.systems import SYSTEMS, load

ROOT = Path(__file__).parents[2]
NAMES = {e.name for _, _, entries in glossary.SECTIONS for e in entries}
SETTINGS = {f.name for name in SYSTEMS for f in fields(load(name).Config)}
PHASES = {e.name for e in glossary.PHASES}


def test_the_page_is_generated() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert page == glossary.page(), "run: python -m shoal.metering.glossary > docs/metrics.md"


def recorded_in(tree: ast.AST) -> set[str]:
    """Literal names given to ``metrics``' methods, to ``Update``, and to dicts or tuples called metrics."""
    methods = {"count": "", "record": "", "tally": "_p50", "phase": "", "enter": ""}
    found: set[str] = set()
    for node in ast.walk(tree):
        keyed: list[tuple[ast.expr | None, str]] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            owner = ast.unparse(node.func.value)
            if node.func.attr in methods and owner.split(".")[-1] == "metrics":
                keyed.append((node.args[0], methods[node.func.attr]))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "Update" and node.args:
            keyed += [(k, "") for k in node.args[0].keys] if isinstance(node.args[0], ast.Dict) else []
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "metrics":
            keyed += [(k, "") for k in node.value.keys] if isinstance(node.value, ast.Dict) else []
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "METRICS":
            keyed += [(name, "") for name in node.value.elts] if isinstance(node.value, ast.Tuple) else []
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("metrics["):
            assert isinstance(node.targets[0], ast.Subscript)
            keyed.append((node.targets[0].slice, ""))
        found |= {k.value + end for k, end in keyed if isinstance(k, ast.Constant) and isinstance(k.value, str)}
    return found


def test_every_name_in_the_code_is_documented() -> None:
    found: set[str] = set()
    for path in (ROOT / "shoal").rglob("*.py"):
        found |= recorded_in(ast.parse(path.read_text(encoding="utf-8")))
    some = {"env_steps", "loss", "rho", "kl", "q_mean", "inference", "skipped_updates", "policy_lag_p50", "insert"}
    assert some <= found, "the reader is broken"
    found -= {"env_steps", "actions", "bytes"}  # counters: logged as ``steps``, not logged, as ``bytes_per_second``
    assert found <= NAMES, found - NAMES


def general(name: str) -> list[str]:
    """The glossary's names for a column."""
    part, _, rest = name.partition("/")
    if part == "fill":
        return ["fill/CHANNEL"]
    if part == "time":
        phase = rest.partition("/")[2]
        return ["time/ROLE/PHASE", "wait:CHANNEL" if phase.startswith("wait:") and phase not in PHASES else phase]
    return ["SETTING"] if name in SETTINGS - NAMES else [name]


def demonstrations() -> list[Any]:
    return [(np.zeros((21, 4), np.float32), np.zeros(20, np.int64), np.ones(20), True, False)]


@pytest.mark.timeout(600)
def test_runs_record_the_documented_names_and_no_others(tmp_path: Path) -> None:
    small = dict(preset="none", actors=1, device="cpu", hidden=(8,), unroll=8, envs=4)
    replay = dict(batch=8, min_replay=100, replay=500, samples_per_insert=1.0)
    own: dict[str, dict[str, Any]] = {
        "dqn": dict(replay, prioritised=True),
        "apex-dqn": replay,
        "rainbow": dict(replay, streams=8, replay_shards=2, actors=2),
        "r2d2": dict(replay, min_replay=20, sequence=8, overlap=4, burn_in=4, core_size=8),
        "r2d3": dict(replay, min_replay=20, sequence=8, overlap=4, burn_in=4, core_size=8),
        "apex-dpg": replay,
        "d4pg": replay,
        "qt-opt": dict(replay, loss="cross-entropy", cem_samples=8),
        "gorila": dict(replay, actors=2),
        "downpour": dict(replay, actors=2),
        "es": dict(pairs=8, evaluate_every=1, unroll=32),
        "unreal": dict(core_size=8, replay=200),
    }
    told: set[str] = {"return", "length"}  # of episodes.csv
    # CartPole puts no numbers into its info, Shoal's own roles record no name of the run's, no shard was killed, and
    # nothing was filmed (tests/cli/test_filmed.py)
    never = {"NAME", "evaluation_NAME", "record/NAME", "lost_updates", "film"}

    seen: set[str] = set()

    def all_told(metrics: dict[str, Any]) -> bool:
        seen.update(each for name in metrics for each in general(name))
        return NAMES - told - seen <= never

    for runtime, systems in (("serial", SYSTEMS), ("local", ("apex-dqn", "dd-ppo", "a3c", "impala"))):
        for system in systems:
            path = tmp_path / f"{system}-{runtime}"
            if system == "r2d3" and runtime == "serial":  # another process could not import this file
                shown = {"demonstrations": f"{__name__}:demonstrations", "demo_ratio": 0.5}
            else:
                shown = {}
            how = Evaluation(every=500, episodes=1) if system == "impala" else None
            last_one = how and runtime == "local"  # goes on until its evaluator has started and had a rest
            shoal.train(
                system, runtime=runtime, run_dir=path, steps=10**9 if last_one else 1_500, evaluation=how,
                checkpoint_every=0.1, observers=[all_told] if last_one else (),
                **{**small, **own.get(system, {}), **shown},
            )  # fmt: skip
            columns = {name for row in read_curve(path) for name in row}
            for name in columns:
                assert set(general(name)) <= NAMES, (system, runtime, name)
                told.update(general(name))
            roles = {name.split("/")[1] for name in columns if name.startswith("time/")}
            last = [row for row in read_curve(path) if any(name.startswith("time/") for name in row)]
            for role in roles:  # every row: the phases of a role add up to its wall time
                for row in last:
                    shares = [v for name, v in row.items() if name.startswith(f"time/{role}/")]
                    assert not shares or abs(sum(shares) - 1.0) < 0.01, (system, runtime, role, shares)
    assert NAMES - told == never
