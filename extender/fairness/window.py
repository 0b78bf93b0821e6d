"""Hours of the week in a time zone, such as weekdays 09:00-18:00: when they are, and until when.

A moment is within a window exactly if a clock on the wall of that zone reads so: where the clock is put back, an hour
counts twice, and where it is put forward, what is left out never comes. Moments are seconds since 1970 (UTC).
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
DAY = 86_400
NEVER = datetime.max.replace(tzinfo=UTC)
"""The end of a window that has none."""
_MOST_STEPS = 100
"""More than the days and clock changes that follow on each other before an opening, however rare that is."""


@dataclass(frozen=True, slots=True)
class Window:
    """`days` are those on which it begins, 0 for Monday; `start` and `end` are seconds of the local day.

    An `end` that is not after `start` is on the next day.
    """

    days: frozenset[int]
    start: int
    end: int
    zone: ZoneInfo

    def until(self, moment: float) -> datetime | None:
        """When the window that `moment` is in is over, as local time; None if it is in none.

        Windows that follow on each other without a gap are one; NEVER if they do so for all time.
        """
        now = datetime.fromtimestamp(int(moment), UTC)
        left = self._left(now)
        if left is None:
            return None
        for _ in range(_MOST_STEPS):
            now = self._earliest_change(now, now + timedelta(seconds=left))
            left = self._left(now)
            if left is None:
                return now.astimezone(self.zone)
        return NEVER

    def _left(self, now: datetime) -> int | None:
        """How many seconds the local clock has to run until it shows the end; None outside."""
        local = now.astimezone(self.zone)
        second = local.hour * 3600 + local.minute * 60 + local.second
        day = local.weekday()
        overnight = self.end <= self.start
        if day in self.days and second >= self.start and (overnight or second < self.end):
            return self.end - second + DAY * overnight
        if overnight and (day - 1) % 7 in self.days and second < self.end:
            return self.end - second
        return None

    def _earliest_change(self, now: datetime, end: datetime) -> datetime:
        """The first moment after `now` at which the zone's clock is put on or back, at the latest `end`."""
        offset = now.astimezone(self.zone).utcoffset()
        if end.astimezone(self.zone).utcoffset() == offset:
            return end
        before, after = now, end
        while after - before > timedelta(seconds=1):
            middle = before + timedelta(seconds=(after - before) // timedelta(seconds=2))
            if middle.astimezone(self.zone).utcoffset() == offset:
                before = middle
            else:
                after = middle
        return after
