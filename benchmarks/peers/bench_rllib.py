"""RLlib (new API stack, torch): IMPALA and PPO, throughput and time to solve. Runs in its own environment; prints one
JSON line."""

import argparse
import json
import os
import tempfile
import time
import warnings
from collections import deque

BEGIN = time.time()
parser = argparse.ArgumentParser()
parser.add_argument("--algo", default="ppo", choices=["ppo", "impala"])
parser.add_argument("--env", default="CartPole-v1")
parser.add_argument("--runners", type=int, default=2)
parser.add_argument(
    "--learners", type=int, default=0, help="processes that learn; 0: the main one; the batch is of each"
)
parser.add_argument("--envs", type=int, default=16, help="per runner")
parser.add_argument("--fragment", type=int, default=0)
parser.add_argument("--batch", type=int, default=0)
parser.add_argument("--minibatch", type=int, default=0)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--lr", type=float, default=0)
parser.add_argument("--value-cost", type=float, default=0)
parser.add_argument("--vectorize", default="sync", help="vector_entry_point: Gymnasium's NumPy version")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--warmup", type=float, default=10)
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--until", type=float, help="solve: stop at this mean return of the last 100 episodes")
parser.add_argument("--cap", type=float, default=300)
args = parser.parse_args()
warnings.filterwarnings("ignore")
os.environ.setdefault("PYTHONWARNINGS", "ignore")

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
import psutil  # noqa: E402
import ray  # noqa: E402
from ray import tune  # noqa: E402
from ray.rllib.algorithms.impala import IMPALAConfig  # noqa: E402
from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # noqa: E402

ATARI = args.env.startswith("ALE/")
RETURNS = os.path.join(tempfile.mkdtemp(), "returns.txt")


def make_atari(config):
    import ale_py
    import cv2

    cv2.setNumThreads(1)
    gym.register_envs(ale_py)
    env = gym.make(args.env, frameskip=1, repeat_action_probability=0.0)
    env = gym.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84, grayscale_obs=True)
    space = gym.spaces.Box(0.0, 1.0, (84, 84, 1), np.float32)  # frames are stacked by RLlib's own connectors
    return gym.wrappers.TransformObservation(env, lambda o: o[:, :, None].astype(np.float32) / 255.0, space)


class Logged(gym.Wrapper):
    """Appends each return to a file: RLlib's own mean is not strictly that of the last 100 episodes."""

    def __init__(self, path):
        super().__init__(gym.make(args.env))
        self.file, self.total = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), 0.0

    def reset(self, **given):
        self.total = 0.0
        return self.env.reset(**given)

    def step(self, action):
        found = self.env.step(action)
        self.total += float(found[1])
        if found[2] or found[3]:
            os.write(self.file, f"{self.total}\n".encode())
        return found


def configure():
    env = args.env
    runners = dict(num_env_runners=args.runners, num_envs_per_env_runner=args.envs, num_cpus_per_env_runner=0.4,
                   gym_env_vectorize_mode=args.vectorize)  # fmt: skip
    training = {"entropy_coeff": 0.0}
    model = dict(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=True)
    if ATARI:
        from ray.rllib.connectors.env_to_module.frame_stacking import FrameStackingEnvToModule
        from ray.rllib.connectors.learner.frame_stacking import FrameStackingLearner

        tune.register_env("atari", make_atari)
        env = "atari"
        runners["env_to_module_connector"] = lambda env, spaces, device: FrameStackingEnvToModule(num_frames=4)
        training["learner_connector"] = lambda obs, action: FrameStackingLearner(num_frames=4)
        model = dict(conv_filters=[[32, 8, 4], [64, 4, 2], [64, 3, 1]], conv_activation="relu",
                     head_fcnet_hiddens=[512], vf_share_layers=True)  # fmt: skip
    elif args.until is not None:
        tune.register_env("logged", lambda config: Logged(RETURNS))
        env = "logged"
    if args.fragment:
        runners["rollout_fragment_length"] = args.fragment
    for key, value in (
        ("train_batch_size_per_learner", args.batch),
        ("lr", args.lr),
        ("vf_loss_coeff", args.value_cost),
    ):
        if value:
            training[key] = value
    if args.algo == "impala":
        training["timeout_s_sampler_manager"] = 0.2  # the default polls without waiting, and is slower
        config = IMPALAConfig()
    else:
        training |= {"num_epochs": args.epochs, **({"minibatch_size": args.minibatch} if args.minibatch else {})}
        config = PPOConfig()
    config = config.environment(env).framework("torch").env_runners(**runners).training(**training)
    config = config.learners(num_learners=args.learners, num_cpus_per_learner=0.5).rl_module(
        model_config=DefaultModelConfig(**model)
    )
    return config.reporting(min_time_s_per_iteration=1).debugging(seed=args.seed, log_level="ERROR")


def memory():
    total = 0
    for process in psutil.process_iter(["cmdline"]):
        if any(word in " ".join(process.info["cmdline"] or []) for word in ("ray::", "raylet", "gcs_server")):
            try:
                total += process.memory_full_info().pss
            except psutil.Error:
                continue
    return round((total + psutil.Process().memory_full_info().pss) / 2**20)


def solve(algorithm, out):
    last, position, start = deque(maxlen=100), 0, time.time()
    while True:
        found = algorithm.train()
        now = time.time()
        if os.path.exists(RETURNS):
            with open(RETURNS) as file:
                file.seek(position)
                text = file.read()
                position += len(text)
            last.extend(float(word) for word in text.split())
        mean = float(np.mean(last)) if len(last) == 100 else float("nan")
        if mean >= args.until or now - start > args.cap:
            steps = int(found["env_runners"].get("num_env_steps_sampled_lifetime", 0))
            out.update(solved=mean >= args.until, wall_s=now - start, total_s=now - BEGIN, env_steps=steps)
            out["return"] = mean
            return


def throughput(algorithm, out):
    first = since = None
    while True:
        found = algorithm.train()
        now, steps = time.time(), int(found["env_runners"].get("num_env_steps_sampled_lifetime", 0))
        if first is None:
            first = now
            out["first_update_s"] = now - BEGIN  # of a whole result: it tells no sooner
        if since is None and now - first >= args.warmup:
            since = (now, steps)
        elif since and now - since[0] >= args.seconds:
            out.update(env_steps_per_s=(steps - since[1]) / (now - since[0]), window_s=now - since[0])
            return


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    algorithm = configure().build_algo()
    result = {"peer": "rllib", "version": ray.__version__, "precision": "fp32"}
    (solve if args.until is not None else throughput)(algorithm, result)
    result["pss_mb"] = memory()
    print(json.dumps(result), flush=True)
    algorithm.stop()
    ray.shutdown()
