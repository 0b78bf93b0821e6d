"""The fields of a policy, each read with its path: a value that can't be taken as meant raises PolicyError."""

import math
from enum import Enum
from typing import TypeVar

from extender import duration

_E = TypeVar("_E", bound=Enum)


class PolicyError(ValueError):
    """A policy that cannot be taken as meant: the field's path, its value, and what is allowed."""


def names(found: list[str] | None, path: str) -> frozenset[str] | None:
    if found is None:
        return None
    if not found or not all(found):
        raise PolicyError(f"{path} is {found!r}; list at least one name and no empty one, or leave it out.")
    return frozenset(found)


def number(found: float | None, path: str, default: float, most: float) -> float:
    """`found` within 0 and `most`; `default` when it is not given."""
    if found is None:
        return default
    if not 0 <= found <= most or math.isnan(found):
        raise PolicyError(f"{path} is {found:g}; give a number from 0 to {most:g}.")
    return float(found)


def count(found: int | None, path: str, default: int, *, least: int = 0) -> int:
    if found is None:
        return default
    if not least <= found <= 2**31 - 1:
        raise PolicyError(f"{path} is {found}; give a whole number from {least} to {2**31 - 1}.")
    return found


def length(found: str | None, path: str, default: float, *, above_zero: bool = False) -> float:
    if found is None:
        return default
    try:
        seconds = duration.seconds(found)
    except ValueError as error:
        raise PolicyError(f"{path}: {error}") from None
    if seconds < 0 or (above_zero and not seconds):
        raise PolicyError(
            f"{path} is {found!r}; give a duration {'above' if above_zero else 'of at least'} 0, such as 24h or 10m."
        )
    return seconds


def choice(found: str | None, path: str, default: _E) -> _E:
    if found is None:
        return default
    try:
        return type(default)(found)
    except ValueError:
        allowed = ", ".join(str(each.value) for each in type(default))
        raise PolicyError(f"{path} is {found!r}; it can be one of {allowed}.") from None
