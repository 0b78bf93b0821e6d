"""Decayed use: what each tenant of a policy has had of late, in GPU units.

While a tenant has c GPU units, its decayed use u moves towards c by half the distance in each half-life:
u ← c + (u − c) · 0.5^(Δt/h), exactly, however the time is cut. It is kept in the policy's status, and after a restart
the gap is made up for from the pods that live then and the times at which they were bound.

Two clocks: `now` is seconds of the process's monotonic clock, `wall` seconds since 1970, used only for what outlives a
process. A clock that steps back lets no time pass, so nothing is forgiven and nothing charged twice.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Self

from extender.wire.policy import PolicyStatus

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Saved(NamedTuple):
    """Decayed use by tenant as it was at `at`, wall time."""

    at: float
    used: Mapping[str, float]


class Running(NamedTuple):
    """A pod that holds `units` since `since`, wall time."""

    tenant: str
    units: float
    since: float


@dataclass(slots=True)
class _Account:
    half_life: float
    at: float
    used: float = 0.0
    units: float = 0.0
    """Charged since `at`."""

    def value(self, now: float) -> float:
        return self.used + (self.units - self.used) * gone(now - self.at, self.half_life)

    def advance(self, now: float) -> None:
        self.used = self.value(now)
        self.at = max(self.at, now)


class Usage:
    """The decayed use of the tenants of one policy, given the half-life of each in seconds."""

    def __init__(self, half_lives: Mapping[str, float], now: float) -> None:
        self._accounts = {tenant: _Account(half_life, now) for tenant, half_life in half_lives.items()}

    @classmethod
    def restored(
        cls,
        half_lives: Mapping[str, float],
        saved: Saved | None,
        running: Iterable[Running],
        *,
        wall: float,
        now: float,
    ) -> Self:
        """Carry on from what was saved and from the pods that run now; without the former, from the latter alone.

        What is off: pods that came or went unseen since `saved.at`, at most 1 − 0.5^(gap/h) of what they held.
        """
        usage = cls(half_lives, now)
        began = saved.at if saved else -math.inf
        for tenant, account in usage._accounts.items():
            used = saved.used.get(tenant, 0.0) if saved else 0.0
            account.used = used - used * gone(wall - began, account.half_life)
        for pod in running:
            account = usage._accounts[pod.tenant]
            account.units += pod.units
            account.used += pod.units * gone(wall - max(pod.since, began), account.half_life)
        return usage

    def follow(self, half_lives: Mapping[str, float], now: float) -> None:
        """The policy was edited: new tenants begin with nothing, those that left are forgotten."""
        for account in self._accounts.values():
            account.advance(now)
        self._accounts = {
            tenant: self._accounts.get(tenant) or _Account(half_life, now)
            for tenant, half_life in half_lives.items()
        }
        for tenant, half_life in half_lives.items():
            self._accounts[tenant].half_life = half_life

    def charge(self, tenant: str, units: float, now: float) -> None:
        """From now on the tenant has that many GPU units in all, recomputed by the caller and not a difference."""
        account = self._accounts[tenant]
        account.advance(now)
        account.units = units

    def of(self, tenant: str, now: float) -> float:
        """The tenant's decayed use, in GPU units."""
        return self._accounts[tenant].value(now)

    def save(self, *, wall: float, now: float) -> Saved:
        return Saved(wall, {tenant: account.value(now) for tenant, account in self._accounts.items()})


def gone(elapsed: float, half_life: float) -> float:
    """The part of a distance that is covered in that time: 1 − 0.5^(t/h), and nothing in a time that runs back."""
    return -math.expm1(-math.log(2) * elapsed / half_life) if elapsed > 0 else 0.0


def saved_in(status: PolicyStatus | None) -> Saved | None:
    """What a policy's status keeps; None if nothing was saved there yet.

    Raises
    ------
    ValueError
        The status holds a time or an amount that cannot be one.
    """
    if status is None or status.decayed_at is None:
        return None
    used = {tenant.name: tenant.decayed_use for tenant in status.tenants or ()}
    for tenant, amount in used.items():
        if not 0 <= amount < math.inf:
            raise ValueError(
                f"status.tenants[{tenant}].decayedUse is {amount:g}, which is no amount of GPU units."
            )
    return Saved(wall_of(status.decayed_at), used)


def timestamp(wall: float) -> str:
    """RFC 3339 in UTC, to the microsecond."""
    return f"{(_EPOCH + timedelta(seconds=wall)).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def wall_of(text: str) -> float:
    """Seconds since 1970 of an RFC 3339 time; ValueError for any other text."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError(f"{text!r} is no time as the API server writes it, such as 2026-01-31T10:00:00Z.")
    return (moment - _EPOCH).total_seconds()
