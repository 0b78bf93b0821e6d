"""Duration strings against Go's rules, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.duration import SECOND, nanoseconds, seconds, text


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("0", 0),
        ("-0", 0),
        ("0s", 0),
        ("5s", 5 * SECOND),
        ("+5s", 5 * SECOND),
        ("-1.5h", -5400 * SECOND),
        ("1h30m", 5400 * SECOND),
        ("1m1h1m", 3720 * SECOND),
        ("500ms", 500_000_000),
        (".5s", 500_000_000),
        ("1.s", SECOND),
        ("12us", 12_000),
        ("12µs", 12_000),
        ("12μs", 12_000),
        ("7ns", 7),
        ("0.1us", 100),
        ("2562047h47m16.854775807s", 2**63 - 1),
    ],
)
def test_go_spellings_are_read_exactly(written: str, expected: int) -> None:
    assert nanoseconds(written) == expected


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("", "holds no number"),
        ("-", "holds no number"),
        ("3", "no unit"),
        ("1h3", "no unit"),
        ("3x", "'x' is not a unit"),
        ("3 s", "' s' is not a unit"),
        ("3S", "'S' is not a unit"),
        ("s", "a number is missing before 's'"),
        (".s", "a number is missing before '.s'"),
        ("--3s", "a number is missing"),
        ("1.2.3s", "no unit"),
        ("٣s", "a number is missing"),
        ("1s\n", "is not a unit"),
        ("0.1ns", "no whole number of nanoseconds"),
        ("2562047h47m16.854775808s", "longest duration"),
        ("9" * 200 + "s", "longer than any needs to be"),
    ],
)
def test_what_is_no_duration_is_a_sentence(written: str, reason: str) -> None:
    with pytest.raises(ValueError) as error:
        nanoseconds(written)
    assert reason in str(error.value)
    assert str(error.value).endswith(".")


@pytest.mark.parametrize(
    "written", ["0s", "1h", "1h30m", "1m30s", "2.5s", "250ms", "1us", "3ns", "-10s", "25h0.5s"]
)
def test_the_usual_spelling_is_kept(written: str) -> None:
    assert text(seconds(written)) == written


@given(st.integers(-8_000_000 * SECOND, 8_000_000 * SECOND))
def test_a_length_survives_being_written(length: int) -> None:
    assert nanoseconds(text(length / SECOND)) == length


@given(st.text(alphabet="0123456789.-+hmsnuµ x", max_size=20))
def test_any_text_is_read_or_refused(written: str) -> None:
    try:
        length = nanoseconds(written)
    except ValueError as refusal:
        message = str(refusal)
    else:
        assert nanoseconds(text(length / SECOND)) == length or abs(length) > 2**53
        return
    assert repr(written) in message
