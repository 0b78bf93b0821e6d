"""The clock of a play: it stands still between the play's events, and after the last."""

import time


class Clock:
    """Seconds since the play began; `wall` is the time of the day that goes with them, in seconds since 1970."""

    def __init__(self) -> None:
        self._now = 0.0
        self._began = time.time()

    def __call__(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._began + self._now

    def advance(self, to: float) -> None:
        """It is that late now; earlier than it was, it can't be."""
        self._now = max(self._now, to)
