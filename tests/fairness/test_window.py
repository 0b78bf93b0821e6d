"""Hours of the week against a clock that is read minute by minute, across changes to summer time and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.fairness.window import NEVER, Window

ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Santiago",  # put on at midnight
    "Australia/Lord_Howe",  # by half an hour
    "Asia/Kathmandu",  # 5:45 before UTC
    "Africa/Casablanca",
)
CHANGES = {
    zone: [
        moment
        for hour in range(2 * 366 * 24)
        for moment in (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=hour),)
        if moment.astimezone(ZoneInfo(zone)).utcoffset()
        != (moment + timedelta(hours=1)).astimezone(ZoneInfo(zone)).utcoffset()
    ]
    for zone in ZONES
}
MINUTES = st.integers(0, 1439)


def week(window: Window) -> set[int]:
    """The minutes of a week, from Monday on, that belong to the window."""
    length = (window.end - window.start) // 60
    length += 1440 if length <= 0 else 0
    return {
        (day * 1440 + window.start // 60 + minute) % 10_080 for day in window.days for minute in range(length)
    }


def naive(window: Window, minutes: set[int], moment: datetime) -> datetime | None:
    """The end, found by looking at the clock each minute."""
    for more in range(20 * 1440):
        now = moment + timedelta(minutes=more)
        local = now.astimezone(window.zone)
        if local.weekday() * 1440 + local.hour * 60 + local.minute not in minutes:
            return now.replace(second=0) if more else None
    return NEVER


@st.composite
def cases(draw: st.DrawFn) -> tuple[Window, datetime]:
    zone = draw(st.sampled_from(ZONES))
    start = draw(MINUTES | st.sampled_from([0, 90, 120, 150, 180]))
    end = draw((MINUTES | st.sampled_from([30, 120, 150, 180, 1440])).filter(lambda end: end != start))
    days = draw(st.frozensets(st.integers(0, 6), min_size=1))
    change = draw(st.sampled_from(CHANGES[zone] or [datetime(2026, 3, 29, 1, tzinfo=UTC)]))
    moment = change + timedelta(seconds=draw(st.integers(-3 * 86_400, 86_400)))
    return Window(days, start * 60, end * 60, ZoneInfo(zone)), moment


@given(cases())
def test_a_window_is_over_when_the_clock_on_the_wall_says_so(case: tuple[Window, datetime]) -> None:
    window, moment = case
    found = window.until(moment.timestamp())
    # As UTC: a local time that comes twice equals no time of another zone.
    assert (found and found.astimezone(UTC)) == naive(window, week(window), moment)


BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("start", "end", "moment", "until"),
    [
        # 2026-03-29: 02:00 is 03:00 at once.
        (1, 2.5, "2026-03-29T01:30:00+01:00", "2026-03-29T03:00:00+02:00"),
        (22, 6, "2026-03-28T23:00:00+01:00", "2026-03-29T06:00:00+02:00"),
        # 2026-10-25: 03:00 is 02:00 again.
        (2, 2.5, "2026-10-25T02:10:00+02:00", "2026-10-25T02:30:00+02:00"),
        (2, 2.5, "2026-10-25T02:40:00+02:00", None),
        (2, 2.5, "2026-10-25T02:10:00+01:00", "2026-10-25T02:30:00+01:00"),
        (1, 4, "2026-10-25T01:00:00+02:00", "2026-10-25T04:00:00+01:00"),
        (9, 18, "2026-11-30T17:59:59.9+01:00", "2026-11-30T18:00:00+01:00"),
        (9, 18, "2026-11-30T18:00:00+01:00", None),
    ],
)
def test_the_end_is_told_to_the_second(start: float, end: float, moment: str, until: str | None) -> None:
    window = Window(frozenset(range(7)), round(start * 3600), round(end * 3600), BERLIN)
    found = window.until(datetime.fromisoformat(moment).timestamp())
    assert (found.isoformat() if found else None) == until


def test_days_that_follow_on_each_other_are_one_window_and_every_day_has_no_end() -> None:
    weekdays = Window(frozenset(range(5)), 0, 86_400, BERLIN)
    monday = datetime(2026, 11, 30, 12, tzinfo=BERLIN)
    assert weekdays.until(monday.timestamp()) == datetime(2026, 12, 5, tzinfo=BERLIN)
    assert Window(frozenset(range(7)), 0, 86_400, BERLIN).until(monday.timestamp()) == NEVER
