"""Sample Factory's APPO: throughput and time to solve. Runs in its own environment; prints one JSON line.

What follows ``--`` goes to Sample Factory.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time

BEGIN = time.time()
FOLDER = tempfile.mkdtemp()
split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
parser = argparse.ArgumentParser()
parser.add_argument("--env", default="CartPole-v1")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--warmup", type=float, default=8)
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--until", type=float, help="solve: stop at this mean return of the last 100 episodes")
parser.add_argument("--cap", type=float, default=300)
args, passed_on = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1 :]
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["WANDB_MODE"] = "disabled"

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
import psutil  # noqa: E402
from sample_factory.algo.runners.runner import AlgoObserver  # noqa: E402
from sample_factory.algo.utils.misc import ExperimentStatus  # noqa: E402
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args  # noqa: E402
from sample_factory.envs.env_utils import register_env  # noqa: E402
from sample_factory.train import make_runner  # noqa: E402

ATARI = args.env.startswith("ALE/")


class AsArray(gym.ObservationWrapper):
    def observation(self, observation):
        return np.asarray(observation)


def make(name, cfg=None, env_config=None, render_mode=None):
    if not ATARI:
        # gymnasium 0.29, pinned by Sample Factory, has version 2, which differs in a wind that is off
        return gym.make(args.env.replace("LunarLander-v3", "LunarLander-v2"), render_mode=render_mode)
    import cv2
    from ale_py.env import AtariEnv  # that gymnasium does not see the ids of ale-py 0.12

    class Spec:  # which its AtariPreprocessing reads
        id = "NoFrameskip-v4"
        kwargs: dict = {}  # noqa: RUF012

    cv2.setNumThreads(1)
    game = args.env.removeprefix("ALE/").partition("-")[0].lower()
    env = AtariEnv(game=game, frameskip=1, repeat_action_probability=0.0, render_mode=render_mode)
    env._frameskip, env.spec = 1, Spec
    env = gym.wrappers.TimeLimit(env, 27000)
    env = gym.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84, grayscale_obs=True)
    return AsArray(gym.wrappers.FrameStack(env, 4))


register_env("benchmark", make)
flags = ["--algo=APPO", "--env=benchmark", "--device=cpu", f"--experiment=b{os.getpid()}", f"--train_dir={FOLDER}",
         "--use_rnn=False", f"--seed={args.seed}", "--stats_avg=100", "--summaries_use_frameskip=False",
         "--save_every_sec=100000", "--experiment_summaries_interval=5", "--recurrence=1"]  # fmt: skip
if ATARI:
    flags += ["--encoder_conv_architecture=convnet_atari", "--encoder_conv_mlp_layers", "512", "--obs_scale=255.0"]
    flags += ["--nonlinearity=relu"]
else:
    flags += ["--encoder_mlp_layers", "64", "64", "--nonlinearity=tanh"]
sf_parser, _ = parse_sf_args(argv=flags + passed_on)
config = parse_full_cfg(sf_parser, flags + passed_on)
result = {"peer": "sf", "version": "2.1.1", "precision": "fp32"}


class Watch(AlgoObserver):
    def __init__(self):
        self.start = self.since = self.first = None

    def on_start(self, runner):
        self.start = time.time()

    def end(self, runner, **figures):
        me = psutil.Process()
        memory = sum(p.memory_full_info().pss for p in [me, *me.children(recursive=True)])
        result.update(pss_mb=round(memory / 2**20), first_update_s=self.first - BEGIN, **figures)
        runner.cfg.train_for_seconds = runner.cfg.train_for_env_steps = 0

    def on_training_step(self, runner, iteration):
        now = time.time()
        self.first = self.first or now
        if "pss_mb" in result:
            return
        steps = runner.env_steps.get(0, 0)
        window = runner.policy_avg_stats.get("reward", [[]])[0]
        mean = float(np.mean(window)) if len(window) else float("nan")
        if args.until is not None:
            solved = len(window) >= 100 and mean >= args.until
            if solved or now - self.start > args.cap:
                wall = {"wall_s": now - self.start, "total_s": now - BEGIN}
                self.end(runner, solved=solved, **wall, env_steps=steps, **{"return": mean})
        elif self.since is None:
            if now - self.first >= args.warmup:
                self.since = (now, steps)
        elif now - self.since[0] >= args.seconds:
            span = now - self.since[0]
            self.end(runner, env_steps_per_s=(steps - self.since[1]) / span, window_s=span)


if __name__ == "__main__":
    config, main_runner = make_runner(config)
    main_runner.register_observer(Watch())
    status = main_runner.init()
    if status == ExperimentStatus.SUCCESS:
        main_runner.run()
    shutil.rmtree(FOLDER, ignore_errors=True)
    print(json.dumps(result), flush=True)
