"""How good it is to create a MIG instance on a card, as look-up tables for the kernels, under the demand seen so far.

`DemandMix` counts what pods ask for; `MigTables` turns a model's `Geometry` and that demand into `_core.Slices`, anew
as the demand shifts. A card in occupancy m, with N_p(m) further instances of profile p possible at the same time, f
units free and p asked for with share d_p, is worth

    V(m) = Σ d_p · c_p · N_p(m)^0.75 + 0.3 · f²/8 + 0.2 · [m = 0]

and an instance that takes it from m to m' scores V(m') − V(m) − 0.1 · f: concave, so that no profile is left without
any place, and with a bonus for empty cards and for full ones. c_p counts compute slices and f units as if the card
had 7 and 8 of them, so that cards of different models compare. An instance starts at the first free start in the
order of `preferred`. `python -m bench mig` measures it; with more for empty cards a fill without departures loses
more, and with less a churn does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from _core import Slices
from extender.cluster.mig import Geometry, Profile

CONCAVITY = 0.75
ROOM = 0.3
EMPTY = 0.2
FIT = 0.1
SLICES, UNITS = 7, 8
"""The card that the weights above were chosen on."""
MILLIONTHS = 1_000_000
"""Of a score's unit, in which the kernels count: whole numbers add up to the same on every machine."""

MOST_NAMES = 512
MOST_MODELS = 64
PRIOR = 20.0
REFRESH = 64


class DemandMix:
    """Shares of what is asked for, of which an observation counts half after each `half_life` (in the unit of `now`).

    Flat at first and again when nothing has come for long: `PRIOR` requests spread over all names asked about are
    counted on top of those seen. At most `MOST_NAMES` names are kept; a new one takes the place of the least asked for.
    """

    def __init__(self, half_life: float) -> None:
        if not half_life > 0:
            raise ValueError(f"The half-life of the demand is {half_life}; it must be more than 0.")
        self._half_life = half_life
        self._began = self._now = 0.0
        self._seen: dict[str, float] = {}

    def observe(self, name: str, now: float, count: int = 1) -> None:
        """`count` of a resource were asked for. A `now` before the last one counts as the last."""
        scale = self._scale(now)
        if name not in self._seen and len(self._seen) >= MOST_NAMES:
            del self._seen[min(self._seen, key=self._seen.__getitem__)]
        self._seen[name] = self._seen.get(name, 0.0) + count * scale

    def weights(self, groups: Sequence[Iterable[str]], now: float) -> NDArray[np.float64]:
        """The share of each group of names, which sum to 1."""
        scale = self._scale(now)
        seen = [sum(self._seen.get(name, 0.0) for name in names) / scale for names in groups]
        counts = np.array(seen) + PRIOR / len(groups)
        return np.asarray(counts / counts.sum(), np.float64)

    def _scale(self, now: float) -> float:
        """What one request weighs now; counts of different times keep their ratio, so old ones need no touch."""
        self._now = max(self._now, now)
        halvings = (self._now - self._began) / self._half_life
        if halvings > 500:
            faded = 2.0 ** -min(halvings, 1000.0)
            self._seen = {
                name: weight for name, seen in self._seen.items() if (weight := seen * faded) > 1e-9
            }
            self._began, halvings = self._now, 0.0
        return float(2.0**halvings)


class MigTables:
    """The tables in force: built when first asked for and each time that there is an eighth more to learn from.

    `REFRESH` more observations are always enough.
    """

    def __init__(self, mix: DemandMix) -> None:
        self._mix = mix
        self._observed = 0
        self._built: dict[Geometry, tuple[int, Slices]] = {}

    def observe(self, name: str, now: float, count: int = 1) -> None:
        """A pod that asks for a MIG instance came; to be said once per pod, wherever it ends."""
        self._mix.observe(name, now, count)
        self._observed += 1

    def of(self, geometry: Geometry, now: float) -> Slices:
        """Raises ValueError for a geometry whose placements are not known."""
        since, slices = self._built.get(geometry, (0, None))
        if slices is None or self._observed - since >= min(REFRESH, max(since // 8, 1)):
            demand = self._mix.weights([profile.resources for profile in geometry.profiles], now)
            slices = slices_of(geometry, demand)
            if len(self._built) >= MOST_MODELS:
                self._built.clear()
            self._built[geometry] = self._observed, slices
        return slices


def slices_of(geometry: Geometry, demand: NDArray[np.float64]) -> Slices:
    """The tables of a model under a demand: shares of its profiles [P], which sum to 1.

    Raises ValueError for a geometry whose placements are not known.
    """
    base = _base(geometry)
    worth = value(geometry, demand)
    fit = FIT * UNITS / geometry.units * _free(geometry)
    scores = worth[base.after] - worth - fit
    return base.with_scores(np.rint(scores * MILLIONTHS).astype(np.int32))


def value(geometry: Geometry, demand: NDArray[np.float64]) -> NDArray[np.float64]:
    """V of each occupancy [M] under a demand [P]."""
    slices = np.array([profile.compute for profile in geometry.profiles]) * SLICES / geometry.compute
    room = _free(geometry) * UNITS / geometry.units
    worth = _possible(geometry) ** CONCAVITY @ (demand * slices) + ROOM * room**2 / UNITS
    worth[0] += EMPTY
    return np.asarray(worth, np.float64)


def preferred(profile: Profile) -> list[int]:
    """A profile's starts, the one to use first: those of 1 and 3 slices from the high end, the others from the low.

    This is the order of HAMi. NVIDIA's driver, left to itself, also places 3 slices high.
    """
    return sorted(profile.starts, reverse=profile.compute in (1, 3))


@lru_cache(64)
def _base(geometry: Geometry) -> Slices:
    """Starts and what comes after them, which no demand changes; all scores are 0."""
    if not geometry.units:
        raise ValueError(
            f"The placements of {geometry.model} are not known; its instances are counted by resource."
        )
    before = np.arange(1 << geometry.bits, dtype=np.int32)
    starts = np.full((len(geometry.profiles), len(before)), -1, np.int8)
    after = np.tile(before, (len(geometry.profiles), 1))
    for index, profile in enumerate(geometry.profiles):
        placements = geometry.placements(index)
        for start in preferred(profile):
            first = (starts[index] < 0) & (before & placements[start] == 0)
            starts[index, first] = start
            after[index, first] |= placements[start]
    return Slices(starts, after, np.zeros_like(after))


@lru_cache(64)
def _free(geometry: Geometry) -> NDArray[np.int64]:
    """Free units of each occupancy [M]."""
    before = np.arange(1 << geometry.bits)
    taken = sum((before >> unit) & 1 for unit in range(geometry.units))
    return np.asarray(geometry.units - taken, np.int64)


@lru_cache(64)
def _possible(geometry: Geometry) -> NDArray[np.float64]:
    """How many more instances of each profile could be on the card together [M, P]."""
    before = np.arange(1 << geometry.bits)
    possible = np.zeros((len(before), len(geometry.profiles)))
    for index, profile in enumerate(geometry.profiles):
        end = np.zeros(len(before), np.int64)
        for start, bits in sorted(geometry.placements(index).items()):
            room = (before & bits == 0) & (end <= start)
            possible[room, index] += 1
            end[room] = start + profile.size
        np.minimum(possible[:, index], profile.most, out=possible[:, index])
    return possible
