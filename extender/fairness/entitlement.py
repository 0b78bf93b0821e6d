"""Who may have how much of a pool now: minimum first, then by effective weight, up to maximum or demand.

An entitlement is x = clamp(level · weight, min, min(max, demand)), the level chosen so that all add up to the
capacity. Weights are bent by what a tenant has used before, within bounds, so that an over-consumer is slowed and
never locked out. All amounts are GPU units of the pool.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

ROUNDING = 1e-9
"""Relative; by how much minima may exceed the capacity without being called short of it."""
FAIR_WITHIN = 0.2
"""Of the target, either way: the fairness score is 1."""


class Want(NamedTuple):
    """What one tenant is promised, may have at most, and could use now; a maximum beats a minimum."""

    weight: float
    least: float
    most: float
    demand: float


class Filling(NamedTuple):
    """The entitlement of each tenant.

    `level` is None where no level was needed: everybody has all that he may and can use, or less than his minimum.
    `short` is by how much the minima exceed the capacity; each then gets the same part of his.
    """

    shares: list[float]
    level: float | None
    short: float


def fill(capacity: float, wants: Sequence[Want]) -> Filling:
    """Divide a pool of `capacity` GPU units; exact where the numbers are, as with fractions."""
    caps = [most if most < demand else demand for _, _, most, demand in wants]
    floors = [want.least if want.least < cap else cap for want, cap in zip(wants, caps, strict=True)]
    promised = sum(floors)
    if promised >= capacity:
        short = promised - capacity if promised > capacity * (1 + ROUNDING) else 0
        part = capacity / promised if promised else 1
        return Filling([floor * part for floor in floors], None, short)
    if sum(caps) <= capacity:
        return Filling(caps, None, 0)
    level = _level(capacity, [want.weight for want in wants], floors, caps)
    if level is None:
        return Filling(floors, None, 0)
    shares = [
        floor if (share := level * want.weight) < floor else cap if share > cap else share
        for want, floor, cap in zip(wants, floors, caps, strict=True)
    ]
    return Filling(shares, level, 0)


def _level(
    capacity: float, weights: Sequence[float], floors: Sequence[float], caps: Sequence[float]
) -> float | None:
    """The level at which the shares add up to the capacity; None if only tenants without weight could take more."""
    turns: list[tuple[float, int, float, float]] = []
    for index, (weight, floor, cap) in enumerate(zip(weights, floors, caps, strict=True)):
        if weight > 0 and floor < cap:
            turns.append((floor / weight, index, weight, -floor))
            turns.append((cap / weight, index, -weight, cap))
    turns.sort()
    reached: float | None = None
    rising: float = 0
    fixed = sum(floors)
    for level, _, weight, amount in turns:
        if rising * level + fixed >= capacity:
            # Within the two turns that it lies between, whatever the rounding of the sums.
            return min(max((capacity - fixed) / rising, reached or 0), level) if rising > 0 else reached
        reached = level
        rising += weight
        fixed += amount
    return reached


def effective_weights(
    capacity: float, weights: Sequence[float], used: Sequence[float], strength: float
) -> list[float]:
    """Weights after history: w · 2^clamp(1 − u/(C·W), −s, +s), W the tenant's part of all weights.

    `used` is decayed use. At its fair share C·W a tenant keeps its weight; with strength 0 every tenant does.
    """
    total = sum(weights)
    bent: list[float] = []
    for weight, use in zip(weights, used, strict=True):
        fair = capacity * weight / total if total else 0.0
        bend = 1 - use / fair if fair > 0 else 0.0
        bent.append(
            weight * 2.0 ** (-strength if bend < -strength else strength if bend > strength else bend)
        )
    return bent


def largest_remainder(total: int, weights: Sequence[float]) -> list[int]:
    """Divide `total` whole things by weight: all rounded down, the rest by largest fraction, ties by order."""
    of = sum(weights)
    shares = [total * weight / of if of else 0.0 for weight in weights]
    return _rounded(total if of else 0, shares, [0] * len(shares), [total] * len(shares))


def whole_shares(capacity: float, wants: Sequence[Want], filling: Filling) -> list[int]:
    """Entitlements in whole GPUs by largest remainder: none below its minimum or above what it may and can use.

    Where the minima do not fit in whole GPUs, or a minimum and a maximum lie within one GPU, the maximum holds.
    """
    most = [math.floor(min(want.most, want.demand, capacity)) for want in wants]
    least = [min(math.ceil(min(want.least, want.demand)), cap) for want, cap in zip(wants, most, strict=True)]
    total = math.floor(min(capacity, sum(filling.shares) + ROUNDING * max(capacity, 1)))
    if sum(least) > total:
        least = [0] * len(wants)
    return _rounded(total, filling.shares, least, most)


def _rounded(total: int, shares: Sequence[float], least: Sequence[int], most: Sequence[int]) -> list[int]:
    """Whole numbers within bounds near `shares` that add up to `total`, or to less if the bounds leave no choice."""
    found = [
        min(max(math.floor(share), low), high) for share, low, high in zip(shares, least, most, strict=True)
    ]
    order = range(len(found))
    while (left := total - sum(found)) > 0:
        hungry = sorted((i for i in order if found[i] < most[i]), key=lambda i: found[i] - shares[i])
        if not hungry:
            break
        for i in hungry[:left]:
            found[i] += 1
    while (over := sum(found) - total) > 0:
        ample = sorted((i for i in order if found[i] > least[i]), key=lambda i: shares[i] - found[i])
        if not ample:
            break
        for i in ample[:over]:
            found[i] -= 1
    return found


def jain(amounts: Sequence[float]) -> float:
    """Jain's index (Σx)² / (n·Σx²): 1 if all have the same, 1/n if one has all; 1 if none has any."""
    squares = math.fsum(amount * amount for amount in amounts)
    return math.fsum(amounts) ** 2 / (len(amounts) * squares) if squares else 1.0


def drift(usage: float, target: float) -> float:
    """(usage − target) / target; infinite for use where the target is 0."""
    if target > 0:
        return (usage - target) / target
    return math.inf if usage > 0 else 0.0


def fairness_score(usage: float, target: float) -> float:
    """1 within 20 % of the target, then falling in a line to 0 at nothing or twice the target."""
    return min(1.0, max(0.0, (1 - abs(drift(usage, target))) / (1 - FAIR_WITHIN)))
