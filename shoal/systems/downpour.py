"""Downpour SGD: learners that fetch and push every few batches, and a parameter server with AdaGrad; or its synchronous
counterpart, where the server waits for the pieces of a batch. The loss is DQN's: see Gorila, which was made from it.

Dean et al. 2012, "Large Scale Distributed Deep Networks". On supervised data: examples/own_classifier.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shoal.settings.ranges import Count, Natural, NonNegative, Positive
from shoal.settings.schedule import Scheduled
from shoal.systems import dqn, gorila
from shoal.topology.config import Preset, Presets


@dataclass(frozen=True, kw_only=True)
class Config(gorila.Config):
    """Downpour SGD. Nothing is dropped unless ``pieces``, ``max_lag`` or ``outliers`` say so."""

    learning_rate: Scheduled[NonNegative] = 0.02
    optimiser: Literal["adam", "rmsprop", "adagrad", "sgd"] = "adagrad"
    optimiser_eps: Positive = 1e-8
    n_fetch: Count = 2
    n_push: Count = 2
    max_lag: Natural = 0
    outliers: NonNegative = 0.0


ADAGRAD: Preset = dict(learning_rate=0.02, optimiser_eps=1e-8)
PAPER: Preset = {  # section 4.1; the paper has no reinforcement learning: what that needs is DQN's
    **dqn.PAPER, "actors": 200, "learners": 200, "shards": 31, "n_fetch": 1, "n_push": 1, "optimiser": "adagrad",
    "learning_rate": 0.02, "optimiser_eps": 1e-8,
}  # fmt: skip
FIRM: Preset = dict(learning_rate=0.05, optimiser_eps=0.01)  # without it, first steps move every weight by 0.05
CLASSIC: Preset = {**dqn.CLASSIC, **FIRM, "steps": 200_000}
BOX2D: Preset = dqn.BOX2D | ADAGRAD
STATES: Preset = gorila.STATES | FIRM
VECTOR: Preset = gorila.VECTOR | FIRM
MINATAR: Preset = dqn.MINATAR | ADAGRAD
PRESETS: Presets = {
    "paper": PAPER, "classic": CLASSIC, "box2d": BOX2D, "minatar": MINATAR, "states": STATES, "vector": VECTOR,
}  # fmt: skip
network, agent, program = gorila.network, gorila.agent, gorila.program
