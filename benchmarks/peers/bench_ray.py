"""Ray: arrays from one actor to another, calls per second. Runs in RLlib's environment; prints one JSON line."""

import argparse
import json
import time
from statistics import median

import numpy as np
import ray

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=1.0)
args = parser.parse_args()
SIZES = {"28 KB": 28 * 1024, "1 MB": 2**20}
FLYING = 4  # calls in flight: faster than one


@ray.remote(num_cpus=0.5)
class Actor:
    def __init__(self):
        self.arrays = {name: np.zeros(size // 4, np.float32) for name, size in SIZES.items()}

    def get(self, name):
        return self.arrays[name]

    def pull(self, other, name, seconds):
        calls, flying, begin = 0, [other.get.remote(name) for _ in range(FLYING)], time.perf_counter()
        while time.perf_counter() - begin < seconds:
            float(ray.get(flying.pop(0))[0])
            flying.append(other.get.remote(name))
            calls += 1
        return calls / (time.perf_counter() - begin)


ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
one, two = Actor.remote(), Actor.remote()
ray.get(one.pull.remote(two, "28 KB", 0.2))
found = {name: median(ray.get(one.pull.remote(two, name, args.seconds)) for _ in range(3)) for name in SIZES}
print(json.dumps({"peer": "ray", "version": ray.__version__, **found}), flush=True)
ray.shutdown()
