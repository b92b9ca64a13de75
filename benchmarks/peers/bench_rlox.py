"""rlox (a Rust data plane under PyTorch): PPO's throughput. Runs in its own environment; prints one JSON line."""

import argparse
import json
import os
import time

BEGIN = time.time()
parser = argparse.ArgumentParser()
parser.add_argument("--env", default="CartPole-v1")
parser.add_argument("--envs", type=int, default=64)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--steps", type=int, default=256, help="per environment and rollout")
parser.add_argument("--batch", type=int, default=8192, help="of one gradient step")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument(
    "--hidden", type=int, nargs="+", default=[64, 64], help="units of the MLP that policy and value share"
)
parser.add_argument("--warmup", type=float, default=5)
parser.add_argument("--seconds", type=float, default=20)
args = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = str(args.threads)

import gymnasium as gym  # noqa: E402
import psutil  # noqa: E402
import rlox  # noqa: E402
import torch  # noqa: E402
from rlox.algorithms.ppo import PPO  # noqa: E402
from rlox.callbacks import Callback  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributions import Categorical  # noqa: E402

torch.set_num_threads(args.threads)


class Shared(nn.Module):
    """One MLP for policy and value, as Shoal's network has (rlox's own default trains one for each)."""

    def __init__(self):
        super().__init__()
        env = gym.make(args.env)
        sizes = [env.observation_space.shape[0], *args.hidden]
        layers = [layer for a, b in zip(sizes, sizes[1:]) for layer in (nn.Linear(a, b), nn.Tanh())]  # noqa: B905, RUF007
        self.torso = nn.Sequential(*layers)
        self.policy, self.value = nn.Linear(sizes[-1], env.action_space.n), nn.Linear(sizes[-1], 1)
        self.actor, self.critic = nn.Sequential(self.torso, self.policy), nn.Sequential(self.torso, self.value)

    def get_action_and_logprob(self, obs):
        chosen = Categorical(logits=self.actor(obs))
        action = chosen.sample()
        return action, chosen.log_prob(action)

    def get_action_value(self, obs):
        features = self.torso(obs)
        chosen = Categorical(logits=self.policy(features))
        action = chosen.sample()
        return action, chosen.log_prob(action), self.value(features).squeeze(-1)

    def get_value(self, obs):
        return self.critic(obs).squeeze(-1)

    def get_logprob_and_entropy(self, obs, actions):
        chosen = Categorical(logits=self.actor(obs))
        return chosen.log_prob(actions), chosen.entropy()


class Watch(Callback):
    """Counts rollouts (with their updates) from the end of the warm-up on."""

    def __init__(self):
        super().__init__()
        self.first = self.begin = self.end = None
        self.rollouts = 0

    def on_step(self, **facts):
        now = time.time()
        self.first = self.first or now
        if self.begin is None:
            self.begin = now if now - self.first >= args.warmup else None
            return True
        self.rollouts, self.end = self.rollouts + 1, now
        return now - self.begin < args.seconds


watch = Watch()
trainer = PPO(
    args.env, n_envs=args.envs, policy=Shared(), callbacks=[watch], n_steps=args.steps, n_epochs=args.epochs,
    batch_size=args.batch,
)  # fmt: skip
trainer.train(10**9)
span, rate = watch.end - watch.begin, watch.rollouts * args.envs * args.steps / (watch.end - watch.begin)
print(json.dumps({
    "peer": "rlox", "version": rlox.__version__, "precision": "fp32", "window_s": span, "env_steps_per_s": rate,
    "updates_per_s": rate * args.epochs / args.batch, "first_step_s": watch.first - BEGIN,
    "pss_mb": round(psutil.Process().memory_full_info().pss / 2**20),
}))  # fmt: skip
