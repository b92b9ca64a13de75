"""How fast a learner's update is when nothing else runs, on one batch over and over: the limit of a run's updates.
Prints one JSON line.

    python scripts/gpu/bare.py impala --env CartPole-v1 --fields '{"device": "cuda"}' --seconds 8

The batch is the second that a serial run of one actor learns from, so its path to the device is part of the update.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import torch  # noqa: E402
from ours import configuration, options  # noqa: E402

from shoal.runtime.launch import Launch, Stop  # noqa: E402
from shoal.serial.runtime import SerialRuntime  # noqa: E402


def measure(args: Any) -> dict[str, Any]:
    module, cfg = configuration(args)
    program = module.program(cfg)
    found: dict[str, Any] = {}
    program.roles = [
        replace(role, make=_timed(role.make, args.seconds, found)) if role.name == "learner" else role
        for role in program.roles
    ]
    torch.set_num_threads(1)
    SerialRuntime().launch(program, Launch(seed=0, stop=Stop(updates=2)))
    return {"peer": "bare update", **found}


def _timed(make: Any, seconds: float, found: dict[str, Any]) -> Any:
    """The role whose second update is made again and again for so many seconds."""

    def made(ctx: Any, **ports: Any) -> Any:
        role = make(ctx, **ports)
        update, calls = role.learner.update, iter(range(10**9))

        def repeated(batch: Any) -> Any:
            out = update(batch)
            if next(calls) == 1:
                found.update(_rate(lambda: update(batch), seconds))
                found["bytes_per_update"] = sum(v.numel() * v.element_size() for v in batch.items.values())
                if (device := next(iter(role.learner.params().values())).device).type == "cuda":
                    found["device_mb"] = round(torch.cuda.max_memory_allocated(device) / 2**20)
            return out

        role.learner.update = repeated
        return role

    return made


def _rate(update: Any, seconds: float) -> dict[str, float]:
    def synchronised() -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()

    update()
    begin, count = synchronised(), 0
    while (now := synchronised()) - begin < seconds or not count:
        update()
        count += 1
    return {"updates_per_s": count / (now - begin), "window_s": now - begin}


if __name__ == "__main__":
    print(json.dumps(measure(options(__doc__).parse_args())), flush=True)
