"""TD3: DDPG with two critics, a policy that learns half as often, and noise on the target's actions.

Fujimoto et al. 2018, "Addressing Function Approximation Error". Try: shoal train own_td3.py --env Pendulum-v1
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from shoal import building as rl

PRESETS = {"classic": {"steps": 20_000, "total_envs": 1, "unroll": 8}}


@dataclass(frozen=True, kw_only=True)
class Config(rl.TransitionConfig):
    env: str = "Pendulum-v1"
    hidden: tuple[int, ...] = (256, 256)
    optimiser_eps: float = 1e-8
    max_grad_norm: float | None = None
    n_step: int = 1
    batch: int = 256
    samples_per_insert: float = 256.0  # one update per step


class TD3Network(rl.BoxNetwork):
    def __init__(self, cfg, device="cpu"):
        super().__init__(cfg.env_spec(), cfg.torso, cfg.hidden, "relu", cfg.precision, device)
        features, actions = self.encoder.features, self.actions
        layers = rl.MLP((features, *cfg.hidden), "relu"), nn.Linear(cfg.hidden[-1], actions), nn.Tanh()
        self.policy = nn.Sequential(*layers)
        self.critics = nn.ModuleList(rl.Critic(features, actions, cfg.hidden, 1, "relu", False) for _ in range(2))


class TD3(rl.OffPolicy):
    def loss(self, outputs, batch):
        items, nets, target = batch.items, self.nets, self.target
        seen, after = nets.features(rl.observations(items)), target.features(rl.observations(items, "next/"))
        with torch.no_grad():  # algorithm 1; discount: gamma^n, 0 where the episode has terminated
            best = target.policy(after)
            noise = (0.2 * torch.randn(best.shape, generator=self.generator).to(best.device)).clamp(-0.5, 0.5)
            value = torch.cat([critic(after, (best + noise).clamp(-1, 1)) for critic in target.critics], -1).amin(-1)
            wanted = items["reward"] + items["discount"] * value
        action = items["action"]
        error = torch.cat([critic(seen, action) for critic in nets.critics], -1) - wanted[:, None]
        loss = items["weight"].dot(error.square().sum(-1))
        if self.updates % 2 == 0:  # delayed policy updates
            with rl.without_gradients(nets.critics):
                value = nets.critics[0](seen.detach(), nets.policy(seen.detach())).squeeze(-1)
            loss = loss - items["weight"].dot(value)
        return loss, rl.Update({}, error.detach().abs().mean(-1))

    def after_step(self, step):
        self.updates = step
        if step % 2 == 0:
            self.average_target(0.005)


class TD3Agent(rl.NetworkAgent):
    noise: Callable[[], float]  # standard deviation

    @torch.no_grad()
    def act(self, obs, first, state, greedy=False):
        action = self.nets.policy(self.nets.features({k: torch.from_numpy(v) for k, v in obs.items()}))
        if not greedy:
            action = (action + self.noise() * torch.randn(action.shape, generator=self.rng)).clamp(-1, 1)
        return rl.Act(action.numpy(), state, {})


def agent(cfg, seed=0, ctx=None):
    made = TD3Agent(TD3Network(cfg), torch.Generator().manual_seed(seed))
    made.noise = lambda: 1.0 if ctx and ctx.steps() < cfg.min_replay else 0.1  # wide before the first update
    return made


def program(cfg):
    def learn(nets, ctx):
        return rl.descent(cfg, ctx, TD3.of(cfg, nets, ctx.seed))

    return rl.replay_program("td3", cfg, rl.stream(cfg), cfg.table(), TD3Network, agent, learn)
