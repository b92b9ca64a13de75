"""PPO on CartPole whose copies are stepped on the learner's device, beside Gymnasium's by an actor.
Prints one JSON line for each: the environments alone, PPO on the device, PPO on Gymnasium's CartPole-v1 (one actor,
one learner).

    python scripts/gpu/batched.py --device cuda --envs 4096 --seconds 8
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import torch
from timing import Update, rate, with_updates

from shoal.envs import make
from shoal.envs.device_cartpole import CartPole
from shoal.envs.options import EnvOptions
from shoal.runtime.launch import Launch, Stop
from shoal.serial.runtime import SerialRuntime
from shoal.systems import recurrent_ppo

NAME = "device:CartPole-v1"
MAX_START = 20.0  # seconds until the first update has ended and everything that compiles is compiled


def environments(device: str, envs: int, seconds: float) -> dict[str, float]:
    """Steps per second of the environments alone: on the device, and through NumPy."""
    on_device = CartPole(envs, device)
    on_device.reset(0)
    actions = torch.randint(0, 2, (envs,), device=device)
    batch = make(NAME, envs, EnvOptions())
    batch.reset(0)
    return {
        "environments on the device alone": envs * rate(lambda: on_device.step(actions), seconds)[0],
        "environments through NumPy alone": envs * rate(lambda: batch.step(np.zeros(envs, np.int64)), seconds)[0],
    }


def ppo(env: str, device: str, envs: int, seconds: float) -> dict[str, Any]:
    """Steps and updates per second of PPO, from the end of its first update until so many ``seconds`` and two updates
    later."""
    cfg = recurrent_ppo.Config(
        env=env, device=device, actors=1, envs=envs, unroll=32, epochs=2, minibatches=4, backend="gymnasium-vector",
        precision="fp32", learner_processes=1,
    )  # fmt: skip
    ends: list[float] = []  # of updates, each of which has waited for the device's figures
    spent: list[float] = []  # seconds in each of them
    program = recurrent_ppo.program(cfg)

    def noting(role: Any, update: Update) -> Update:
        def noted(batch: Any) -> Any:
            begin = time.perf_counter()
            out = update(batch)
            ends.append(time.perf_counter())
            spent.append(ends[-1] - begin)
            return out

        return noted

    with_updates(program, noting)

    def enough() -> bool:
        return len(ends) >= 3 and ends[-1] - ends[0] >= seconds

    stop = Stop(seconds=seconds + MAX_START, asked=enough)
    SerialRuntime().launch(program, Launch(stop=stop))
    if len(ends) < 3:
        return {"error": f"fewer than three updates in {stop.seconds:.0f} s"}
    ends = ends[1:]  # the first is made while what is compiled is compiled
    updates = (len(ends) - 1) / (ends[-1] - ends[0])
    alone = (len(ends) - 1) / sum(spent[-(len(ends) - 1) :])
    return {"env_steps_per_s": updates * envs * cfg.unroll, "updates_per_s": updates, "update_alone_per_s": alone}


def share(rates: dict[str, float], environments_alone: float) -> float:
    """Return the share of the limit: the speed if a run did nothing but step the environments and update."""
    steps = rates["env_steps_per_s"] / rates["updates_per_s"]
    return rates["updates_per_s"] * (steps / environments_alone + 1 / rates["update_alone_per_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--envs", type=int, default=4_096)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each of the four measurements")
    parser.add_argument("--warmup", type=float, default=0.0, help="ignored: the first updates are not counted")
    args = parser.parse_args()
    torch.set_num_threads(1)
    about = {"device": args.device, "envs": args.envs}
    alone = environments(args.device, args.envs, args.seconds)
    for way, found in alone.items():
        print(json.dumps({"way": way, "env_steps_per_s": found, **about}), flush=True)
    for way, env in (("PPO on the device", NAME), ("PPO on Gymnasium's", "CartPole-v1")):
        rates = ppo(env, args.device, args.envs, args.seconds)
        if env == NAME and "error" not in rates:
            rates["share"] = share(rates, alone["environments on the device alone"])
        print(json.dumps({"way": way, **rates, **about}), flush=True)


if __name__ == "__main__":
    main()
