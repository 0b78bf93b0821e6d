"""Calls that do not come back."""

from __future__ import annotations

import threading
import time

import pytest

from extender.agent.worker import Hangs, Worker


def test_a_call_answers_or_raises_what_it_raises() -> None:
    worker = Worker("w")
    assert worker.call(lambda: 7, 5.0) == 7
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda: 1 / 0, 5.0)

    def refuse() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        worker.call(refuse, 5.0)
    worker.close()


def test_a_call_that_hangs_is_left_and_nothing_is_asked_until_it_ends() -> None:
    worker, go = Worker("hangs here alone"), threading.Event()
    for _ in range(3):
        began = time.monotonic()
        with pytest.raises(Hangs):
            worker.call(lambda: go.wait(10), 0.05)
        assert time.monotonic() - began < 5
    assert [thread.name for thread in threading.enumerate()].count("hangs here alone") == 1
    assert worker.busy
    go.set()
    while worker.busy:
        time.sleep(0.001)
    assert worker.call(lambda: 8, 5.0) == 8
    worker.close()
