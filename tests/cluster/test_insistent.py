"""Calls that are made again, without a cluster."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.ray_runtime import insistent


class GoneError(Exception):
    pass


@pytest.mark.parametrize("ends", [False, True], ids=["the run goes on", "the run ends"])
def test_a_call_that_waits_is_made_again_only_while_its_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    monkeypatch.setattr(insistent, "RETRY_SECONDS", 0.05)
    answers: list[BaseException | None] = [GoneError(), None]
    calls: list[BaseException | None] = []
    looks: list[bool] = []
    told: list[BaseException | None] = []
    done = threading.Event()

    def call() -> Any:
        future: Future[None] = Future()
        calls.append(answers[len(calls)])
        future.set_result(None) if calls[-1] is None else future.set_exception(calls[-1])
        return SimpleNamespace(future=lambda: future)

    def ended() -> bool:
        looks.append(ends and bool(looks))  # the run goes on at the first look, and ends while the call waits
        return looks[-1]

    def answered(error: BaseException | None) -> None:
        told.append(error)
        done.set()

    insistent.tell(call, GoneError, ended, answered)
    assert done.wait(60)
    assert len(calls) == (1 if ends else 2) and told == [calls[-1]]


def test_a_call_that_cannot_even_be_made_is_answered_with_its_error() -> None:
    """As by Ray's client, whose own connection is lost: whoever tells many of the same goes on to the next."""
    told: list[BaseException | None] = []
    broken = ConnectionError("the client is shutting down")

    def call() -> Any:
        raise broken

    insistent.tell(call, GoneError, lambda: False, told.append)
    assert told == [broken]
