"""Stable-Baselines3: PPO, DQN and TD3, throughput and time to solve. In its own environment; prints one JSON line."""

import argparse
import itertools
import json
import os
import time

from measured import BEGIN, make_env

parser = argparse.ArgumentParser()
parser.add_argument("--algo", default="ppo", choices=["ppo", "dqn", "td3"])
parser.add_argument("--env", default="CartPole-v1")
parser.add_argument("--vec", default="dummy", choices=["dummy", "subproc"])
parser.add_argument("--envs", type=int, default=8)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--steps", type=int, default=128, help="ppo: per environment and rollout")
parser.add_argument("--batch", type=int, default=256, help="of one gradient step")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--lr", type=float, default=3e-4)
parser.add_argument("--linear", action="store_true", help="ppo: learning rate and clip fall to 0 over --total")
parser.add_argument("--total", type=int, default=10**8)
parser.add_argument("--gamma", type=float, default=0.99)
parser.add_argument("--gae", type=float, default=0.95)
parser.add_argument("--clip", type=float, default=0.2)
parser.add_argument("--entropy", type=float, default=0.0)
parser.add_argument("--samples-per-insert", type=float, default=8.0, help="dqn")
parser.add_argument("--hidden", type=int, nargs="+", help="units of the MLP; ppo: one that policy and value share")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--warmup", type=float, default=5)
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--until", type=float, help="solve: stop at this mean return of the last 100 episodes")
parser.add_argument("--cap", type=float, default=300)
args = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = str(args.threads)

import numpy as np  # noqa: E402
import psutil  # noqa: E402
import torch  # noqa: E402
from stable_baselines3 import DQN, PPO, TD3, __version__  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.noise import NormalActionNoise  # noqa: E402
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecMonitor  # noqa: E402

torch.set_num_threads(args.threads)
ATARI = args.env.startswith("ALE/")


def make():
    if ATARI and args.vec == "subproc":  # of a process that steps, not of the one that learns
        torch.set_num_threads(1)
    return make_env(args.env)


class Shared(BaseFeaturesExtractor):
    """One MLP for policy and value, as Shoal's network has (SB3's own default trains one for each)."""

    def __init__(self, space):
        sizes = [space.shape[0], *args.hidden]
        super().__init__(space, sizes[-1])
        layers = [(torch.nn.Linear(a, b), torch.nn.Tanh()) for a, b in itertools.pairwise(sizes)]
        self.layers = torch.nn.Sequential(*(m for pair in layers for m in pair))

    def forward(self, x):
        return self.layers(x)


class Watch(BaseCallback):
    """Throughput between two rollout starts, so that whole iterations are counted; or the time to a return."""

    def __init__(self):
        super().__init__()
        self.start, self.since, self.result, self.first, self.fresh = time.time(), None, None, None, False

    def _on_rollout_start(self):
        self.fresh = True

    def _on_step(self):
        now, steps = time.time(), self.model.num_timesteps
        self.first = self.first or now
        fresh, self.fresh = self.fresh, False
        if args.until is not None:
            if self.n_calls % 32 and now - self.start < args.cap:
                return True
            episodes = self.model.ep_info_buffer
            mean = float(np.mean([e["r"] for e in episodes])) if episodes else float("nan")
            solved = len(episodes) >= 100 and mean >= args.until
            if solved or now - self.start >= args.cap or steps >= args.total:
                self.result = {"solved": solved, "wall_s": now - self.start, "total_s": now - BEGIN,
                               "env_steps": steps, "return": mean}  # fmt: skip
                return False
        elif self.since is None:
            if fresh and now - self.first > args.warmup and getattr(self.model, "_n_updates", 1):
                self.since = (now, steps, self.model._n_updates)
        elif fresh and now - self.since[0] >= args.seconds:
            span = now - self.since[0]
            self.result = {"env_steps_per_s": (steps - self.since[1]) / span, "window_s": span,
                           "updates_per_s": (self.model._n_updates - self.since[2]) / span}  # fmt: skip
            return False
        return True


def model(env):
    common = dict(seed=args.seed, device="cpu", gamma=args.gamma, batch_size=args.batch)
    policy = "CnnPolicy" if ATARI else "MlpPolicy"
    kwargs = {}
    rate = (lambda left: left * args.lr) if args.linear else args.lr
    if args.algo == "dqn":
        if args.hidden:
            kwargs = {"net_arch": args.hidden}
        collect = max(1, round(args.batch * 8 / args.samples_per_insert / args.envs))  # steps of all environments
        updates = round(collect * args.envs * args.samples_per_insert / args.batch)
        return DQN(policy, env, learning_rate=args.lr, buffer_size=100_000, learning_starts=1_000, train_freq=collect,
                   gradient_steps=updates, target_update_interval=1_000, exploration_fraction=1e-3,
                   exploration_final_eps=0.05, policy_kwargs=kwargs, **common)  # fmt: skip
    if args.algo == "td3":  # the library's defaults, and its zoo's noise and random play for MuJoCo
        size = env.action_space.shape[0]
        noise = NormalActionNoise(np.zeros(size), 0.1 * np.ones(size))
        return TD3(policy, env, learning_rate=args.lr, learning_starts=10_000, action_noise=noise, **common)
    if args.hidden and not ATARI:
        kwargs = {"features_extractor_class": Shared, "net_arch": []}
    clip = (lambda left: left * args.clip) if args.linear else args.clip
    return PPO(policy, env, n_steps=args.steps, n_epochs=args.epochs, learning_rate=rate, gae_lambda=args.gae,
               clip_range=clip, ent_coef=args.entropy, policy_kwargs=kwargs, **common)  # fmt: skip


if __name__ == "__main__":
    venv = VecMonitor((DummyVecEnv if args.vec == "dummy" else SubprocVecEnv)([make] * args.envs))
    watch = Watch()
    learner = model(venv)
    watch.start = time.time()
    learner.learn(total_timesteps=args.total, callback=watch)
    me = psutil.Process()
    memory = sum(p.memory_full_info().pss for p in [me, *me.children(recursive=True)]) / 2**20
    found = watch.result or {"solved": False, "wall_s": time.time() - watch.start, "env_steps": args.total}
    print(json.dumps({"peer": "sb3", "version": __version__, "precision": "fp32", "pss_mb": round(memory),
                      "first_step_s": watch.first - BEGIN, **found}), flush=True)  # fmt: skip
    os._exit(0)
