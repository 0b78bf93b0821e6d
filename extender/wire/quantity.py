"""Kubernetes quantities ("100m", "3k", "128Gi", "1e3") to integers, exactly.

Every resource amount of every pod and node comes through here as the API server wrote it. The grammar is
that of apimachinery's `resource.Quantity`; amounts are rounded away from zero and capped at 2^63-1 in
magnitude, as documented there. Its code reads a number without digits ("+", ".", "Ki") as 0, and overflows
on some amounts too large for an int64; here the first is an error and the second is at the cap.
"""

import re
from functools import lru_cache
from typing import Final

LIMIT: Final = 2**63 - 1
"""Largest magnitude of any result: what fits an int64."""

_MAX_LENGTH = 256
_CACHED_TEXTS = 65_536
_GRAMMAR = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([numkMGTPE]|[KMGTPE]i|[eE][+-]?0*[0-9]{1,9})?")
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}

# More digits than any mantissa has, 2^60 of Ei included: beyond it all is at the cap, or a fraction.
_DECISIVE_POWER = _MAX_LENGTH + 20


class QuantityError(ValueError):
    """A text that is no quantity, or an amount that is not allowed where it stands."""


def milli(amount: str | int | float) -> int:
    """Amount in thousandths ("1.5" is 1500), rounded away from zero, within ±`LIMIT`.

    Raises
    ------
    QuantityError
        If `amount` is not a quantity.
    """
    return _milli(amount if type(amount) is str else _number_text(amount))


def whole(amount: str | int | float) -> int:
    """Amount in units ("1Ki" is 1024, "100m" is 1), rounded away from zero, within ±`LIMIT`.

    Raises
    ------
    QuantityError
        If `amount` is not a quantity.
    """
    return _whole(amount if type(amount) is str else _number_text(amount))


def device_count(amount: str | int | float) -> int:
    """Count of an extended resource ("8", "3k"), which the API server allows only as whole devices.

    Raises
    ------
    QuantityError
        If `amount` is not a quantity, is negative or has a fraction.
    """
    return _device_count(amount if type(amount) is str else _number_text(amount))


@lru_cache(_CACHED_TEXTS)
def _milli(text: str) -> int:
    mantissa, power = _scientific(text)
    return _rounded(mantissa, power + 3)


@lru_cache(_CACHED_TEXTS)
def _whole(text: str) -> int:
    return _rounded(*_scientific(text))


@lru_cache(_CACHED_TEXTS)
def _device_count(text: str) -> int:
    mantissa, power = _scientific(text)
    if mantissa < 0 or (power < 0 and mantissa % _ten_to(-power)):
        raise QuantityError(f"{_shown(text)} is not a count of devices: allowed are whole numbers from 0 up")
    return _rounded(mantissa, power)


def _scientific(text: str) -> tuple[int, int]:
    """Exact value of `text` as (mantissa, power of ten)."""
    match = _GRAMMAR.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None or not (match[2] or match[3]):
        raise QuantityError(
            f"{_shown(text)} is not a quantity: allowed are digits with an optional sign and fraction, "
            "then nothing, one of n u m k M G T P E Ki Mi Gi Ti Pi Ei, or an exponent such as e3 "
            f"(no spaces, at most {_MAX_LENGTH} characters)"
        )
    fraction, suffix = match[3] or "", match[4] or ""
    mantissa = int(match[2] + fraction)
    if match[1] == "-":
        mantissa = -mantissa
    if suffix in _BINARY:
        return mantissa << _BINARY[suffix], -len(fraction)
    power = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
    return mantissa, power - len(fraction)


def _rounded(mantissa: int, power: int) -> int:
    size = abs(mantissa)
    size = size * _ten_to(power) if power >= 0 else -(-size // _ten_to(-power))
    return min(size, LIMIT) if mantissa >= 0 else -min(size, LIMIT)


def _ten_to(power: int) -> int:
    """10^power, or a power large enough to have the same effect on any mantissa that passes the grammar."""
    ten: int = 10 ** min(power, _DECISIVE_POWER)
    return ten


def _number_text(number: object) -> str:
    """Text of a JSON number, which Kubernetes accepts in place of a string."""
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise QuantityError(
            f"a {type(number).__name__} is not a quantity: allowed are a string (as '100m') and a number"
        )
    try:
        return repr(number)
    except ValueError:  # Python writes no integer of more than some thousand digits
        raise QuantityError(
            f"an integer is too long for a quantity: allowed are {_MAX_LENGTH} characters"
        ) from None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 50 else f"{text[:47]}...")
