"""Lengths of time as people write them: Go's duration strings, read exactly.

Configuration files and annotations say `10s`, `500ms` or `1h30m`. One parser turns them into whole
nanoseconds and refuses what it cannot keep exactly, so that nothing is rounded in silence.
"""

from __future__ import annotations

import re

SECOND = 1_000_000_000

_UNITS = {
    "h": 3600 * SECOND,
    "m": 60 * SECOND,
    "s": SECOND,
    "ms": 1_000_000,
    "us": 1_000,
    "µs": 1_000,  # U+00B5
    "μs": 1_000,  # U+03BC
    "ns": 1,
}
_LARGEST = 2**63 - 1
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^0-9.]*)")


def nanoseconds(text: str) -> int:
    """Return the length that a Go duration string names, in nanoseconds.

    The grammar is that of Go's `time.ParseDuration`: an optional sign, then numbers with a unit each, or `0`.
    Unlike Go, a fraction of a nanosecond is an error and not cut off.

    Raises
    ------
    ValueError
        With a sentence that names the text and what is wrong with it.
    """
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if rest == "0":
        return 0
    if not rest:
        raise ValueError(f"{text!r} is not a duration: it holds no number; write one such as 10s or 1h30m.")
    if len(rest) > 100:
        raise ValueError(
            f"A duration of {len(text)} characters, {text[:20]!r}…, is longer than any needs to be."
        )
    total = 0
    for part in _PART.finditer(rest):
        if not part[0]:
            break
        whole, fraction, unit = part.groups("")
        if not whole + fraction:
            raise ValueError(f"{text!r} is not a duration: a number is missing before {part[0]!r}.")
        if unit not in _UNITS:
            found = f"{unit!r} is not a unit" if unit else "a number has no unit"
            raise ValueError(f"{text!r} is not a duration: {found}; the units are h, m, s, ms, us and ns.")
        length, left = divmod(int(whole + fraction) * _UNITS[unit], 10 ** len(fraction))
        if left:
            raise ValueError(f"{text!r} is no whole number of nanoseconds.")
        total += length
    if total > _LARGEST:
        raise ValueError(f"{text!r} is longer than the longest duration, about 292 years.")
    return sign * total


def seconds(text: str) -> float:
    """Return the length that a Go duration string names, in seconds; errors are those of `nanoseconds`."""
    return nanoseconds(text) / SECOND


def text(length: float) -> str:
    """Return the shortest usual spelling of a length in seconds, to the nanosecond: `1h30m`, `2.5s`, `250ms`.

    For a length under 100 days, `seconds(text(length)) == length` when `length` came from `seconds`.
    """
    left = abs(round(length * SECOND))
    sign = "-" if length < 0 and left else ""
    if left == 0:
        return "0s"
    if left < SECOND:
        unit = next(unit for unit in ("ms", "us", "ns") if left % _UNITS[unit] == 0)
        return f"{sign}{left // _UNITS[unit]}{unit}"
    hours, left = divmod(left, _UNITS["h"])
    minutes, left = divmod(left, _UNITS["m"])
    whole, fraction = divmod(left, SECOND)
    parts = [f"{hours}h" if hours else "", f"{minutes}m" if minutes else ""]
    if left:
        parts.append(f"{whole}.{fraction:09d}".rstrip("0").rstrip(".") + "s")
    return sign + "".join(parts)
