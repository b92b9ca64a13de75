"""Recurrent Q-learning from sequences: PFRL's (no priorities, no burn-in, no stored state: it has none for recurrent
networks), or a bare update of R2D2 alone on one fixed batch (the limit). Steps learned from per second; one JSON line.

    python bench_recurrent_q.py --peer pfrl|bare --env long|ALE/Pong-v5

``long`` is CartPole without velocities whose episodes last 200 steps (../long_cartpole.py): every sequence then has its
full length on every side. Network: 64 tanh and an LSTM of 64, or the Nature network and an LSTM of 512. The bare update
burns in both networks, and is double, n-step and rescaled.
"""

import sys
from pathlib import Path

from measured import Window, make_env, options, parse

parser = options(__doc__, "pfrl", "bare", env="long")
parser.add_argument("--batch", type=int, default=32, help="sequences of an update")
parser.add_argument("--length", type=int, default=40, help="steps of a sequence that are learned from")
parser.add_argument("--burn-in", type=int, default=40, help="bare: steps before them")
parser.add_argument("--n-step", type=int, default=5, help="bare")
parser.add_argument("--per", type=int, default=4, help="pfrl: environment steps per update")
args = parse(parser)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

torch.set_num_threads(args.threads)
ATARI = args.env.startswith("ALE/")
UNITS, CORE, ACTIONS, SHAPE = (512, 512, 6, (4, 84, 84)) if ATARI else (64, 64, 2, (2,))
window = Window(args)


def torso():
    if not ATARI:
        return nn.Sequential(nn.Linear(2, UNITS), nn.Tanh())
    return nn.Sequential(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
                         nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(3136, UNITS),
                         nn.ReLU())  # fmt: skip


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.torso, self.core, self.head = torso(), nn.LSTM(UNITS, CORE), nn.Linear(CORE, ACTIONS)

    def forward(self, x, state):  # [T, B, ...]
        lead = x.shape[:2]
        y, state = self.core(self.torso(x.flatten(0, 1)).view(*lead, -1), state)
        return self.head(y), state


def squash(x):
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + 1e-3 * x


def unsquash(x):
    return x.sign() * ((((1 + 4e-3 * (x.abs() + 1 + 1e-3)).sqrt() - 1) / 2e-3) ** 2 - 1)


def bare():
    before, length, ahead, batch = args.burn_in, args.length, args.n_step, args.batch
    net, target = Bare(), Bare()
    optimiser = torch.optim.Adam(net.parameters(), 1e-4)
    obs = torch.rand(before + length + ahead, batch, *SHAPE)
    actions = torch.randint(0, ACTIONS, (length, batch, 1))
    rewards, zero = torch.randn(length, batch), (torch.zeros(1, batch, CORE), torch.zeros(1, batch, CORE))
    updates = 0
    while not window.over(updates=updates, learned_steps=updates * batch * length):
        with torch.no_grad():
            state, of_target = net(obs[:before], zero)[1], target(obs[:before], zero)[1]
            after = target(obs[before:], of_target)[0]
        values = net(obs[before:], state)[0]
        best = values.detach().argmax(2, keepdim=True)
        ahead_values = unsquash(after.gather(2, best)[ahead:, :, 0])  # [length, B]
        error = values[:length].gather(2, actions)[..., 0] - squash(rewards + 0.997**ahead * ahead_values)
        optimiser.zero_grad()
        error.square().mean().backward()
        optimiser.step()
        updates += 1
    return torch.__version__


def pfrl():
    import pfrl as peer

    if ATARI:
        env = make_env(args.env)
    else:
        sys.path.insert(0, str(Path(__file__).parents[1]))
        from long_cartpole import make

        env = make()
    net = peer.nn.RecurrentSequential(
        torso(), nn.LSTM(num_layers=1, input_size=UNITS, hidden_size=CORE), nn.Linear(CORE, ACTIONS),
        peer.q_functions.DiscreteActionValueHead(),
    )  # fmt: skip
    scale = 255.0 if ATARI else 1.0
    agent = peer.agents.DoubleDQN(
        net, torch.optim.Adam(net.parameters(), 1e-4), peer.replay_buffers.EpisodicReplayBuffer(100_000), gpu=None,
        gamma=0.997, explorer=peer.explorers.ConstantEpsilonGreedy(0.1, env.action_space.sample),
        replay_start_size=200 * (args.batch + 1), target_update_interval=2_500, update_interval=args.per,
        minibatch_size=args.batch, recurrent=True, episodic_update_len=args.length, batch_accumulator="mean",
        phi=lambda x: np.asarray(x, np.float32) / scale,
    )  # fmt: skip
    update, learned = agent.update_from_episodes, [0]

    def counted(episodes, **given):
        learned[0] += sum(map(len, episodes))
        update(episodes, **given)

    agent.replay_updater.update_func = counted
    obs, steps = env.reset(seed=0)[0], 0
    while not window.over(env_steps=steps, updates=agent.optim_t, learned_steps=learned[0]):
        obs, reward, terminated, truncated, _ = env.step(int(agent.act(obs)))
        agent.observe(obs, float(reward), terminated, truncated)
        obs = env.reset()[0] if terminated or truncated else obs
        steps += 1
    return "0.4.0"


if __name__ == "__main__":
    version = {"pfrl": pfrl, "bare": bare}[args.peer]()
    window.tell(args.peer, version)
