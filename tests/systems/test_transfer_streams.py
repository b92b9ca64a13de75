"""Which stream of a device a copy is asked of, and what it comes after."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stand_in import DEVICE, StandIn, stand_in
from test_device_pipeline import Params

from shoal import transfer
from shoal.roles.publication import Publication


def test_memory_of_what_was_sent_is_kept_until_the_device_has_read_it_and_that_of_the_device_is_left_alone() -> None:
    kept: list[Any] = []
    with stand_in() as device:
        device.follow = lambda event, tensors=(): kept.append(list(tensors))  # type: ignore[method-assign]
        there = torch.ones(3).to(DEVICE)
        found = transfer.Upload({"sent": torch.zeros(3), "there": there}, DEVICE).take()
    assert found["there"] is there and len(kept) == 1
    assert [tensor is found["sent"] for tensor in kept[0]] == [True]


def watched(device: StandIn) -> list[tuple[str, bool]]:
    """What is asked of the device's streams from now on, and whether it is beside the rest."""
    did: list[tuple[str, bool]] = []
    depth = [0]

    @contextmanager
    def beside() -> Iterator[None]:
        depth[0] += 1
        yield
        depth[0] -= 1

    def with_note(name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            did.append((name, depth[0] > 0))
            return function(*args, **kwargs)

        return call

    device.beside = beside  # type: ignore[method-assign]
    for name in ("mark", "follow", "_copy"):
        setattr(device, name, with_note(name.strip("_"), getattr(device, name)))
    return did


def test_a_batch_is_copied_beside_the_rest_which_then_comes_after_it() -> None:
    with stand_in() as device:
        did = watched(device)
        sent = transfer.Upload({"x": torch.ones(3)}, DEVICE)
        assert [one for one in did if one[0] != "copy"] == [("mark", True)]
        assert ("copy", True) in did and did[-1] == ("mark", True), "the mark comes after the copy"
        sent.take()
    assert did[-1] == ("follow", False)


def test_parameters_come_to_the_host_beside_the_rest_after_they_were_copied_on_the_device() -> None:
    with stand_in() as device:
        x = torch.arange(3.0).to(DEVICE)
        mirror = transfer.Mirror({"x": x})
        did = watched(device)
        mirror.begin({"x": x})
        order = [one for i, one in enumerate(did) if i == 0 or did[i - 1] != one]
        assert order == [("copy", False), ("mark", False), ("follow", True), ("copy", True), ("mark", True)]
        x += 5.0
        assert mirror.take()["x"].tolist() == [0.0, 1.0, 2.0]


def test_a_stream_that_follows_an_event_keeps_memory_that_another_has_filled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    did: list[Any] = []
    stream = SimpleNamespace(wait_event=lambda event: did.append(("after", event)))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    streams = object.__new__(transfer.Streams)
    streams.device = torch.device("cuda")
    tensor: Any = SimpleNamespace(record_stream=lambda used: did.append(("kept for", used)))
    streams.follow("the copy", [tensor])
    assert did == [("after", "the copy"), ("kept for", stream)]


def test_parameters_that_were_begun_are_published_before_the_next() -> None:
    did: list[str] = []
    with stand_in():
        params = Params(did)
        publication = Publication(params, late=True)  # type: ignore[arg-type]
        for value in range(3):
            version = publication.begin({"weight": torch.full((3,), float(value)).to(DEVICE)})
            assert version == value + 1 and params.version == value
        publication.flush()
        publication.flush()
    assert params.published == [[0.0] * 3, [1.0] * 3, [2.0] * 3]
