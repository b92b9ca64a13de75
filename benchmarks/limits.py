"""What the parts of a step cost on one core when nothing else runs: the environment, the network's answer, and one
gradient step's share. Prints one JSON line.

    python benchmarks/limits.py impala --env CartPole-v1 --fields '{"envs": 256, "unroll": 32}' --minibatch 8192

The limit of a run is ``cores / (environment + inference + passes * gradient)`` steps a second: as if nothing had to be
moved, sampled, summed or waited for. The gradient is that of the squared outputs of the same network at the same
precision, with Adam: no loss could cost less. ``passes``: how often a step is learned from.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
from ours import configuration, options

from shoal.local.processes import keep_freed_memory
from shoal.nets.precision import inferring

ROUNDS = 3


def cost(work: Callable[[], Any], units: int, spans: tuple[float, float]) -> float:
    """Microseconds per unit: the median of a few rounds. spans: seconds to warm up, and to measure."""
    warmup, seconds = spans
    begin = time.perf_counter()
    work()
    while time.perf_counter() - begin < warmup:
        work()
    found = []
    for _ in range(ROUNDS):
        done, begin = 0, time.perf_counter()
        while (span := time.perf_counter() - begin) < seconds / ROUNDS:
            work()
            done += units
        found.append(span / done * 1e6)
    return median(found)


def environment(cfg: Any, spans: tuple[float, float]) -> float:
    from shoal.envs import make

    env = make(cfg.env, cfg.envs, cfg)
    env.reset(0)
    rng, action = np.random.default_rng(0), env.spec.action
    if action.kind == "continuous":
        actions: np.ndarray = rng.uniform(action.low, action.high, (64, cfg.envs, len(action.low))).astype(np.float32)
    else:
        actions = rng.integers(0, action.sizes, (64, cfg.envs, len(action.sizes)))
        actions = actions[..., 0] if action.kind == "discrete" else actions
    at = iter(range(10**9))
    found = cost(lambda: env.step(actions[next(at) % 64]), cfg.envs, spans)
    env.close()
    return found


def observations(cfg: Any, rows: int) -> dict[str, torch.Tensor]:
    out = {}
    for name, leaf in cfg.env_spec().observations.items():
        high = 256 if leaf.kind == "image" else 2
        out[name] = torch.randint(0, high, (rows, *leaf.shape)).to(getattr(torch, leaf.dtype))
    return out


def network(cfg: Any, module: Any, minibatch: int, spans: tuple[float, float]) -> tuple[float, float]:
    """Microseconds of inference and of a gradient step, per step."""
    nets = module.network(cfg)
    acting = inferring(copy.deepcopy(nets))  # as agents do

    def forward(nets: Any, obs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        if not hasattr(nets, "step"):
            return [nets(obs)]
        rows = len(next(iter(obs.values())))
        return list(nets.step(obs, torch.zeros(rows, dtype=torch.bool), nets.initial_state(rows))[:2])

    few, many = observations(cfg, cfg.envs), observations(cfg, minibatch)
    optimiser = torch.optim.Adam(nets.parameters(), 1e-5, fused=True)

    def act() -> None:
        with torch.inference_mode():
            forward(acting, few)

    def learn() -> None:
        optimiser.zero_grad()
        sum(y.square().mean() for y in forward(nets, many)).backward()  # type: ignore[union-attr]
        optimiser.step()

    return cost(act, cfg.envs, spans), cost(learn, minibatch, spans)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    keep_freed_memory()  # as in a run
    module, cfg = configuration(args)
    spans = args.warmup / 3, args.seconds / 3  # of each of the three
    env = environment(cfg, spans)
    inference, gradient = network(cfg, module, args.minibatch, spans)
    cores = len(os.sched_getaffinity(0))
    limit = cores / (env + inference + args.passes * gradient) * 1e6
    return {
        "peer": "limit", "env_us": env, "inference_us": inference, "gradient_us": gradient, "passes": args.passes,
        "cores": cores, "precision": module.network(cfg).precision, "env_steps_per_s": limit,
    }  # fmt: skip


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--minibatch", type=int, default=512, help="steps of one gradient step")
    parser.add_argument("--passes", type=float, default=1.0, help="how often a step is learned from")
    print(json.dumps(measure(parser.parse_args())), flush=True)
