"""Ray Tune's population-based training: what a perturbation costs beside the work. Runs in RLlib's environment; prints
one JSON line.

Each member sleeps ``--work`` seconds an iteration and may be perturbed after each; its state is ``--mb`` MiB. Two CPUs.
``overhead_ms`` is the time of an iteration that is not work, of each CPU. Tune's class API with actors that are reused,
its fastest way.
"""

import os
import tempfile
import time

from measured import Window, options, parse

parser = options(__doc__, "tune")
parser.add_argument("--population", type=int, default=8)
parser.add_argument("--work", type=float, default=0.05)
parser.add_argument("--mb", type=float, default=1.0)
args = parse(parser)
os.environ |= {"RAY_DEDUP_LOGS": "1", "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "RAY_AIR_NEW_OUTPUT": "0"}

import numpy as np  # noqa: E402
import ray  # noqa: E402
from ray import tune  # noqa: E402
from ray.tune.schedulers import PopulationBasedTraining  # noqa: E402

CPUS = 2
window = Window(args)


class Member(tune.Trainable):
    def setup(self, config):
        self.rate, self.weights = config["rate"], np.zeros(int(args.mb * 2**18), np.float32)

    def step(self):
        time.sleep(args.work)
        self.weights += self.rate
        return {"score": float(self.weights[0])}

    def save_checkpoint(self, folder):
        np.save(os.path.join(folder, "weights.npy"), self.weights)

    def load_checkpoint(self, folder):
        self.weights = np.load(os.path.join(folder, "weights.npy"))

    def reset_config(self, config):
        self.rate = config["rate"]
        return True


class Count(tune.Callback):
    turns = 0

    def on_trial_result(self, iteration, trials, trial, result, **more):
        self.turns += 1
        window.over(updates=max(0, self.turns - 2 * args.population))  # the first ones start the actors


class Stop(tune.Stopper):
    def __call__(self, trial_id, result):
        return False

    def stop_all(self):
        return bool(window.rates)


if __name__ == "__main__":
    ray.init(num_cpus=CPUS, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration", metric="score", mode="max", perturbation_interval=1,
        hyperparam_mutations={"rate": tune.uniform(0.01, 1.0)}, log_config=False,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        tune.Tuner(
            tune.with_resources(Member, {"cpu": 1}), param_space={"rate": tune.uniform(0.01, 1.0)},
            tune_config=tune.TuneConfig(num_samples=args.population, scheduler=scheduler, reuse_actors=True),
            run_config=tune.RunConfig(storage_path=folder, name="pbt", stop=Stop(), verbose=0, callbacks=[Count()]),
        ).fit()  # fmt: skip
    ray.shutdown()
    cost = 1e3 * (CPUS / window.rates["updates_per_s"] - args.work)
    window.tell("tune", ray.__version__, overhead_ms=cost, perturbations=scheduler._num_perturbations)
