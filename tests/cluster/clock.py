"""An event loop on a clock of its own: whoever sleeps wakes at once, and the clock jumps to when they would have."""

import asyncio
import selectors
from typing import TypeVar

T = TypeVar("T")


class ClockLoop(asyncio.SelectorEventLoop):
    """`now` in seconds, from 0."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Jump(self))

    def time(self) -> float:
        return self.now

    def work(self) -> None:
        """Let everything run that needs no time to pass."""
        for _ in range(8):
            self.run_until_complete(asyncio.sleep(0))

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.run_until_complete(asyncio.sleep(seconds))


class _Jump(selectors.DefaultSelector):
    def __init__(self, loop: ClockLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everybody waits for something that no time will bring"
        self._loop.now += max(timeout, 0.0)
        return super().select(0)
