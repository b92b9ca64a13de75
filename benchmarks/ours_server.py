"""Shoal's parameter server without learning: learners that fetch and push as fast as they can; prints one JSON line.

    python benchmarks/ours_server.py --floats 1700000 --workers 2 --shards 1 --seconds 10

The roles are those of Gorila. A gradient is a vector of ones, and the shard does w <- w - lr g, as the peers' do.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import Any

import torch
from ours import Watch, rate

from shoal import api
from shoal.learning.parameter_server import GRADIENT
from shoal.local import processes
from shoal.local.runtime import LocalRuntime
from shoal.program import Channel, Program
from shoal.roles.server import GradientRole, ServerRole
from shoal.runtime.launch import Launch, Stop

RATE = 1e-6


class Shard:
    """A part of the weights."""

    def __init__(self, floats: int) -> None:
        self.part = torch.zeros(floats)

    def params(self) -> api.Tensors:
        return {api.PART: self.part}

    def offer(self, part: torch.Tensor) -> None:
        self.part.copy_(part)

    def descend(self, gradient: torch.Tensor, steps: int, into: torch.Tensor) -> float:
        self.part = torch.add(self.part, gradient, alpha=-RATE, out=into)
        return RATE

    def state_dict(self) -> api.State:
        return {}

    def load_state_dict(self, state: api.State) -> None: ...


class Learner:
    """Its gradient is there already; the parameters are copied to where a network lies."""

    def __init__(self, floats: int) -> None:
        self.total, self.weights, self.empty = torch.ones(floats), torch.zeros(floats), True

    def params(self) -> api.Tensors:
        return {"w": self.weights}

    def loaded(self, steps: int) -> None: ...

    def add(self, batch: api.Batch) -> api.Update:
        self.empty = False
        return api.Update({})

    def reset(self) -> None:
        self.empty = True

    def state_dict(self) -> api.State:
        return {}

    def load_state_dict(self, state: api.State) -> None: ...


class Nothing:
    """Batches of nothing, at once."""

    def ready(self) -> bool:
        return True

    poll = ready

    def get(self) -> api.Batch:
        return api.Batch({})

    def reprioritise(self, keys: torch.Tensor, priorities: torch.Tensor) -> None: ...


def server(floats: int, ctx: api.Context, **ports: Any) -> ServerRole:
    begin, end = api.bounds(floats, ctx.replicas, api.UNIT)[ctx.index]
    return ServerRole(ctx, Shard(end - begin), **ports)


def learner(floats: int, ctx: api.Context, **ports: Any) -> GradientRole:
    return GradientRole(ctx, Learner(floats), Nothing(), **ports)


def program(floats: int, workers: int, shards: int) -> Program:
    p = Program("parameter server")
    gradients = p.channel(
        Channel("gradients", "queue", {GRADIENT: api.Field((floats,), axis=0)}, capacity=1, divided=api.UNIT)
    )
    params = p.channel(Channel("params", "params", {"w": api.Field((floats,), axis=0)}, divided=api.UNIT))
    p.role(
        "learner", partial(learner, floats), replicas=workers, gradients=gradients.writer(), params=params.reader()
    )  # fmt: skip
    p.role("server", partial(server, floats), replicas=shards, gradients=gradients.reader(), params=params.writer())
    return p


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--floats", type=int, default=1_700_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    floats = -(-args.floats // api.UNIT) * api.UNIT
    processes.prepare()
    watch = Watch(warmup=1.0, seconds=args.seconds)
    report = LocalRuntime().launch(
        program(floats, args.workers, args.shards),
        Launch(stop=Stop(seconds=3 * args.seconds + 60.0), observers=[watch], interval=0.1),
    )
    facts = {"peer": "shoal", "floats": floats, "workers": args.workers, "shards": args.shards}
    found = {"grads_per_s": rate(watch.updates)} if len(watch.updates) > 1 else {"error": f"{report.updates} updates"}
    print(json.dumps({**facts, **found}), flush=True)


if __name__ == "__main__":
    main()
