"""Evolution strategies on a 64-64 tanh network: environment steps per second of EvoTorch's PGPE, SB3-contrib's ARS, or
of a bare loop in NumPy (which is OpenAI's ES with a noise table and forked workers). Prints one JSON line.

    python bench_es.py --peer evotorch|ars|numpy --env CartPole-v1 --population 128 --workers 2

A generation is antithetic pairs, an episode each, centred ranks, one step of Adam (ARS: of its own). The step size is
1e-8, so that episodes stay as long as they are: compare steps, not episodes, whose length depends on the first weights.
"""

import logging
import multiprocessing

from measured import Window, make_env, options, parse

parser = options(__doc__, "evotorch", "ars", "numpy")
parser.add_argument("--population", type=int, default=128)
parser.add_argument("--workers", type=int, default=2)
args = parse(parser)

import numpy as np  # noqa: E402

RATE, STD, CHUNK = 1e-8, 0.05, 4
logging.disable(logging.WARNING)
window = Window(args)


def evotorch():
    import evotorch as peer
    import torch
    from evotorch.algorithms import PGPE
    from evotorch.neuroevolution import GymNE

    torch.set_num_threads(1)
    net = "Linear(obs_length, 64) >> Tanh() >> Linear(64, 64) >> Tanh() >> Linear(64, act_length)"
    problem = GymNE(args.env, net, num_actors=args.workers if args.workers > 1 else None)
    search = PGPE(
        problem, popsize=args.population, center_learning_rate=RATE, stdev_learning_rate=0.0, stdev_init=STD,
        optimizer="adam", ranking_method="centered",
    )  # fmt: skip
    generations = steps = 0
    while not window.over(env_steps=steps, updates=generations):
        search.step()
        generations, steps = generations + 1, int(search.status["total_interaction_count"])
    return peer.__version__


def ars():
    import sb3_contrib
    import torch
    from sb3_contrib import ARS
    from sb3_contrib.common.vec_env import AsyncEval
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)

    def make():
        return make_vec_env(args.env, n_envs=1)

    class Watched(ARS):
        generations = 0

        def _do_one_update(self, *given, **named):
            super()._do_one_update(*given, **named)
            self.generations += 1
            if window.over(env_steps=self.num_timesteps, updates=self.generations):
                for worker in multiprocessing.active_children():
                    worker.kill()
                window.tell("ars", sb3_contrib.__version__, workers=args.workers)

    search = Watched(
        "MlpPolicy", make(), n_delta=args.population // 2, learning_rate=RATE, delta_std=STD, device="cpu",
        policy_kwargs={"net_arch": [64, 64], "activation_fn": torch.nn.Tanh},
    )  # fmt: skip
    search.learn(10**12, async_eval=AsyncEval([make] * args.workers, search.policy), log_interval=10**9)


def play(env, discrete, high, shapes, theta):
    """Return and length of an episode."""
    parts, at = [], 0
    for shape in shapes:
        size = int(np.prod(shape))
        parts.append(theta[at : at + size].reshape(shape))
        at += size
    w1, b1, w2, b2, w3, b3 = parts
    obs, _ = env.reset()
    total, steps, ended = 0.0, 0, False
    while not ended:
        y = np.tanh(np.tanh(obs.astype(np.float32) @ w1 + b1) @ w2 + b2) @ w3 + b3
        obs, reward, terminated, truncated, _ = env.step(int(y.argmax()) if discrete else np.tanh(y) * high)
        total, steps, ended = total + float(reward), steps + 1, terminated or truncated
    return total, steps


def work(pipe, noise, *described):
    """A worker: blocks of pairs, until it is killed."""
    env, size = make_env(args.env), sum(int(np.prod(shape)) for shape in described[2])
    while True:
        theta, indices = pipe.recv()
        found = []
        for i in indices:
            step = STD * noise[i : i + size]
            found.append((i, *play(env, *described, theta + step), *play(env, *described, theta - step)))
        pipe.send(found)


def numpy():
    from multiprocessing.connection import wait

    env = make_env(args.env)
    discrete, inputs = hasattr(env.action_space, "n"), env.observation_space.shape[0]
    outputs = int(env.action_space.n) if discrete else env.action_space.shape[0]
    shapes = [(inputs, 64), (64,), (64, 64), (64,), (64, outputs), (outputs,)]
    size, rng = sum(int(np.prod(shape)) for shape in shapes), np.random.default_rng(0)
    noise = rng.standard_normal(10_000_000, dtype=np.float32)
    pipes, context = [], multiprocessing.get_context("fork")
    for _ in range(args.workers):
        mine, its = context.Pipe()
        given = (its, noise, discrete, None if discrete else env.action_space.high, shapes)
        context.Process(target=work, args=given, daemon=True).start()
        pipes.append(mine)
    theta = 0.1 * rng.standard_normal(size, dtype=np.float32)
    mean, square, generations, steps = np.zeros_like(theta), np.zeros_like(theta), 0, 0
    while not window.over(env_steps=steps, updates=generations):
        indices = list(rng.integers(0, len(noise) - size, args.population // 2))
        blocks, found = [indices[i : i + CHUNK] for i in range(0, len(indices), CHUNK)], []
        busy = set(pipes[: len(blocks)])
        for pipe in list(busy):
            pipe.send((theta, blocks.pop()))
        while busy:
            for pipe in wait(list(busy)):
                found += pipe.recv()
                if blocks:
                    pipe.send((theta, blocks.pop()))
                else:
                    busy.discard(pipe)
        returns = np.array([[one[1], one[3]] for one in found])
        ranks = returns.ravel().argsort().argsort().reshape(returns.shape) / (returns.size - 1) - 0.5
        weights = ranks[:, 0] - ranks[:, 1]
        gradient = sum(w * noise[one[0] : one[0] + size] for w, one in zip(weights, found))  # noqa: B905
        gradient = (gradient / (args.population * STD)).astype(np.float32)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        theta = theta + RATE * mean / (np.sqrt(square) + 1e-8)
        generations, steps = generations + 1, steps + sum(one[2] + one[4] for one in found)
    return np.__version__


if __name__ == "__main__":
    version = {"evotorch": evotorch, "ars": ars, "numpy": numpy}[args.peer]()
    for child in multiprocessing.active_children():
        child.kill()
    window.tell(args.peer, version, workers=args.workers)
