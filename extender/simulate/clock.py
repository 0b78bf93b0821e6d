"""The clock of a play: it stands still between events, and runs on with real time once the play is over."""

import time


class Clock:
    """Seconds since the play began; `wall` is the time of the day that goes with them, in seconds since 1970."""

    def __init__(self) -> None:
        self._now = 0.0
        self._runs_since: float | None = None
        self._began = time.time()

    def __call__(self) -> float:
        if self._runs_since is None:
            return self._now
        return self._now + time.monotonic() - self._runs_since

    def wall(self) -> float:
        return self._began + self()

    def advance(self, to: float) -> None:
        """It is that late now; earlier than it was, it can't be."""
        self._now = max(self._now, to)

    def run_on(self) -> None:
        """From now on, real time passes."""
        if self._runs_since is None:
            self._runs_since = time.monotonic()
