"""Calls into a driver that may never come back, each with a time limit.

A call that hangs in the kernel cannot be ended. Its thread is left behind, and until it returns its card is not asked
again: a driver that hangs costs one thread per card, however long it lasts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone
from queue import SimpleQueue
from typing import Any, TypeVar

_T = TypeVar("_T")


class Hangs(Exception):
    """The call has not come back in time, or an earlier one has not."""


class Worker:
    """One thread, started by the first call; it keeps no program from ending."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: Future[Any] | None = None

    @property
    def busy(self) -> bool:
        """Whether the last call has not come back yet."""
        return self._last is not None and not self._last.done()

    def start(self, call: Callable[[], _T]) -> Future[_T]:
        """Have the call made; raises Hangs while an earlier one has not come back."""
        if self.busy:
            raise Hangs
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        future: Future[_T] = Future()
        self._last = future
        self._calls.put((future, call))
        return future

    def call(self, call: Callable[[], _T], patience: float) -> _T:
        """What the call answers within `patience` seconds; raises Hangs, or what the call raises."""
        return answer(self.start(call), patience)

    def close(self) -> None:
        """End the thread after what it is at."""
        self._calls.put(None)

    def _run(self) -> None:
        while (job := self._calls.get()) is not None:
            future, call = job
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)


def answer(future: Future[_T], patience: float) -> _T:
    """What the call of a future answers within `patience` seconds; raises Hangs, or what the call raises."""
    try:
        return future.result(max(0.0, patience))
    except NotDone:
        if future.done():
            return future.result(0)
        raise Hangs from None
