"""Tianshou's DQN: throughput. Runs in its own environment; prints one JSON line."""

import argparse
import json
import os
import time

from measured import BEGIN, make_env

os.environ.setdefault("OMP_NUM_THREADS", "1")
parser = argparse.ArgumentParser()
parser.add_argument("--env", default="CartPole-v1")
parser.add_argument("--envs", type=int, default=8)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--lr", type=float, default=5e-4)
parser.add_argument("--samples-per-insert", type=float, default=8.0)
parser.add_argument("--hidden", type=int, nargs="+", default=[128, 128])
parser.add_argument("--warmup", type=float, default=5)
parser.add_argument("--seconds", type=float, default=20)
args = parser.parse_args()

import psutil  # noqa: E402
import tianshou  # noqa: E402
import torch  # noqa: E402
from tianshou.algorithm import DQN  # noqa: E402
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy  # noqa: E402
from tianshou.algorithm.optim import AdamOptimizerFactory  # noqa: E402
from tianshou.data import Collector, VectorReplayBuffer  # noqa: E402
from tianshou.env import DummyVectorEnv  # noqa: E402
from tianshou.utils.net.common import Net  # noqa: E402
from tianshou.utils.torch_utils import policy_within_training_step  # noqa: E402

torch.set_num_threads(1)
ATARI = args.env.startswith("ALE/")


def make():
    return make_env(args.env)


if __name__ == "__main__":
    envs, one = DummyVectorEnv([make] * args.envs), make()
    actions = int(one.action_space.n)
    if ATARI:
        from tianshou.env.atari.atari_network import DQNet

        net = DQNet(c=4, h=84, w=84, action_shape=actions)
    else:
        net = Net(state_shape=one.observation_space.shape, action_shape=actions, hidden_sizes=args.hidden)
    policy = DiscreteQLearningPolicy(model=net, action_space=one.action_space, observation_space=one.observation_space,
                                     eps_training=0.05)  # fmt: skip
    algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=args.lr), gamma=0.99, n_step_return_horizon=1,
                    target_update_freq=100, is_double=False)  # fmt: skip
    buffer = VectorReplayBuffer(100_000, args.envs, ignore_obs_next=ATARI)
    collector = Collector(algorithm, envs, buffer, exploration_noise=True)
    collector.reset()
    with policy_within_training_step(algorithm.policy):
        collector.collect(n_step=1_000 // args.envs * args.envs)
        collect = max(1, round(args.batch * 8 / args.samples_per_insert / args.envs)) * args.envs
        updates = round(collect * args.samples_per_insert / args.batch)
        first = since = None
        steps = done = 0
        while True:
            steps += collector.collect(n_step=collect).n_collected_steps
            for _ in range(updates):
                algorithm.update(buffer=buffer, sample_size=args.batch)
            done += updates
            now = time.time()
            first = first or now
            if since is None and now - first >= args.warmup:
                since, steps, done = now, 0, 0
            elif since and now - since >= args.seconds:
                break
    span = now - since
    memory = psutil.Process().memory_full_info().pss / 2**20
    print(json.dumps({"peer": "tianshou", "version": tianshou.__version__, "precision": "fp32",
                      "env_steps_per_s": steps / span, "updates_per_s": done / span, "window_s": span,
                      "first_update_s": first - BEGIN, "pss_mb": round(memory)}), flush=True)  # fmt: skip
    os._exit(0)
