"""PFRL's A3C: environment steps per second of all its processes. Runs in its own environment; prints one JSON line."""

import logging
import tempfile

from measured import Window, make_env, options, parse

parser = options(__doc__, "pfrl")
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--segment", type=int, default=5, help="steps of one gradient (t_max)")
args = parse(parser)

import numpy as np  # noqa: E402
import pfrl  # noqa: E402
import torch  # noqa: E402
from pfrl.agents import a3c  # noqa: E402
from pfrl.experiments import train_agent_async  # noqa: E402
from pfrl.optimizers import SharedRMSpropEpsInsideSqrt  # noqa: E402
from pfrl.policies import SoftmaxCategoricalHead  # noqa: E402
from torch import nn  # noqa: E402

torch.set_num_threads(1)
logging.disable(logging.CRITICAL)
ATARI = args.env.startswith("ALE/")


class Old:
    """An environment as PFRL expects it: the API of gym before 0.26."""

    def __init__(self, seed):
        self.env, self.seed = make_env(args.env), seed
        self.action_space, self.observation_space = self.env.action_space, self.env.observation_space

    def reset(self):
        obs, _ = self.env.reset(seed=self.seed)
        self.seed = None
        return np.asarray(obs)

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(int(action))
        return np.asarray(obs), float(reward), bool(terminated), {**info, "needs_reset": truncated}

    def close(self):
        self.env.close()


def torso():
    """CartPole: 64-64 tanh. Atari: the small network of the paper."""
    if ATARI:
        return nn.Sequential(nn.Conv2d(4, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten(),
                             nn.Linear(2592, 256), nn.ReLU()), 256  # fmt: skip
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()), 64


def as_float(obs):
    return np.asarray(obs, np.float32) / (255 if ATARI else 1)


window = Window(args)


def watch(env, agent, steps):
    """Called after every step of every worker; ``steps`` are those of all."""
    if agent.process_idx == 0 and window.over(env_steps=steps):
        window.tell("pfrl", "0.4.0", workers=args.workers, segment=args.segment)


if __name__ == "__main__":
    window.lead()
    body, units = torso()
    actions = int(make_env(args.env).action_space.n)
    policy = nn.Sequential(nn.Linear(units, actions), SoftmaxCategoricalHead())
    model = nn.Sequential(body, pfrl.nn.Branched(policy, nn.Linear(units, 1)))
    optimiser = SharedRMSpropEpsInsideSqrt(model.parameters(), lr=7e-4, eps=1e-1, alpha=0.99)
    agent = a3c.A3C(model, optimiser, t_max=args.segment, gamma=0.99, beta=1e-2, phi=as_float, max_grad_norm=40.0)
    train_agent_async(
        outdir=tempfile.mkdtemp(), processes=args.workers, make_env=lambda index, test: Old(index), agent=agent,
        steps=10**12, eval_interval=10**12, eval_n_episodes=1, global_step_hooks=[watch],
        save_best_so_far_agent=False, random_seeds=list(range(args.workers)),  # its own fail on Python 3.11
    )  # fmt: skip
