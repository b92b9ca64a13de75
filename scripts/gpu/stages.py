"""The stages of the check: the tests, then each case's run beside its bare update and its peer, then environments on
the device."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import Any

from running import Stage

TESTS = (
    "tests/systems/test_cuda_learning.py", "tests/systems/test_gradient_modes.py",
    "tests/systems/test_device_pipeline.py", "tests/envs/test_device_cartpole.py", "tests/roles/test_inference.py",
    "tests/ops/test_ops_returns.py",
    "tests/systems/test_cuda_runs.py",
)  # fmt: skip
SMOKE_TESTS = "optimiser or bf16 or images or vtrace"  # the others of these take minutes on a CPU


@dataclass(frozen=True)
class Case:
    """One configuration, and the arguments of Stable-Baselines3's script where it has the same system."""

    name: str
    system: str
    env: str
    fields: dict[str, Any] = field(default_factory=dict)
    sb3: tuple[str, ...] = ()
    needs: str = ""
    gradients: tuple[str, ...] = ()  # settings whose bare update is measured beside that of ``auto``


PONG = "ALE/Pong-v5"
REPLAY: dict[str, Any] = dict(min_replay=2_000, replay=100_000)
CASES = (
    Case(
        "CartPole, PPO", "recurrent-ppo", "CartPole-v1", dict(total_envs=64, unroll=128, epochs=4, minibatches=8),
        ("--algo", "ppo", "--envs", "64", "--steps", "128", "--batch", "1024", "--hidden", "64", "64"),
    ),
    Case("CartPole, IMPALA", "impala", "CartPole-v1", dict(envs=64, unroll=32), gradients=("eager",)),
    Case(
        "Pong, IMPALA, deep", "impala", PONG, dict(torso="impala-deep", envs=16), needs="ale_py",
        gradients=("compile",),
    ),
    Case("Pong, IMPALA, shallow", "impala", PONG, dict(torso="impala-shallow", envs=16), needs="ale_py"),
    Case(
        "Pong, PPO", "recurrent-ppo", PONG, dict(torso="nature", total_envs=64, unroll=64, epochs=4, minibatches=8),
        ("--algo", "ppo", "--env", PONG, "--vec", "subproc", "--envs", "64", "--steps", "64", "--batch", "512"),
        needs="ale_py",
    ),
    Case("Pong, DQN", "dqn", PONG, REPLAY, needs="ale_py"),
    Case("Pong, Ape-X DQN", "apex-dqn", PONG, REPLAY, needs="ale_py"),
    Case("Pong, R2D2", "r2d2", PONG, dict(min_replay=100, replay=2_000), needs="ale_py"),
    Case("HalfCheetah, D4PG", "d4pg", "HalfCheetah-v5", REPLAY, needs="mujoco"),
)  # fmt: skip
IN_SMOKE = ("CartPole, PPO",)


def _given(case: Case, device: str, **more: Any) -> list[str]:
    """The arguments that say what is measured."""
    fields = json.dumps({**case.fields, "device": device, **more})
    return [case.system, "--env", case.env, "--fields", fields]


def stages(device: str, smoke: bool) -> list[Stage]:
    """All of them, those first of which most is learned. They fit into nine minutes if each takes half its limit."""
    span = ["--seconds", "1", "--warmup", "0"] if smoke else ["--seconds", "8", "--warmup", "3"]
    python = sys.executable
    chosen = ["-k", SMOKE_TESTS] if smoke else []
    tests = [python, "-m", "pytest", "-q", "-m", "cuda", "-p", "no:cacheprovider", *TESTS, *chosen]
    env = {"SHOAL_TEST_DEVICE": device, "OMP_NUM_THREADS": "1"}
    out = [Stage("tests", tests, 120 if smoke else 180, env=env)]
    batched = [python, "scripts/gpu/batched.py", "--device", device, *span, *(["--envs", "64"] if smoke else [])]
    out.append(Stage("environments on the device", batched, 60, "CartPole on the device"))
    for case in CASES:
        if smoke and case.name not in IN_SMOKE:
            continue
        given = [*_given(case, device), *span]
        run = [python, "benchmarks/ours.py", *given]
        out.append(Stage(f"{case.name}: run", run, 45, case.name, may_lack=case.needs))
        bare = [python, "scripts/gpu/bare.py", *given]
        out.append(Stage(f"{case.name}: bare update", bare, 30, case.name, may_lack=case.needs))
        for gradient in () if smoke else case.gradients:
            way = [*bare[:2], *_given(case, device, gradient=gradient), *span]
            out.append(Stage(f"{case.name}: bare update, {gradient}", way, 45, case.name, may_lack=case.needs))
        if case.sb3:
            peer = [python, "benchmarks/peers/bench_sb3.py", *case.sb3, *span]
            out.append(Stage(f"{case.name}: Stable-Baselines3", peer, 45, case.name, may_lack="stable_baselines3"))
    return out
