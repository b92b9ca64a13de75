"""Where channels between equals lie in shared memory: plain data, computed before launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal import api
from shoal.program import Channel
from shoal.program.groups import DRAFTS, ROUNDS
from shoal.shm.fields import ALIGN, LINE, FieldLayout, fields

# bytes of a reduce's item up to which every member adds all of it for itself, and so waits only once
SMALL_REDUCE_BYTES = 1 << 17


@dataclass(frozen=True)
class ReduceLayout:
    """A reduce channel.

    lines: [M, LINE] int64, each written by its member only: items put; rounds of which it has added its part; whether
    it waits. bell: changes with every put and every part added. slots: each member's items of the last two rounds,
    a header line (the checkpoint that was asked for) before the fields. results: the last two, if ``shared_out``:
    each member adds an equal part of them; else everyone adds for itself.
    """

    channel: Channel
    members: int
    lines: int
    bell: int
    slots: int
    stride: int
    fields: tuple[FieldLayout, ...]
    shared_out: bool
    results: int
    result_stride: int
    result: tuple[FieldLayout, ...]

    def slot(self, member: int, round: int) -> int:
        """Offset of a member's item of a round, counted from 0."""
        return self.slots + (member * ROUNDS + round % ROUNDS) * self.stride

    @property
    def nbytes(self) -> int:
        return ROUNDS * (self.members * self.stride + self.result_stride)

    @property
    def bells(self) -> list[int]:
        return [self.bell]


@dataclass(frozen=True)
class BoardLayout:
    """A board. lines: [W, LINE] int64, each written by its writer only: rows put; the row last begun in each draft.
    drafts: two rows for each writer, row n in draft n % 2."""

    channel: Channel
    writers: int
    lines: int
    drafts: int
    stride: int
    fields: tuple[FieldLayout, ...]

    def draft(self, writer: int, number: int) -> int:
        """Offset of row ``number`` of a writer, counted from 1."""
        return self.drafts + (writer * DRAFTS + number % DRAFTS) * self.stride

    @property
    def nbytes(self) -> int:
        return DRAFTS * self.writers * self.stride

    @property
    def bells(self) -> list[int]:
        return []


@dataclass(frozen=True)
class SharedLayout:
    """Shared parameters. control: whether there are some, whether someone waits for them; lines: [M, LINE] int64, each
    written by its member only: steps added; then the parameters and the statistics of their rule."""

    channel: Channel
    members: int
    control: int
    lines: int
    params: int
    params_bytes: int
    fields: tuple[FieldLayout, ...]
    statistics: int
    statistics_bytes: int
    statistics_fields: tuple[FieldLayout, ...]

    @property
    def nbytes(self) -> int:
        return self.params_bytes + self.statistics_bytes

    @property
    def bells(self) -> list[int]:
        return [self.control]


GroupLayout = ReduceLayout | BoardLayout | SharedLayout


def group(channel: Channel, members: int, take: Callable[[int], int]) -> GroupLayout:
    """Lay out a channel of a kind in ``api.GROUPS`` with so many writing ends; ``take`` gives bytes of the arena."""
    lines = take(members * LINE * 8)
    if channel.kind == "reduce":
        item, stride = fields(channel.spec, ALIGN)
        result, result_stride = fields(channel.spec, 0)
        shared_out = api.spec_nbytes(channel.spec) > SMALL_REDUCE_BYTES and members > 1
        bell, slots = take(ALIGN), take(members * ROUNDS * stride)
        results = take(ROUNDS * result_stride if shared_out else 0)
        return ReduceLayout(
            channel, members, lines, bell, slots, stride, item, shared_out, results, result_stride, result
        )  # fmt: skip
    if channel.kind == "board":
        row, stride = fields(channel.spec, 0)
        return BoardLayout(channel, members, lines, take(members * DRAFTS * stride), stride, row)
    assert channel.rule is not None  # checked by Program.validate
    params, size = fields(channel.spec, 0)
    statistics, statistics_size = fields(channel.rule.statistics(channel.spec), 0)
    return SharedLayout(
        channel, members, take(ALIGN), lines, take(size), size, params, take(statistics_size), statistics_size,
        statistics,
    )  # fmt: skip
