"""R2D3: R2D2 that also replays demonstrations: each element of a batch is one with a small, fixed probability.

Paine et al. 2019, "Making Efficient Use of Demonstrations to Solve Hard Exploration Problems".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from shoal.api import Batch, Context, Learner, Replay, Tensors, Update, UsageError
from shoal.demonstrations.episodes import Demonstrations
from shoal.demonstrations.streams import fill, read_for, restore_table, stream_fields, table_state
from shoal.nets.recurrent_q_network import RecurrentQNetwork
from shoal.program import Program
from shoal.replay import SequenceSpec
from shoal.settings.ranges import Fraction
from shoal.systems import r2d2
from shoal.topology.channels import replay
from shoal.topology.config import Preset, Presets
from shoal.topology.roles import actors_and_learner
from shoal.types import State


@dataclass(frozen=True, kw_only=True)
class Config(r2d2.Config):
    """R2D3."""

    fixed_at_start: ClassVar[tuple[str, ...]] = ("demonstrations", "demo_ratio")

    demonstrations: str = ""
    """Demonstrations: a Minari data set's ID or directory, or `module:function` that returns episodes; empty: none,
    which is R2D2."""
    demo_ratio: Fraction = 1 / 256
    """Probability that an element of a batch is a demonstration (ρ in the paper); 0: none, as in R2D2 with a zero start
    state."""
    start_state: Literal["stored", "zero"] = "zero"
    """Recurrent state at a sequence's start; demonstrations have none, so it is zero (with a burn-in)."""
    staleness: bool = False
    """Measure the staleness ΔQ of stored recurrent states; not possible with demonstrations, which have no states."""

    def remarks(self) -> list[str]:
        """Return remarks, one of which says if no demonstrations are shown, and why."""
        if not self.demonstrations:
            return [*super().remarks(), "no demonstrations are given, so this is r2d2: --demonstrations ID, or a path"]
        if not self.demo_ratio:
            return [*super().remarks(), f"demo_ratio is 0: nothing is drawn from {self.demonstrations}; this is r2d2"]
        return super().remarks()


PAPER: Preset = {**r2d2.PAPER, "learning_rate": 2e-4, "target_period": 400}  # appendix, table of parameters
CLASSIC: Preset = {**r2d2.CLASSIC, "demo_ratio": 1 / 16}
PRESETS: Presets = {"paper": PAPER, "classic": CLASSIC}


class Demonstrated:
    """``learner``, but each element of a batch is, with probability ``ratio``, one from ``table`` instead of one from
    the replay of the actors (section 2). The loss is the same for both; importance weights and priorities are each
    replay's own."""

    def __init__(self, learner: Learner, table: Replay, ratio: float, seed: int) -> None:
        self.learner, self.table, self.ratio = learner, table, ratio
        self.rng, self.step = np.random.default_rng(seed), learner.step

    def update(self, batch: Batch) -> Update:
        update = self._update(batch)
        self.step = self.learner.step
        return update

    def _update(self, batch: Batch) -> Update:
        chosen = torch.from_numpy(self.rng.random(batch.items["reward"].shape[1]) < self.ratio)
        share = {"demonstrations": float(chosen.float().mean())}
        if not share["demonstrations"]:
            update = self.learner.update(batch)
            return Update({**update.metrics, **share}, update.priorities)
        shown = self.table.sample(len(chosen))
        assert shown.keys is not None and shown.probs is not None
        keys = shown.keys.clone()
        update = self.learner.update(mix(batch, shown, chosen))
        priorities = update.priorities
        if priorities is not None:
            priorities = priorities.detach().cpu().float()
            self.table.reprioritise(keys[chosen].numpy(), priorities[chosen].numpy())
            priorities = priorities.masked_fill(chosen, torch.nan)  # which the actors' replay ignores
        return Update({**update.metrics, **share}, priorities)

    def params(self) -> Tensors:
        return self.learner.params()

    def state_dict(self) -> State:
        """Priorities and generators; the demonstrations themselves are read again, and known by a hash."""
        return {
            "learner": self.learner.state_dict(), "rng": self.rng.bit_generator.state, **table_state(self.table),
        }  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        restore_table(self.table, state)
        self.learner.load_state_dict(state["learner"])
        self.rng.bit_generator.state, self.step = state["rng"], self.learner.step


def mix(batch: Batch, shown: Batch, chosen: Tensor) -> Batch:
    """The batch [L, B, ...] with the elements ``chosen`` (bool ``[B]``) from ``shown``. Their probabilities are scaled
    so that N P of either replay gives its importance weights: w is proportional to (N P)^-beta."""
    items = dict(batch.items)
    for name, value in batch.items.items():
        if name in shown.items:  # all but recurrent states, which demonstrations do not have
            where = chosen.view(1, -1, *[1] * (value.ndim - 2))
            items[name] = torch.where(where, shown.items[name], value)
    probs = batch.probs
    if probs is not None and shown.probs is not None:
        probs = torch.where(chosen, shown.probs * (shown.size / max(1, batch.size)), probs)
    return batch._replace(items=items, probs=probs)


network, agent = r2d2.network, r2d2.agent


def demonstrations(cfg: Config) -> Demonstrations | None:
    """The demonstrations, checked against the environment; None where none are to be shown."""
    if not cfg.demo_ratio or not cfg.demonstrations:
        return None
    if cfg.start_state != "zero" or cfg.staleness:
        raise UsageError("r2d3 needs start_state zero and no staleness: demonstrations have no recurrent states")
    return read_for(cfg.demonstrations, cfg.env, cfg)


def demonstration_table(cfg: Config, found: Demonstrations) -> SequenceSpec:
    """The replay that holds all of them: at first alike, then prioritised by what is learned of them."""
    table, steps = cfg.sequences(), sum(length + 1 for length in found.lengths)
    sequences = sum(1 + max(0, length - table.length + table.stride - 1) // table.stride for length in found.lengths)
    return replace(table, capacity=max(sequences, -(-steps // table.stride)), initial="max", probes=False)


def filled(cfg: Config, found: Demonstrations, seed: int) -> Replay:
    """The replay of demonstrations, with them in it."""
    fields = stream_fields(r2d2.sent(cfg))
    return fill(demonstration_table(cfg, found).build(fields, 1, seed), found, cfg.env, cfg, fields)


def learn(cfg: Config, nets: RecurrentQNetwork, ctx: Context) -> Learner:
    """R2D2's learner, shown demonstrations."""
    learner, found = r2d2.learn(cfg, nets, ctx), demonstrations(cfg)
    return learner if found is None else Demonstrated(learner, filled(cfg, found, ctx.seed), cfg.demo_ratio, ctx.seed)


def program(cfg: Config) -> Program:
    """Actors, a replay of sequences, a learner with a second replay of demonstrations."""
    found = demonstrations(cfg)
    held = 0 if found is None else demonstration_table(cfg, found).nbytes(stream_fields(r2d2.sent(cfg)))
    sequences = replay("sequences", r2d2.sent(cfg), cfg.sequences(), cfg.ratio())
    return actors_and_learner(
        "r2d3", cfg, sequences, network, agent, lambda nets, ctx: learn(cfg, nets, ctx), count=cfg.batch, memory=held
    )
