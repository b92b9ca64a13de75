"""A parameter server of Ray or of torch.distributed.rpc: workers push one gradient and get the weights, as fast as they
can; no learning. Prints one JSON line.

    python bench_ps.py --peer ray|rpc --floats 1700000 --workers 2 --seconds 10

ray: an actor; each round is one call that applies the gradient and returns the weights, one in flight per worker (as
in Ray's own example). rpc: the same as one ``rpc_sync``.
"""

import argparse
import json
import os
import tempfile
import time
import warnings

warnings.filterwarnings("ignore")
os.environ["OMP_NUM_THREADS"] = "1"
RATE, WARM = 1e-6, 1.0  # learning rate; seconds that are not counted

_state = {}


def rpc_apply(gradient):
    weights = _state.setdefault("weights", gradient.new_zeros(gradient.shape))
    weights.add_(gradient, alpha=-RATE)
    _state["count"] = _state.get("count", 0) + 1
    return weights


def rpc_count():
    return _state.get("count", 0)


def rpc_member(rank, args, path, told):
    import torch
    from torch.distributed import rpc

    torch.set_num_threads(1)
    os.environ.update(GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo")
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{path}", num_worker_threads=4)
    rpc.init_rpc(f"n{rank}", rank=rank, world_size=args.workers + 1, rpc_backend_options=options)
    if rank:
        gradient, end = torch.ones(args.floats), time.time() + WARM
        while time.time() < end:
            rpc.rpc_sync("n0", rpc_apply, (gradient,))
        begin, before = time.time(), rpc.rpc_sync("n0", rpc_count)
        while time.time() < begin + args.seconds:
            rpc.rpc_sync("n0", rpc_apply, (gradient,))
        if rank == 1:
            told.put(((rpc.rpc_sync("n0", rpc_count) - before) / (time.time() - begin), torch.__version__))
    rpc.shutdown()


def over_rpc(args):
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    told, path = context.Queue(), os.path.join(tempfile.mkdtemp(), "store")
    members = [context.Process(target=rpc_member, args=(r, args, path, told)) for r in range(args.workers + 1)]
    for member in members:
        member.start()
    found = told.get()
    for member in members:
        member.join()
    return found


def over_ray(args):
    import numpy as np
    import ray

    ray.init(
        address="local", num_cpus=args.workers + 1, include_dashboard=False, logging_level="ERROR", log_to_driver=False
    )

    @ray.remote(num_cpus=0)
    class Server:
        def __init__(self):
            self.weights, self.applied = np.zeros(args.floats, np.float32), 0

        def apply(self, gradient):
            self.weights -= RATE * gradient
            self.applied += 1
            return self.weights

        def count(self):
            return self.applied

    @ray.remote(num_cpus=1)
    def work(server, seconds):
        gradient, end = np.ones(args.floats, np.float32), time.time() + seconds
        while time.time() < end:
            ray.get(server.apply.remote(gradient))

    server = Server.remote()
    ray.get([work.remote(server, WARM) for _ in range(args.workers)])
    before, begin = ray.get(server.count.remote()), time.time()
    ray.get([work.remote(server, args.seconds) for _ in range(args.workers)])
    return (ray.get(server.count.remote()) - before) / (time.time() - begin), ray.__version__


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", choices=["ray", "rpc"], required=True)
    parser.add_argument("--floats", type=int, default=1_700_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    rate, version = (over_ray if args.peer == "ray" else over_rpc)(args)
    facts = {"peer": args.peer, "version": version, "floats": args.floats, "workers": args.workers}
    print(json.dumps({**facts, "grads_per_s": rate, "window_s": args.seconds}), flush=True)


if __name__ == "__main__":
    main()
