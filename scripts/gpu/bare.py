"""How fast a learner's update is when nothing else runs, on one batch over and over: the limit of a run's updates.
Prints one JSON line.

    python scripts/gpu/bare.py impala --env CartPole-v1 --fields '{"device": "cuda"}' --seconds 8

The batch is the second that a serial run of one actor learns from, so its path to the device is part of the update.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import torch  # noqa: E402
from ours import configuration, options  # noqa: E402
from timing import Update, rate, with_updates  # noqa: E402

from shoal.runtime.launch import Launch, Stop  # noqa: E402
from shoal.serial.runtime import SerialRuntime  # noqa: E402


def measure(args: Any) -> dict[str, Any]:
    module, cfg = configuration(args)
    program = module.program(cfg)
    found: dict[str, Any] = {}

    def repeating(role: Any, update: Update) -> Update:
        """The second update is made again and again for so many seconds."""
        calls = itertools.count()

        def repeated(batch: Any) -> Any:
            out = update(batch)
            if next(calls) == 1:
                per_second, spent = rate(lambda: update(batch), args.seconds, wait=True)
                found.update(updates_per_s=per_second, window_s=spent)
                found["bytes_per_update"] = sum(v.numel() * v.element_size() for v in batch.items.values())
                if (device := next(iter(role.learner.params().values())).device).type == "cuda":
                    found["device_mb"] = round(torch.cuda.max_memory_allocated(device) / 2**20)
            return out

        return repeated

    with_updates(program, repeating)
    torch.set_num_threads(1)
    SerialRuntime().launch(program, Launch(seed=0, stop=Stop(updates=2)))
    return {"peer": "bare update", **found}


if __name__ == "__main__":
    print(json.dumps(measure(options(__doc__).parse_args())), flush=True)
