"""A checkpoint of the serial runtime: every role, channel and random generator between two sweeps."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shoal.api import ShoalError, Stateful
from shoal.records import checkpoint, checkpoint_state as state_files
from shoal.records.checkpoint import RUN, Checkpoint, Saving, part
from shoal.serial.channels import SerialParams, SerialParamsReader, SerialReplay

if TYPE_CHECKING:
    from shoal.serial.runtime import Replica, _Run

log = logging.getLogger("shoal.runtime")


def save(saving: Saving, run: _Run) -> None:
    """Write a checkpoint. A disk that is full costs the checkpoint, not the run."""
    folder = None
    try:
        folder = checkpoint.begin(saving, 0)
        files = checkpoint.add(folder, {name: state_files.pack(state) for name, state in _parts(saving, run).items()})
        checkpoint.commit(folder, saving, files, checkpoint.facts(saving, run.program, run.aggregator))
    except (OSError, ShoalError) as error:
        if folder is not None:
            checkpoint.discard(folder)
        log.warning("no checkpoint at %s steps: %s (training goes on)", f"{run.aggregator.steps:,}", error)


def _parts(saving: Saving, run: _Run) -> dict[str, Any]:
    out: dict[str, Any] = {
        RUN: {
            "aggregator": run.aggregator.state_dict(),
            "totals": {name: dict(recorder.totals) for name, recorder in run.recorders.items()},
            "random": _generators(),
        }
    }
    for replica in run.replicas:
        state: dict[str, Any] = {"seen": _readers(replica)}
        if isinstance(replica.role, Stateful):
            state["role"] = replica.role.state_dict()
        out[part("role", replica.name, replica.index)] = state
    for name, channel in run.channels.items():
        if isinstance(channel, SerialParams):
            if channel.kept:
                out[part("params", name)] = channel.state_dict()
        elif not (isinstance(channel, SerialReplay) and saving.leaves_out(channel.channel, channel.writers)):
            out[part("channel", name)] = channel.state_dict()
    return out


def load(source: Checkpoint, run: _Run) -> None:
    """Put a run that was just built where it was saved."""
    source.check_fits(run.program)
    state = source.read(RUN)
    run.aggregator.load_state_dict(state["aggregator"])
    run.live.load_state_dict(state["aggregator"])
    for name, totals in state["totals"].items():
        run.recorders[name].totals.update(totals)
    for replica in run.replicas:
        name = part("role", replica.name, replica.index)
        saved = source.read(name)
        for key, seen in saved["seen"].items():
            replica.ports[key].seen = seen
        if "role" not in saved:
            log.warning("%s[%d] has no state_dict: it starts anew", replica.name, replica.index)
            continue
        with source.fitting(name):
            assert isinstance(replica.role, Stateful)
            replica.role.load_state_dict(saved["role"])
    for channel_name, channel in run.channels.items():
        name = part("params" if isinstance(channel, SerialParams) else "channel", channel_name)
        if source.has(name):
            with source.fitting(name):
                channel.load_state_dict(source.read(name))
    _set_generators(state["random"])


def _readers(replica: Replica) -> dict[str, int]:
    return {key: port.seen for key, port in replica.ports.items() if isinstance(port, SerialParamsReader)}


def seed_generators(seed: int) -> None:
    """Seed the process's own generators, for environments and networks that draw from them."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def _generators() -> dict[str, Any]:
    numpy: Any = np.random.get_state(legacy=False)
    return {"torch": torch.get_rng_state(), "numpy": numpy, "python": random.getstate()}


def _set_generators(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])
