"""A checkpoint of the serial runtime: every role, channel and random generator between two sweeps."""

from __future__ import annotations

import logging

from shoal.api import ShoalError, State, Stateful
from shoal.metering.aggregator import Aggregator
from shoal.records import checkpoint, checkpoint_state as state_files
from shoal.records.checkpoint import RUN, Checkpoint, SaveOptions, part
from shoal.records.presence import DirectoryGone
from shoal.serial import generators
from shoal.serial.channels import SerialConstant, SerialParams, SerialParamsReader, SerialReplay
from shoal.serial.divided import DividedParams
from shoal.serial.groups import SerialShared
from shoal.serial.instance import Instance, Replica
from shoal.untrusted import counter

log = logging.getLogger("shoal.runtime")
PARAMS = (SerialParams, DividedParams, SerialShared)


def save(saving: SaveOptions, instance: Instance, aggregator: Aggregator) -> None:
    """Write a checkpoint. A disk that is full costs the checkpoint, not the run."""
    folder = None
    try:
        folder = checkpoint.begin(saving, 0)
        parts = _parts(saving, instance, aggregator)
        files = checkpoint.add(folder, {name: state_files.pack(state) for name, state in parts.items()})
        facts = {**checkpoint.facts(saving, instance.program, aggregator), "exact": instance.exact}
        checkpoint.commit(folder, saving, files, facts)
    except DirectoryGone:
        raise
    except (OSError, ShoalError) as error:
        if folder is not None:
            checkpoint.discard(folder)
        log.warning("no checkpoint at %s steps: %s (training goes on)", f"{aggregator.steps:,}", error)


def _parts(saving: SaveOptions, instance: Instance, aggregator: Aggregator) -> State:
    out: State = {
        RUN: {
            "aggregator": aggregator.state_dict(),
            "totals": {name: dict(recorder.totals) for name, recorder in instance.recorders.items()},
            "random": generators.state(),
        }
    }
    for replica in instance.replicas:
        state: State = {"seen": {key: (reader.seen, reader.reads) for key, reader in _readers(replica).items()}}
        if isinstance(replica.role, Stateful):
            state["role"] = replica.role.state_dict()
        out[part("role", replica.name, replica.index)] = state
    for name, channel in instance.channels.items():
        if isinstance(channel, PARAMS):
            if channel.version:
                out[part("params", name)] = channel.state_dict()
        elif isinstance(channel, SerialConstant):
            continue  # it is filled again
        elif not (isinstance(channel, SerialReplay) and saving.leaves_out(channel.channel, channel.writers)):
            out[part("channel", name)] = channel.state_dict()
    return out


def load(source: Checkpoint, instance: Instance, *aggregators: Aggregator) -> None:
    """Put a program that was just built, and the figures of its run, where they were saved."""
    source.check_fits(instance.program)
    state = source.read(RUN)
    with source.fitting(RUN):
        for aggregator in aggregators:
            aggregator.load_state_dict(state["aggregator"])
        for name, totals in state["totals"].items():
            instance.recorders[name].totals.update({key: counter(n) for key, n in totals.items()})
    for replica in instance.replicas:
        name = part("role", replica.name, replica.index)
        saved = source.read(name)
        with source.fitting(name):
            for key, reader in _readers(replica).items():
                reader.seen, reader.reads = map(counter, saved["seen"][key])
        if "role" not in saved:
            log.warning("%s[%d] has no state_dict: it starts anew", replica.name, replica.index)
            continue
        with source.fitting(name):
            assert isinstance(replica.role, Stateful)
            replica.role.load_state_dict(saved["role"])
    was_read = [end.store for replica in instance.replicas for end in _readers(replica).values() if end.seen]
    for channel_name, channel in instance.channels.items():
        name = part("params" if isinstance(channel, PARAMS) else "channel", channel_name)
        if not isinstance(channel, SerialConstant) and (source.has(name) or channel in was_read):
            with source.fitting(name):
                channel.load_state_dict(source.read(name))
    with source.fitting(RUN):
        generators.restore(state["random"])


def _readers(replica: Replica) -> dict[str, SerialParamsReader]:
    return {key: end for key, end in replica.ends.items() if isinstance(end, SerialParamsReader)}
