"""A replay in several processes of its own, between the actors and the learners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shoal.api import Board, Context, ParamsWriter, PartsWriter, Reader, Reducer, Role, UsageError, Writer
from shoal.program import Channel, Port, Program
from shoal.replay.layout import SAMPLERS
from shoal.roles.replay import ReplayRole
from shoal.roles.replay_shard import USED, Gathered, ShardRole, Table, learned_spec, masses_spec, part_spec
from shoal.words import counted


def require_actors(actors: int, readers: int, whose: str) -> None:
    """Raise UsageError if one of a replay's readers (``whose``, in words) would have no actor."""
    if actors < readers:
        raise UsageError(f"each {whose} needs an actor: expected at least {counted(readers, 'actor')}, found {actors}")


def part_of(replay: Channel, shards: int) -> Channel:
    """Return the channel of a replay with ``shards`` readers. Each has its part of the capacity and of the minimum
    size. Each draws a whole batch of candidates per batch, so its ratio of samples to inserts is multiplied by
    ``shards``."""
    table: Any = replay.table
    if not SAMPLERS.find(table.sampler).has_mass:
        raise UsageError(
            f"a replay in {shards} shards is sampled uniformly or in proportion to priorities, found '{table.sampler}'"
        )
    ratio, each = replay.ratio, replay.ratio.samples_per_insert
    ratio = replace(
        ratio, min_size=-(-ratio.min_size // shards), slack=ratio.slack * shards,
        samples_per_insert=None if each is None else each * shards,
    )  # fmt: skip
    return replace(replay, table=replace(table, capacity=-(-table.capacity // shards)), ratio=ratio)


def add_shards(
    p: Program, replay: Channel, shards: int, batch: int, learner: Callable[..., Role]
) -> tuple[Callable[..., Role], dict[str, Port]]:
    """Add the role ``replay`` with ``shards`` readers of ``replay`` (see ``part_of``) to a program. Return the function
    that makes the learner, and the ports that replace the learner's replay port.

    Actors -> shards of the replay -> samples -> learner. The learner returns new priorities by a board.
    """
    table: Any = replay.table
    items = table.batch(replay.spec, batch)
    samples = p.channel(Channel("samples", "queue", part_spec(items, batch), used=USED))
    masses = p.channel(Channel("masses", "reduce", masses_spec(shards)))
    learned = p.channel(Channel("learned", "board", learned_spec(batch)))

    def make_shard(ctx: Context, table: Table, masses: Reducer, learned: Board, samples: Writer) -> ShardRole:
        return ShardRole(ctx, table, masses, learned, samples, items, batch)

    def make_learner(ctx: Context, params: ParamsWriter, samples: Reader, learned: Board) -> Role:
        return learner(ctx, params=params, batches=Gathered(samples, learned, items, batch))

    p.role(
        "replay", make_shard, replicas=shards, table=replay.reader(batch), masses=masses.member(),
        learned=learned.reader(), samples=samples.writer(),
    )  # fmt: skip
    return make_learner, {"samples": samples.reader(each=True), "learned": learned.member()}


def add_servers(p: Program, replay: Channel, servers: int, batch: int, readers: int) -> Channel:
    """Add the role ``replay`` with ``servers`` readers of ``replay`` to a program. Each sends a batch of every sample
    to each of ``readers``. Returns the channel of batches."""
    table: Any = replay.table
    spec = table.batch(replay.spec, batch * readers)
    batches = p.channel(Channel("batches", "queue", spec, capacity=2, divided=batch))

    def make(ctx: Context, transitions: Reader, batches: PartsWriter) -> ReplayRole:
        return ReplayRole(ctx, transitions, batches, readers)

    p.role(
        "replay", make, replicas=servers, on_failure="restore", transitions=replay.reader(batch * readers),
        batches=batches.writer(),
    )  # fmt: skip
    return batches
