"""A pool of MIG cards under requests that come and go, played through the product's own kernels and tables.

The model is that of `bench mig`: Poisson arrivals, exponential lifetimes (the unit of time is their mean), no queue; a
request that no card has a legal placement for is lost. All policies see the same requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from _core import Slices, replay_dynamic
from extender.cluster.geometry import geometries
from extender.cluster.migscore import DemandMix, MigTables, slices_of

GEOMETRY = geometries()["H100-80GB"]
CARDS = 100
WARM_UP = 4.0
HALF_LIFE = 8.0
"""Of the learned demand, in mean lifetimes."""
NAMES = ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb", "1g.20gb")
PROFILES = [next(i for i, profile in enumerate(GEOMETRY.profiles) if name in profile.names) for name in NAMES]
COMPUTE = np.array([profile.compute for profile in GEOMETRY.profiles])
MIXES: Mapping[str, tuple[float, ...]] = {
    "uniform": (0.2, 0.2, 0.2, 0.2, 0.2, 0),
    "small": (0.5, 0.25, 0.15, 0.05, 0.05, 0),
    "large": (0.05, 0.1, 0.3, 0.25, 0.3, 0),
    "bimodal": (0.7, 0, 0, 0, 0.3, 0),
    "real": (0.35, 0.25, 0.25, 0.05, 0.1, 0),
    "dbl": (0.3, 0.15, 0.2, 0.05, 0.1, 0.2),
    "mid": (0.1, 0.35, 0.35, 0.15, 0.05, 0),
    "one3": (0.5, 0, 0.5, 0, 0, 0),
}
"""Shares of `NAMES` among the requests."""


@dataclass(frozen=True)
class Requests:
    """k requests in the order of arrival; `events` as `replay_dynamic` takes them."""

    mix: str
    profiles: NDArray[np.int32]
    arrived: NDArray[np.float64]
    events: NDArray[np.int32]

    @property
    def compute(self) -> NDArray[np.int64]:
        return np.asarray(COMPUTE[self.profiles], np.int64)


def demand(mix: str) -> NDArray[np.float64]:
    """The true shares by position in the geometry's profiles."""
    shares = np.zeros(len(GEOMETRY.profiles))
    shares[PROFILES] = MIXES[mix]
    return shares


def requests(mix: str, seed: int, count: int, load: float) -> Requests:
    """Requests whose compute slices in use would come to `load` of the pool's if none were lost."""
    random = np.random.default_rng([seed, list(MIXES).index(mix)])
    shares = demand(mix)
    profiles = random.choice(len(shares), count, p=shares).astype(np.int32)
    rate = load * CARDS * GEOMETRY.compute / float(shares @ COMPUTE)
    arrived = random.exponential(1 / rate, count).cumsum()
    departs = arrived + random.exponential(1, count)
    order = np.argsort(np.concatenate([arrived, departs]), kind="stable")
    events = np.where(order < count, order, count - 1 - order).astype(np.int32)
    return Requests(mix, profiles, arrived, events)


def fill(mix: str, seed: int) -> Requests:
    """Requests that stay, until they come to the compute slices of the whole pool."""
    slices = CARDS * GEOMETRY.compute
    drawn = requests(mix, seed, slices, 1.0)
    count = int((drawn.compute.cumsum() <= slices).sum())
    return Requests(mix, drawn.profiles[:count], drawn.arrived[:count], np.arange(count, dtype=np.int32))


Policy = Callable[[Requests], NDArray[np.int32]]
"""Plays requests on an empty pool and gives the card of each, -1 if it was lost."""


def learned(played: Requests) -> NDArray[np.int32]:
    """Our score with the demand learned as the product does: flat at first, from the requests so far."""
    tables = MigTables(DemandMix(HALF_LIFE))
    resources = [GEOMETRY.profiles[profile].resources[0] for profile in played.profiles]
    cards, chosen, bits = _empty(played)
    arrivals = np.flatnonzero(played.events >= 0)
    begin = 0
    slices = tables.of(GEOMETRY, 0.0)
    for request, arrival in enumerate(arrivals.tolist()):
        now = float(played.arrived[request])
        tables.observe(resources[request], now)
        changed = tables.of(GEOMETRY, now)
        if changed is not slices:
            replay_dynamic(slices, cards, played.profiles, played.events[begin:arrival], chosen, bits)
            begin, slices = arrival, changed
    replay_dynamic(slices, cards, played.profiles, played.events[begin:], chosen, bits)
    return chosen


def known(played: Requests) -> NDArray[np.int32]:
    """Our score with the true demand."""
    return _play(slices_of(GEOMETRY, demand(played.mix)), played)


def best_fit(played: Requests) -> NDArray[np.int32]:
    """The card with the fewest free memory slices; starts in our order, which is HAMi's: its binpack."""
    base = slices_of(GEOMETRY, demand(played.mix))
    units = np.arange(base.occupancies) & (1 << GEOMETRY.units) - 1
    used = np.array([int(bits).bit_count() for bits in units], np.int32)
    return _play(base.with_scores(np.tile(used, (base.profiles, 1))), played)


def first_fit(played: Requests) -> NDArray[np.int32]:
    """The first card that has a place; starts in our order."""
    base = slices_of(GEOMETRY, demand(played.mix))
    return _play(base.with_scores(np.zeros_like(base.scores)), played)


POLICIES: Mapping[str, Policy] = {
    "kvitej": learned,
    "kvitej, demand known": known,
    "best fit": best_fit,
    "first fit": first_fit,
}


def lost(played: Requests, chosen: NDArray[np.int32], since: float = 0.0) -> float:
    """Compute slices of lost requests, in per cent of what was asked for after `since`."""
    counted = played.arrived >= since
    compute = played.compute[counted]
    return float(100 * compute[chosen[counted] < 0].sum() / compute.sum())


def _play(slices: Slices, played: Requests) -> NDArray[np.int32]:
    cards, chosen, bits = _empty(played)
    replay_dynamic(slices, cards, played.profiles, played.events, chosen, bits)
    return chosen


def _empty(played: Requests) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    count = len(played.profiles)
    return np.zeros(CARDS, np.int32), np.full(count, -1, np.int32), np.zeros(count, np.int32)
