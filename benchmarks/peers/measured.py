"""What the scripts of peers share: options, environments, and the window in which they are measured. It imports nothing
of any peer, and sets the number of threads before anything else is imported."""

import argparse
import json
import os
import signal
import time
import warnings

BEGIN = time.time()
warnings.filterwarnings("ignore")


def options(text, *peers, env="CartPole-v1"):
    """A parser with what every script takes."""
    out = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--peer", choices=peers, required=True)
    out.add_argument("--env", default=env)
    out.add_argument("--threads", type=int, default=1)
    out.add_argument("--warmup", type=float, default=2, help="seconds between the first update and the window")
    out.add_argument("--seconds", type=float, default=10)
    return out


def parse(parser):
    """Parse, and hold NumPy, torch and XLA to ``--threads``."""
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    if args.threads == 1:
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    return args


class Window:
    """Rates between the first call of ``over`` after the warm-up, which begins with the first update, and that which
    ends the window. Counts come from the peer's own counters, since some only seem to learn."""

    def __init__(self, args):
        self.warmup, self.seconds = args.warmup, args.seconds
        self.first = self.since = None
        self.rates = {}
        self.leads = False

    def over(self, **counts):
        """counts: ``updates`` and others so far. True once the window is over."""
        now = time.time()
        if not counts.get("updates", 1):
            return False
        self.first = self.first or now
        if self.since is None:
            if now - self.first >= self.warmup:
                self.since = now, time.process_time(), counts
        elif now - self.since[0] >= self.seconds:
            span = now - self.since[0]
            self.rates = {f"{name}_per_s": (counts[name] - n) / span for name, n in self.since[2].items()}
            cores = (time.process_time() - self.since[1]) / span  # of this process: less than 1 where it had to wait
            self.rates |= {"window_s": span, "first_update_s": self.first - BEGIN, "cores": cores}
            return True
        return False

    def tell(self, peer, version, **facts):
        """Print the one line, and end at once: this process, or the group of processes that ``lead`` made."""
        print(json.dumps({"peer": peer, "version": version, "precision": "fp32", **facts, **self.rates}), flush=True)
        if self.leads:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os._exit(0)

    def lead(self):
        """Make this process and those it starts a group of their own, which ``tell`` in any of them ends."""
        os.setpgrp()
        self.leads = True


def make_env(name):
    """The environment as Shoal's presets have it; Atari: four frames of 84x84, four emulator frames a step."""
    import gymnasium as gym

    if not name.startswith("ALE/"):
        return gym.make(name)
    import ale_py
    import cv2

    cv2.setNumThreads(1)
    gym.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    env = gym.make(name, frameskip=1, repeat_action_probability=0.0)
    env = gym.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84, grayscale_obs=True)
    return gym.wrappers.FrameStackObservation(env, 4)
