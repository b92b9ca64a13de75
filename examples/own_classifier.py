"""Downpour SGD, as it was meant: replicas that each have a part of the data, and a parameter server with AdaGrad.

Three interleaved spirals of points in the plane, one for each class; nearest-to-the-mean gets a third of them right.
"""

import sys

import numpy as np
import torch

import shoal
from shoal.building import Algorithm, Field, ParameterServer, ServerConfig, Update, queue

CLASSES, POINTS, BATCH = 3, 3_000, 32
CFG = ServerConfig(
    learners=2, shards=2, n_fetch=1, n_push=1, optimiser="adagrad", learning_rate=0.05, max_grad_norm=None
)


def spirals(seed):
    """Points [N, 2] and their classes [N]."""
    rng = np.random.default_rng(seed)
    label, radius = rng.integers(CLASSES, size=POINTS), rng.uniform(0.1, 1.0, POINTS)
    angle = 5.0 * radius + label * 2 * np.pi / CLASSES + rng.normal(0, 0.1, POINTS)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).astype(np.float32), label


class Data:
    """One replica's part of the data; a step is one random batch of it."""

    def __init__(self, ctx, batches):
        points, label = spirals(seed=0)
        self.part, self.rng = slice(ctx.index, None, ctx.replicas), np.random.default_rng(ctx.seed)
        self.points, self.label, self.batches = points[self.part], label[self.part], batches

    def step(self):
        rows = self.rng.integers(len(self.label), size=BATCH)
        self.batches.put({"points": self.points[rows], "label": self.label[rows]})


class Classify(Algorithm):
    def loss(self, outputs, batch):
        return torch.nn.functional.cross_entropy(self.nets(batch.items["points"]), batch.items["label"]), Update({})


def network():
    return torch.nn.Sequential(
        torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, CLASSES)
    )


program = shoal.Program("downpour")
batches = program.channel(queue("batches", {"points": Field((BATCH, 2)), "label": Field((BATCH,), "int64")}, 2))
program.role("data", Data, replicas=CFG.learners, batches=batches.writer())
server = ParameterServer(program, CFG, network)
server.learners(lambda nets, ctx: Classify(nets), batches)
server.server()
report = shoal.launch(program, updates=int(sys.argv[1]))
classifier, (points, label) = network(), spirals(seed=1)
classifier.load_state_dict(report.params["params"])
correct = (classifier(torch.from_numpy(points)).argmax(1).numpy() == label).mean()
print(f"{report.updates} updates: {100 * correct:.1f} % of {POINTS} new points are classified as they should be")
