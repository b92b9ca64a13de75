"""DDPG of Stable-Baselines3 or of SBX (the same in JAX): updates per second, one update per environment step. Runs in
its own environment; prints one JSON line."""

from measured import Window, make_env, options, parse

parser = options(__doc__, "sb3", "sbx", env="Pendulum-v1")
parser.add_argument("--batch", type=int, default=256)
parser.add_argument("--hidden", type=int, nargs="+", default=[256, 256])
args = parse(parser)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.noise import NormalActionNoise  # noqa: E402

if args.peer == "sb3":
    import stable_baselines3 as peer
else:
    import sbx as peer

torch.set_num_threads(args.threads)
window = Window(args)


class Watch(BaseCallback):
    def _on_step(self):
        return not window.over(env_steps=self.model.num_timesteps, updates=self.model._n_updates)


env = make_env(args.env)
actions = env.action_space.shape[0]
more = {"device": "cpu"} if args.peer == "sb3" else {}
learner = peer.DDPG(
    "MlpPolicy", env, learning_rate=1e-3, buffer_size=1_000_000, learning_starts=1_000, batch_size=args.batch,
    tau=0.005, gamma=0.99, train_freq=1, gradient_steps=1, policy_kwargs={"net_arch": args.hidden},
    action_noise=NormalActionNoise(np.zeros(actions), 0.1 * np.ones(actions)), **more,
)  # fmt: skip
learner.learn(10**9, callback=Watch())
window.tell(args.peer, peer.__version__)
