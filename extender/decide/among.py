"""Among whom a reclaim chooses: who may go at all, and what room would cost on each node at least.

All of it in columns over candidates and nodes, so that thousands of nodes are ruled out without a look at their pods.
A bound that is too low costs time; one that is too high would cost the cheapest victims, so where a pod's cards are
not known, or what is lacking is not counted in cards, the bound is the cheapest candidate of the node.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from _core import Ask
from extender.cluster.inventory import Mode
from extender.cluster.request import Request
from extender.cluster.seats import Phase
from extender.cluster.snapshot import Snapshot
from extender.decide.lent import MICRO, Candidate, Lent
from extender.decide.victims import NEVER, Cost, Limits, Victim

POD, UNIT = 2**46, 2**30
"""Weights of a pod and of a thousandth of a GPU unit in a price, beside 1 for a GPU-second of lost work."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Who may be asked back now. `now` is on the clock of the candidates' times.

    `over` is what each tenant holds above what it is entitled to, in GPU units, negative below; a tenant that isn't
    named is at it. `min_runtime` (seconds) and `budget` (evictions left) bind the tenants that they name. `pdbs` are
    the disruptions that each budget still allows; one that isn't named allows none.
    """

    now: float
    over: Mapping[str, float]
    min_runtime: Mapping[str, float] = field(default_factory=dict)
    budget: Mapping[str, int] = field(default_factory=dict)
    pdbs: Mapping[str, int] = field(default_factory=dict)


class Spared(Enum):
    """Why a pod stays; the first that holds counts."""

    NOT_PREEMPTIBLE = "not preemptible"
    ENTITLED = "of tenants within their entitlement"
    MIN_RUNTIME = "within their minRuntime"
    BUDGET = "of tenants whose evictionsPerHour is used up"
    PDB = "protected by a PodDisruptionBudget"


def spared(candidate: Candidate, terms: Terms) -> Spared | None:
    """Why this pod may not be asked back, whoever asks; None if it may."""
    if not candidate.preemptible:
        return Spared.NOT_PREEMPTIBLE
    if round(terms.over.get(candidate.tenant, 0.0) * MICRO) <= 0:
        return Spared.ENTITLED
    if terms.now - candidate.started < terms.min_runtime.get(candidate.tenant, 0.0):
        return Spared.MIN_RUNTIME
    if terms.budget.get(candidate.tenant, 1) <= 0:
        return Spared.BUDGET
    if len(candidate.pdbs) > 1 or any(terms.pdbs.get(pdb, 0) <= 0 for pdb in candidate.pdbs):
        return Spared.PDB
    return None


class Among:
    """Candidates on the nodes that a leaving pod can help. `could` of them may go, `spared` may not.

    `rows` are those of the nodes where somebody may go.
    """

    def __init__(self, snapshot: Snapshot, rows: NDArray[np.int32], lent: Lent, terms: Terms) -> None:
        self.rows = rows
        self.limits = Limits(
            {name: round(over * MICRO) for name, over in terms.over.items()}, terms.budget, terms.pdbs
        )
        self.spared: dict[Spared, int] = {}
        self._lent = lent
        self._now = terms.now
        self._over = np.array([self.limits.over.get(name or "", 0) for name in lent.tenants.keys], np.int64)
        get = snapshot.index.get
        row_of = np.array([-1 if name is None else get(name) for name in lent.nodes.keys], np.int64)
        place_of = np.full(snapshot.table.rows + 1, -1, np.int64)
        place_of[rows] = np.arange(len(rows))
        place = place_of[row_of[lent.node]] if len(lent) else np.empty(0, np.int64)
        self._at = np.flatnonzero(self._sift(terms, place >= 0))
        """Of the candidates that may go, the position in `lent`, and in the same order the one in `rows`."""
        self._place = place[self._at]
        self.could = len(self._at)
        self._keep(np.ones(self.could, np.bool_))

    def __len__(self) -> int:
        return len(self._at)

    def _keep(self, which: NDArray[np.bool_]) -> None:
        """Leave the others out, and the nodes where nobody is left."""
        self._at = self._at[which]
        place = self._place[which]
        there = np.bincount(place, minlength=len(self.rows)) > 0
        self.rows, self._place = self.rows[there], (np.cumsum(there) - 1)[place]

    def outweigh(self, beyond: NDArray[np.int64]) -> None:
        """Leave out who can be in no set that `Limits` allows and finds enough; `beyond` is that of each row."""
        tenant, units, size = self._lent.tenant[self._at], self._lent.units[self._at], len(self.rows)
        left = (beyond[self._place] <= 0) | (units <= self._over[tenant])
        most = np.zeros(size, np.int64)
        for number in np.flatnonzero(self._over > 0).tolist():
            own = left & (tenant == number)
            given = np.bincount(self._place[own], units[own], size).astype(np.int64)
            most += np.minimum(given, self._over[number])
        self._keep(left & ((beyond <= 0) | (most > beyond))[self._place])

    def _sift(self, terms: Terms, here: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """`spared`, of all that are here."""
        lent, limits, names = self._lent, self.limits, self._lent.tenants.keys
        runtime = np.array([terms.min_runtime.get(name or "", 0.0) for name in names])
        budget = np.array([limits.budget.get(name or "", 1) for name in names])
        # Whom no budget covers or more than one (-1, -2), stands at the end.
        pdbs = np.array([*(limits.pdbs.get(name or "", 0) for name in lent.budgets.keys), 0, 1])
        if not len(lent):
            return here
        left = here
        for why, may_go in (
            (Spared.NOT_PREEMPTIBLE, lent.preemptible),
            (Spared.ENTITLED, self._over[lent.tenant] > 0),
            (Spared.MIN_RUNTIME, terms.now - lent.started >= runtime[lent.tenant]),
            (Spared.BUDGET, budget[lent.tenant] > 0),
            (Spared.PDB, pdbs[lent.pdb] > 0),
        ):
            stay = int(np.count_nonzero(left & ~may_go))
            if stay:
                self.spared[why] = stay
            left = left & may_go
        return left

    def victims(self, snapshot: Snapshot, place: int) -> list[Victim]:
        """Those who may go on one node, as far as their binding is settled."""
        found = []
        here = self._at[self._place == place]
        columns = (self._lent.units[here], self._lent.lost(self._now, here), self._lent.ran(self._now, here))
        for at, units, lost, ran in zip(here.tolist(), *(each.tolist() for each in columns), strict=True):
            candidate = self._lent[at]
            seat = snapshot.seats.get(candidate.uid)
            if seat is not None and seat.phase is Phase.BOUND and seat.node == candidate.node:
                found.append(Victim(candidate, seat, Cost(1, units, lost, candidate.priority, ran)))
        return found

    def by_bound(self, snapshot: Snapshot, ask: Ask, request: Request) -> Iterator[tuple[int, Cost]]:
        """Places in `rows` with a lower bound of what room costs there, the lowest first; hopeless ones left out."""
        table = snapshot.table
        least, price = self._by_count(snapshot, request)
        able = np.isfinite(least)
        if not able.all():
            which = able[self._place]
            self._keep(which)
            least, price = least[able], price[which]
        rows = self.rows
        if ask.whole and np.any(table.mode[rows] == Mode.WHOLE):
            least = np.where(
                table.mode[rows] == Mode.WHOLE, np.maximum(least, self._by_cards(snapshot, ask, price)), least
            )
        places = np.flatnonzero(np.isfinite(least))
        for place in places[np.lexsort((table.order[rows[places]], least[places]))].tolist():
            yield place, _cost(float(least[place]))

    def _by_count(
        self, snapshot: Snapshot, request: Request
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """By node: as many times the cheapest candidate as must go for the counts of resources; and all prices."""
        table, size = snapshot.table, len(self.rows)
        price = _price(self._lent.units[self._at], self._lent.lost(self._now, self._at))
        shape = self._lent.shape[self._at]
        least = np.full(size, np.inf)
        np.minimum.at(least, self._place, price)
        times = np.ones(size, np.int64)
        for name, amount in request.devices:
            column = snapshot.ids[name]
            lacks = amount - (table.allocatable[self.rows, column] - table.used[self.rows, column])
            by_shape = [dict(devices or ()).get(name, 0) for devices in self._lent.shapes.keys]
            gives = np.array(by_shape, np.int64)[shape]
            most = np.ones(size, np.int64)
            np.maximum.at(most, self._place, gives)
            times = np.maximum(times, -(-lacks // most))
            least[lacks > np.bincount(self._place, gives, size)] = np.inf
        least *= times
        return least, price

    def _by_cards(self, snapshot: Snapshot, ask: Ask, price: NDArray[np.float64]) -> NDArray[np.float64]:
        """By node: what the cheapest cards cost that must come free.

        Each victim's price is dealt out evenly to its cards; and those on the dearest card count in full.
        """
        table, rows, lent = snapshot.table, self.rows, self._lent
        whole, shared, vague = (column[self._at] for column in (lent.whole, lent.shared, lent.vague))
        held, cards, size = whole | shared, int(table.cards[rows].max()), len(rows)
        parts = price / np.maximum(np.bitwise_count(held), 1)
        free = np.zeros(size, np.int64)
        full, part = np.full((size, cards), np.inf), np.full((size, cards), np.inf)
        for card in range(cards):
            owners, shares = table.exclusive[rows, card], table.shares[rows, card]
            there = (card < table.cards[rows]) & (table.memory[rows, card] >= ask.memory)
            idle = (owners == 0) & (shares == 0)
            free += there & idle
            bit = np.uint64(1 << card)
            on = np.flatnonzero(held & bit)
            places, alone = self._place[on], (whole[on] & bit) > 0
            owning = np.bincount(places, alone, size)
            all_go = (owning == owners) & (np.bincount(places, minlength=size) - owning == shares)
            able = there & ~idle & all_go
            full[able, card] = np.bincount(places, price[on], size)[able]
            part[able, card] = np.bincount(places, parts[on], size)[able]
        lacks = np.clip(ask.whole - free + table.opaque[rows], 0, None)
        least = _least_of(full, part, lacks)
        # A pod whose cards are not known may free any.
        least[np.bincount(self._place, vague, size) > 0] = 0
        return least


def _price(units: NDArray[np.int64], lost: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number that orders as `Cost` does and adds up as it does, rounded down: one pod, its units, what is lost."""
    price = POD + np.minimum(units // 1_000, 2**16 - 1) * UNIT + np.minimum(lost, 2**24 - 1)
    return price.astype(np.float64)


def _cost(price: float) -> Cost:
    """The least cost of that price."""
    # Prices of sets are whole numbers; a tenth is more than the parts of one can be off by.
    pods, rest = divmod(math.ceil(price - 0.1), POD)
    thousandths, lost = divmod(rest, UNIT)
    return Cost(pods, thousandths * 1_000, lost, -NEVER, 0)


def _least_of(
    full: NDArray[np.float64], part: NDArray[np.float64], lacks: NDArray[np.int64]
) -> NDArray[np.float64]:
    """By node: the sum of its `lacks` lowest parts, or the last of as many lowest fulls if larger; inf if fewer."""
    least = np.zeros(len(lacks))
    some = np.flatnonzero(lacks > 0)
    last = np.minimum(lacks[some], full.shape[1]) - 1
    each = np.arange(len(some))
    sums = np.cumsum(np.sort(part[some], axis=1), axis=1)[each, last]
    least[some] = np.maximum(sums, np.sort(full[some], axis=1)[each, last])
    least[lacks > full.shape[1]] = np.inf
    return least
