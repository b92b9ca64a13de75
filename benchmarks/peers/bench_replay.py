"""Prioritised replay of Tianshou, RLlib and Reverb: one-step transitions in, batches of 512 out (alpha 0.6, beta 0.4).
Runs in the peer's environment; prints one JSON line.

    python bench_replay.py PEER cartpole|atari local|processes [--seconds 1.5] [--capacity 1000000]

``local``: adds, samples and priority updates per second in one process and thread, of a buffer that was filled first.
``processes``: two writer processes and a reader process, all as fast as they can (RLlib's buffer as a Ray actor).
"""

import argparse
import json
import multiprocessing
import os
import resource
import time
from statistics import median

parser = argparse.ArgumentParser()
parser.add_argument("peer", choices=["tianshou", "rllib", "reverb"])
parser.add_argument("item", choices=["cartpole", "atari"])
parser.add_argument("mode", choices=["local", "processes"])
parser.add_argument("--capacity", type=int, default=1_000_000)
parser.add_argument("--seconds", type=float, default=1.5)
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402

BATCH, WRITERS = 512, 2


class Items:
    """What is stored, and how much of it at a time."""

    def __init__(self, item):
        atari = item == "atari"
        self.shape, self.dtype = ((4, 84, 84), np.uint8) if atari else ((4,), np.float32)
        self.add = 64 if atari else 256  # transitions per add
        self.held = {  # the capacity at most, as filling takes long
            "tianshou": 20_000, "rllib": 20_000 if atari else 60_000, "reverb": 5_000 if atari else 20_000
        }  # fmt: skip

    def block(self, n):
        rng = np.random.default_rng(0)
        if self.dtype == np.uint8:
            return rng.integers(0, 255, (n, *self.shape), dtype=np.uint8)
        return rng.standard_normal((n, *self.shape), dtype=np.float32)


def rate(work, units, seconds):
    """Units per second, the median of three windows."""
    found = []
    for _ in range(3):
        done, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            work()
            done += units
        found.append(done / (time.perf_counter() - begin))
    return median(found)


def local(add, sample, update, items, held, seconds):
    count, begin = -(-held // items.add), time.perf_counter()
    for _ in range(count):
        add()
    found = {"held": held, "fill_per_s": count * items.add / (time.perf_counter() - begin)}
    found["inserts_per_s"] = rate(add, items.add, seconds)
    found["samples_per_s"] = rate(sample, BATCH, seconds)
    found["updates_per_s"] = rate(update(), BATCH, seconds)
    return found


def tianshou(items, args):
    import tianshou
    from tianshou.data import Batch, PrioritizedReplayBuffer

    buffer = PrioritizedReplayBuffer(args.capacity, alpha=0.6, beta=0.4)
    before, after = items.block(items.add), items.block(items.add)
    steps = [Batch(obs=a, act=0, rew=1.0, terminated=False, truncated=False, obs_next=b, info={})
             for a, b in zip(before, after)]  # noqa: B905 # fmt: skip

    def add():
        for step in steps:
            buffer.add(step)

    def update():
        _, indices = buffer.sample(BATCH)
        weights = np.random.rand(BATCH) + 0.01
        return lambda: buffer.update_weight(indices, weights)

    found = local(add, lambda: buffer.sample(BATCH), update, items, items.held["tianshou"], args.seconds)
    return {"version": tianshou.__version__, **found}


def rllib_buffer(items, capacity):
    import gymnasium as gym
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.utils.replay_buffers import PrioritizedEpisodeReplayBuffer

    high = 255 if items.dtype == np.uint8 else 9.0
    space = gym.spaces.Box(0 if items.dtype == np.uint8 else -9.0, high, items.shape, items.dtype)
    buffer = PrioritizedEpisodeReplayBuffer(capacity=capacity, batch_size_B=BATCH, alpha=0.6, beta=0.4)
    observations = list(items.block(items.add + 1))

    def episode():
        return SingleAgentEpisode(
            observations=list(observations), actions=[0] * items.add, rewards=[1.0] * items.add,
            observation_space=space, action_space=gym.spaces.Discrete(2), terminated=True, len_lookback_buffer=0,
        )  # fmt: skip

    return buffer, episode


def rllib(items, args):
    import ray

    buffer, episode = rllib_buffer(items, args.capacity)
    draw = dict(num_items=BATCH, n_step=1, gamma=0.99, beta=0.4)

    def update():
        buffer.sample(**draw)
        indices = list(buffer._last_sampled_indices)
        weights = np.random.rand(len(indices)) + 0.01

        def again():
            buffer._last_sampled_indices = list(indices)
            buffer.update_priorities(weights)

        return again

    found = local(
        lambda: buffer.add(episode()), lambda: buffer.sample(**draw), update, items, items.held["rllib"], args.seconds
    )
    return {"version": ray.__version__, **found}


def rllib_processes(items, args):
    import ray

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")

    @ray.remote(num_cpus=1)
    class Buffer:
        def __init__(self):
            self.buffer, _ = rllib_buffer(items, args.capacity)
            self.added = 0

        def add(self, episode):
            self.buffer.add(episode)
            self.added += items.add

        def sample(self):
            return self.buffer.sample(num_items=BATCH, n_step=1, gamma=0.99, beta=0.4)

        def inserted(self):
            return self.added

    @ray.remote(num_cpus=1)
    class Writer:
        def run(self, buffer, seconds):
            _, episode = rllib_buffer(items, 1000)
            end, flying = time.time() + seconds, []
            while time.time() < end:
                flying.append(buffer.add.remote(episode()))
                if len(flying) > 4:
                    ray.get(flying.pop(0))

    buffer = Buffer.remote()
    writers = [Writer.remote() for _ in range(WRITERS)]
    span = 3 * args.seconds
    running = [writer.run.remote(buffer, span + 3) for writer in writers]
    while ray.get(buffer.inserted.remote()) < BATCH:
        time.sleep(0.05)
    begin, before, sampled = time.time(), ray.get(buffer.inserted.remote()), 0
    flying = [buffer.sample.remote() for _ in range(2)]
    while time.time() - begin < span:
        ray.get(flying.pop(0))
        sampled += BATCH
        flying.append(buffer.sample.remote())
    seconds = time.time() - begin
    found = {
        "inserts_per_s": (ray.get(buffer.inserted.remote()) - before) / seconds,
        "samples_per_s": sampled / seconds,
    }
    ray.get(running)
    ray.shutdown()
    return {"version": ray.__version__, **found}


def reverb_server(items, capacity):
    import reverb
    import tensorflow as tf

    spec = tf.TensorSpec
    signature = dict(obs=spec(items.shape, items.dtype), next_obs=spec(items.shape, items.dtype),
                     action=spec((), np.int64), reward=spec((), np.float32), done=spec((), np.bool_))  # fmt: skip
    table = reverb.Table("p", reverb.selectors.Prioritized(0.6), reverb.selectors.Fifo(), capacity,
                         reverb.rate_limiters.MinSize(1), signature=signature)  # fmt: skip
    return reverb.Server([table])


def reverb_adder(items, port):
    import reverb

    client = reverb.Client(f"localhost:{port}")
    before, after = items.block(items.add), items.block(items.add)
    writer = client.trajectory_writer(num_keep_alive_refs=1)
    names = ("obs", "next_obs", "action", "reward", "done")

    def add():
        for a, b in zip(before, after):  # noqa: B905
            writer.append(dict(obs=a, next_obs=b, action=np.int64(0), reward=np.float32(1), done=np.bool_(False)))
            writer.create_item("p", 1.0, {name: writer.history[name][-1] for name in names})
        writer.flush()

    return client, add


def reverb_reader(port):
    import reverb

    dataset = reverb.TrajectoryDataset.from_table_signature(
        f"localhost:{port}", "p", max_in_flight_samples_per_worker=2 * BATCH
    )
    return iter(dataset.batch(BATCH))


def reverb(items, args):
    server = reverb_server(items, args.capacity)
    client, add = reverb_adder(items, server.port)
    reader = []

    def sample():
        reader[:] = reader or [reverb_reader(server.port)]
        return next(reader[0])

    def update():
        keys = [int(key) for key in np.asarray(sample().info.key).reshape(-1)]
        weights = dict(zip(keys, (np.random.rand(BATCH) + 0.01).tolist()))  # noqa: B905
        return lambda: client.mutate_priorities("p", updates=weights)

    return {"version": "0.14.0", **local(add, sample, update, items, items.held["reverb"], args.seconds)}


def reverb_write(item, port, counter, seconds):
    items = Items(item)
    _, add = reverb_adder(items, port)
    end = time.time() + seconds
    while time.time() < end:
        add()
        with counter.get_lock():
            counter.value += items.add


def reverb_read(port, counter, seconds):
    reader = reverb_reader(port)
    end = time.time() + seconds
    while time.time() < end:
        next(reader)
        counter.value += BATCH


def reverb_processes(items, args):
    server, context = reverb_server(items, args.capacity), multiprocessing.get_context("spawn")
    inserted, sampled, span = context.Value("q"), context.Value("q"), 3 * args.seconds
    starting = 20.0  # importing TensorFlow
    workers = [context.Process(target=reverb_write, args=(args.item, server.port, inserted, span + starting))
               for _ in range(WRITERS)]  # fmt: skip
    workers.append(context.Process(target=reverb_read, args=(server.port, sampled, span + starting)))
    for worker in workers:
        worker.start()
    end = time.time() + 60
    while not sampled.value and time.time() < end:
        time.sleep(0.05)
    begin, before = time.time(), (inserted.value, sampled.value)
    time.sleep(span)
    seconds, after = time.time() - begin, (inserted.value, sampled.value)
    for worker in workers:
        worker.kill()
    rates = [(b - a) / seconds for a, b in zip(before, after)]  # noqa: B905
    return {"version": "0.14.0", "inserts_per_s": rates[0], "samples_per_s": rates[1]}


if __name__ == "__main__":
    given = parser.parse_args()
    measure = globals()[given.peer if given.mode == "local" else f"{given.peer}_processes"]
    wanted = Items(given.item)
    if given.mode == "local":
        given.capacity = min(given.capacity, wanted.held[given.peer])
    result = measure(wanted, given)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10  # at its most
    print(json.dumps({"peer": given.peer, "capacity": given.capacity, "rss_mb": round(memory), **result}), flush=True)
    os._exit(0)
