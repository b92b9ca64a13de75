"""C51, QR-DQN and Rainbow of Tianshou, PFRL (no QR-DQN; Rainbow on vectors without dueling) or SB3-contrib (QR-DQN
only): updates per second. Runs in the peer's own environment; prints one JSON line.

    python bench_value.py --peer tianshou --algo c51 --env CartPole-v1 --envs 8

One update per ``--per`` environment steps. Vectors: an MLP, 51 atoms in [-100, 100]; Atari: the Nature network, 51
atoms in [-10, 10] or 200 quantiles. Rainbow is double, dueling, noisy (sigma 0.5), C51, three-step and prioritised.
"""

import logging

from measured import Window, make_env, options, parse

parser = options(__doc__, "tianshou", "pfrl", "sb3")
parser.add_argument("--algo", choices=["c51", "qr-dqn", "rainbow"], required=True)
parser.add_argument("--envs", type=int, default=8)
parser.add_argument("--batch", type=int, default=128)
parser.add_argument("--hidden", type=int, nargs=2, default=[120, 84])
parser.add_argument("--per", type=int, default=4, help="environment steps per update")
args = parse(parser)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

torch.set_num_threads(args.threads)
logging.disable(logging.CRITICAL)
ATARI = args.env.startswith("ALE/")
START, CAPACITY, RATE, TARGET = 1_000, 100_000, 2.5e-4, 500
HIGH, ATOMS = (10.0, 200 if args.algo == "qr-dqn" else 51) if ATARI else (100.0, 51)
STEPS = 3 if args.algo == "rainbow" else 1
ROUND = args.envs * args.per  # environment steps between two rounds of updates, as many as there are environments
window = Window(args)


def tianshou():
    import tianshou as peer
    from tianshou.algorithm import C51, QRDQN, RainbowDQN
    from tianshou.algorithm.modelfree.c51 import C51Policy
    from tianshou.algorithm.modelfree.qrdqn import QRDQNPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, PrioritizedVectorReplayBuffer, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.env.atari.atari_network import C51Net, QRDQNet, RainbowNet, ScaledObsInputActionReprNet
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import NoisyLinear
    from tianshou.utils.torch_utils import policy_within_training_step

    env = make_env(args.env)
    actions = int(env.action_space.n)
    if ATARI:
        shapes = dict(c=4, h=84, w=84, action_shape=[actions])
        kinds = {"c51": C51Net, "rainbow": RainbowNet}
        net = QRDQNet(num_quantiles=ATOMS, **shapes) if args.algo == "qr-dqn" else kinds[args.algo](**shapes)
        net = ScaledObsInputActionReprNet(net)
    else:
        first, second = args.hidden
        shapes = dict(state_shape=(4,), action_shape=actions, num_atoms=ATOMS, softmax=args.algo != "qr-dqn")
        stream = dict(linear_layer=lambda x, y: NoisyLinear(x, y, 0.5), hidden_sizes=(second,))
        if args.algo == "rainbow":
            net = Net(**shapes, hidden_sizes=(first,), dueling_param=(stream, stream))
        else:
            net = Net(**shapes, hidden_sizes=args.hidden)
    spaces = dict(action_space=env.action_space, observation_space=env.observation_space, eps_training=0.05)
    rule = dict(optim=AdamOptimizerFactory(lr=RATE), gamma=0.99, n_step_return_horizon=STEPS, target_update_freq=TARGET)
    if args.algo == "qr-dqn":
        algorithm = QRDQN(policy=QRDQNPolicy(model=net, **spaces), num_quantiles=ATOMS, **rule)
    else:
        policy = C51Policy(model=net, num_atoms=ATOMS, v_min=-HIGH, v_max=HIGH, **spaces)
        algorithm = (RainbowDQN if args.algo == "rainbow" else C51)(policy=policy, **rule)
    kept = dict(ignore_obs_next=True, save_only_last_obs=True, stack_num=4) if ATARI else {}
    if args.algo == "rainbow":
        buffer = PrioritizedVectorReplayBuffer(CAPACITY, args.envs, alpha=0.5, beta=0.4, weight_norm=True, **kept)
    else:
        buffer = VectorReplayBuffer(CAPACITY, args.envs, **kept)
    envs = DummyVectorEnv([lambda: make_env(args.env)] * args.envs)
    collector = Collector(algorithm, envs, buffer, exploration_noise=True)
    collector.reset()
    collector.collect(n_step=START // args.envs * args.envs, random=True)
    steps = updates = 0
    with policy_within_training_step(algorithm.policy):
        while not window.over(env_steps=steps, updates=updates):
            steps += collector.collect(n_step=ROUND).n_collected_steps
            for _ in range(args.envs):
                algorithm.update(buffer=buffer, sample_size=args.batch)
            updates += args.envs
    return peer.__version__


def sb3():
    import sb3_contrib
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv

    class Watch(BaseCallback):
        def _on_step(self):
            return not window.over(env_steps=self.model.num_timesteps, updates=self.model._n_updates)

    if args.algo != "qr-dqn":
        raise SystemExit("SB3-contrib has QR-DQN only")
    shape = {} if ATARI else {"net_arch": args.hidden}
    learner = sb3_contrib.QRDQN(
        "CnnPolicy" if ATARI else "MlpPolicy", DummyVecEnv([lambda: make_env(args.env)] * args.envs),
        learning_rate=RATE, buffer_size=CAPACITY, learning_starts=START, batch_size=args.batch, train_freq=args.per,
        gradient_steps=args.envs, target_update_interval=TARGET * args.per, gamma=0.99, device="cpu",
        policy_kwargs={"n_quantiles": ATOMS, **shape},
    )  # fmt: skip
    learner.learn(10**9, callback=Watch())
    return sb3_contrib.__version__


def pfrl():
    import pfrl as peer
    from pfrl import agents, explorers, replay_buffers
    from pfrl.action_value import DistributionalDiscreteActionValue
    from pfrl.q_functions import DistributionalDuelingDQN

    if args.algo == "qr-dqn":
        raise SystemExit("PFRL has no QR-DQN")
    envs = [make_env(args.env) for _ in range(args.envs)]
    actions = int(envs[0].action_space.n)

    class Distributions(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("atoms", torch.linspace(-HIGH, HIGH, ATOMS))

        def forward(self, x):
            return DistributionalDiscreteActionValue(torch.softmax(x.view(-1, actions, ATOMS), 2), self.atoms)

    if ATARI and args.algo == "rainbow":
        net = DistributionalDuelingDQN(actions, ATOMS, -HIGH, HIGH)
    else:
        if ATARI:
            body = [nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1),
                    nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU()]  # fmt: skip
        else:
            first, second = args.hidden
            body = [nn.Linear(4, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU()]
        units = 512 if ATARI else args.hidden[1]
        net = nn.Sequential(*body, nn.Linear(units, actions * ATOMS), Distributions())
    if args.algo == "rainbow":
        peer.nn.to_factorized_noisy(net, sigma_scale=0.5)
        explorer = explorers.Greedy()
        memory = replay_buffers.PrioritizedReplayBuffer(
            CAPACITY, alpha=0.5, beta0=0.4, betasteps=10**6, num_steps=STEPS, normalize_by_max="memory"
        )
    else:
        explorer = explorers.ConstantEpsilonGreedy(0.05, envs[0].action_space.sample)
        memory = replay_buffers.ReplayBuffer(CAPACITY, STEPS)
    scale = 255.0 if ATARI else 1.0
    kind = agents.CategoricalDoubleDQN if args.algo == "rainbow" else agents.CategoricalDQN
    agent = kind(
        net, torch.optim.Adam(net.parameters(), RATE), memory, gpu=None, gamma=0.99, explorer=explorer,
        minibatch_size=args.batch, replay_start_size=START, target_update_interval=TARGET * args.per,
        update_interval=args.per, batch_accumulator="mean", phi=lambda x: np.asarray(x, np.float32) / scale,
    )  # fmt: skip
    seen, steps = [env.reset()[0] for env in envs], 0
    while not window.over(env_steps=steps, updates=agent.optim_t):
        found = [env.step(int(a)) for env, a in zip(envs, agent.batch_act(seen))]  # noqa: B905
        ended = [truncated for _, _, _, truncated, _ in found]
        agent.batch_observe([f[0] for f in found], [float(f[1]) for f in found], [f[2] for f in found], ended)
        seen = [env.reset()[0] if f[2] or f[3] else f[0] for env, f in zip(envs, found)]  # noqa: B905
        steps += args.envs
    return "0.4.0"


if __name__ == "__main__":
    version = {"tianshou": tianshou, "sb3": sb3, "pfrl": pfrl}[args.peer]()
    window.tell(args.peer, version)
