"""A2C: workers and a learner in lockstep. Try: shoal train own_system.py --env CartPole-v1 --steps 200000"""

from dataclasses import dataclass

from torch.optim import Adam

from shoal import Channel, Program
from shoal.algos.actor_critic import ActorCritic, ActorCriticAgent, boundaries, observations, start_state
from shoal.algos.sgd import SGDLearner
from shoal.api import Update
from shoal.envs import make
from shoal.ops import gae
from shoal.roles.actor import Actor, unroll_spec
from shoal.roles.learner import LearnerRole
from shoal.systems.common import CommonConfig, env_spec, params_spec

PRESETS = {"classic": {"unroll": 8, "learning_rate": 2e-3}}  # taken for CartPole and its like


@dataclass(frozen=True, kw_only=True)
class Config(CommonConfig):
    learning_rate: float = 7e-4


class A2C:
    def __init__(self, nets):
        self.nets, self.actor_params = nets, nets.state_dict  # actors get everything

    def loss(self, batch):  # tensors in, tensors out; time-major [T, B]
        items, dist = batch.items, self.nets.dist
        policy, value = self.nets.unroll(observations(items), items["first"], start_state(items))  # [T+1, B]
        discounts, next_values, cut = boundaries(items, value.detach(), gamma=0.99)
        advantage = gae(items["reward"], discounts, value[:-1].detach(), next_values, cut, 0.95)
        entropy, log_prob = dist.entropy(policy[:-1]), dist.log_prob(policy[:-1], items["action"])
        loss = 0.5 * (advantage + value[:-1].detach() - value[:-1]) ** 2 - advantage * log_prob - 0.01 * entropy
        return loss[items["valid"]].mean(), Update({"entropy": entropy.detach().mean()})

    def after_step(self, step): ...  # here a target network would be copied


def agent(cfg, seed=0):
    return ActorCriticAgent(ActorCritic(env_spec(cfg), torso=cfg.torso, hidden=cfg.hidden), seed)


def program(cfg):
    def worker(ctx, out, params):
        return Actor(ctx, make(cfg.env, cfg.envs, ctx.seed, cfg.env_options()), agent(cfg, ctx.seed), out, params, spec)

    def learner(ctx, unrolls, params):
        nets = agent(cfg).nets.requires_grad_(True)
        sgd = SGDLearner(A2C(nets), Adam(nets.parameters(), cfg.learning_rate), max_grad_norm=0.5)
        return LearnerRole(ctx, sgd, unrolls, params)

    p, spec = Program("a2c"), unroll_spec(env_spec(cfg), cfg.unroll, cfg.envs, extras={})
    unrolls = p.channel(Channel("unrolls", "queue", spec, capacity=1))
    params = p.channel(Channel("params", "params", params_spec(lambda: agent(cfg).nets)))
    p.role("worker", worker, replicas=cfg.num_actors(), out=unrolls.writer(), params=params.reader(lockstep=True))
    p.role("learner", learner, unrolls=unrolls.reader(each=True), params=params.writer())
    return p
