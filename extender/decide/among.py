"""Among whom a reclaim chooses: who may go at all, and what room would cost on each node at least.

All of it in columns over candidates and nodes, so that thousands of nodes are ruled out without a look at their pods.
A bound that is too low costs time; one that is too high would cost the cheapest victims, so where a pod's cards are
not known, or what is lacking is not counted in cards, the bound is the cheapest candidate of the node.
"""

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
from extender.decide.lent import MICRO, Lent
from extender.decide.victims import NEVER, Cost, Limits, Victim


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


class Among:
    """Candidates on `rows`, the nodes that a leaving pod can help. `could` of them may go, `spared` may not."""

    def __init__(self, snapshot: Snapshot, rows: NDArray[np.int32], lent: Lent, terms: Terms) -> None:
        self.rows = rows
        self.limits = Limits(
            {name: round(over * MICRO) for name, over in terms.over.items()}, terms.budget, terms.pdbs
        )
        self.spared: dict[Spared, int] = {}
        self._lent = lent
        get = snapshot.index.get
        row_of = np.array([-1 if name is None else get(name) for name in lent.nodes.keys], np.int64)
        place_of = np.full(snapshot.table.rows + 1, -1, np.int64)
        place_of[rows] = np.arange(len(rows))
        place = place_of[row_of[lent.node]] if len(lent) else np.empty(0, np.int64)
        self._at = np.flatnonzero(self._sift(terms, place >= 0))
        """Of the candidates that may go, the position in `lent`, and in the same order what a bound reads."""
        self._place = place[self._at]
        self._units, self._lost = lent.units[self._at], lent.lost(terms.now)[self._at]
        self._ran = lent.ran(terms.now)[self._at]

    @property
    def could(self) -> int:
        return len(self._at)

    def _sift(self, terms: Terms, here: NDArray[np.bool_]) -> NDArray[np.bool_]:
        lent, limits, names = self._lent, self.limits, self._lent.tenants.keys
        over = np.array([limits.over.get(name or "", 0) for name in names])
        runtime = np.array([terms.min_runtime.get(name or "", 0.0) for name in names])
        budget = np.array([limits.budget.get(name or "", 1) for name in names])
        # Whom no budget covers or more than one (-1, -2), stands at the end.
        pdbs = np.array([*(limits.pdbs.get(name or "", 0) for name in lent.budgets.keys), 0, 1])
        if not len(lent):
            return here
        left = here
        for why, may_go in (
            (Spared.NOT_PREEMPTIBLE, lent.preemptible),
            (Spared.ENTITLED, over[lent.tenant] > 0),
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
        for at in np.flatnonzero(self._place == place).tolist():
            candidate = self._lent[int(self._at[at])]
            seat = snapshot.seats.get(candidate.uid)
            if seat is not None and seat.phase is Phase.BOUND and seat.node == candidate.node:
                cost = Cost(
                    1, int(self._units[at]), int(self._lost[at]), candidate.priority, int(self._ran[at])
                )
                found.append(Victim(candidate, seat, cost))
        return found

    def by_bound(self, snapshot: Snapshot, ask: Ask, request: Request) -> Iterator[tuple[int, Cost]]:
        """Places in `rows` with a lower bound of what room costs there, the lowest first; hopeless ones left out."""
        table, rows = snapshot.table, self.rows
        count, units, lost = self._by_count(snapshot, request)
        whole = np.flatnonzero(table.mode[rows] == Mode.WHOLE)
        if ask.whole and len(whole):
            bounds = self._by_cards(snapshot, ask)
            for ours, theirs in zip((count, units, lost), bounds, strict=True):
                ours[whole] = np.maximum(ours, theirs)[whole]
        places = np.flatnonzero(count < NEVER)
        order = np.lexsort((table.order[rows[places]], lost[places], units[places], count[places]))
        for place in places[order].tolist():
            yield place, Cost(int(count[place]), int(units[place]), int(lost[place]), -NEVER, 0)

    def _by_count(self, snapshot: Snapshot, request: Request) -> tuple[NDArray[np.int64], ...]:
        """By node: how many must go for the counts of resources, and as many times the least that one costs."""
        table, shapes = snapshot.table, self._lent.shapes.keys
        shape = self._lent.shape[self._at]
        count = np.where(self._tally() > 0, 1, NEVER)
        for name, amount in request.devices:
            column = snapshot.ids[name]
            lacks = amount - (table.allocatable[:, column] - table.used[:, column])[self.rows]
            gives = np.array([dict(devices or ()).get(name, 0) for devices in shapes], np.int64)[shape]
            total = np.bincount(self._place, gives, len(self.rows))
            most = np.ones(len(self.rows), np.int64)
            np.maximum.at(most, self._place, gives)
            count = np.maximum(count, np.where(lacks > total, NEVER, -(-lacks // most)))
        least = [self._least(values) for values in (self._units, self._lost)]
        return count, *(np.where(count < NEVER, count * values, 0) for values in least)

    def _tally(self) -> NDArray[np.int64]:
        return np.bincount(self._place, minlength=len(self.rows))

    def _least(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        least = np.full(len(self.rows), np.iinfo(np.int64).max // NEVER)
        np.minimum.at(least, self._place, values)
        return least

    def _by_cards(self, snapshot: Snapshot, ask: Ask) -> tuple[NDArray[np.int64], ...]:
        """By node: what freeing the cheapest cards costs that are lacking, if each victim's cost is dealt out evenly
        to its cards, and at least the whole of those on the dearest of them."""
        table, rows, lent = snapshot.table, self.rows, self._lent
        whole, shared, vague = (column[self._at] for column in (lent.whole, lent.shared, lent.vague))
        cards = int(table.cards[rows].max())
        held = whole | shared
        parts = np.maximum(np.bitwise_count(held), 1)
        free = np.zeros(len(rows), np.int64)
        full = np.full((3, len(rows), cards), np.inf)
        part = np.full((3, len(rows), cards), np.inf)
        for card in range(cards):
            owners, shares = table.exclusive[rows, card], table.shares[rows, card]
            there = (card < table.cards[rows]) & (table.memory[rows, card] >= ask.memory)
            free += there & (owners == 0) & (shares == 0)
            on = np.flatnonzero(held >> np.uint64(card) & np.uint64(1))
            places = self._place[on]
            alone = (whole[on] >> np.uint64(card) & np.uint64(1)).astype(np.bool_)
            all_go = (np.bincount(places, alone, len(rows)) == owners) & (
                np.bincount(places, ~alone, len(rows)) == shares
            )
            able = there & all_go & ((owners > 0) | (shares > 0))
            for at, values in enumerate((np.ones(len(on)), self._units[on], self._lost[on])):
                full[at, able, card] = np.bincount(places, values, len(rows))[able]
                part[at, able, card] = np.bincount(places, values / parts[on], len(rows))[able]
        lacks = np.clip(ask.whole - free + table.opaque[rows], 0, None)
        bounds = [_least_of(full[at], part[at], lacks) for at in range(3)]
        # A pod whose cards are not known may free any.
        doubt = np.bincount(self._place, vague, len(rows)) > 0
        for bound in bounds:
            bound[doubt] = 0
        return tuple(bounds)


def _least_of(
    full: NDArray[np.float64], part: NDArray[np.float64], lacks: NDArray[np.int64]
) -> NDArray[np.int64]:
    """By node: the sum of its `lacks` lowest parts, or the last of as many lowest fulls if larger; NEVER if fewer."""
    found = np.zeros(len(lacks), np.int64)
    some = np.flatnonzero(lacks > 0)
    most = full.shape[1]
    last = np.minimum(lacks[some], most) - 1
    sums = np.cumsum(np.sort(part[some], axis=1), axis=1)[np.arange(len(some)), last]
    peaks = np.sort(full[some], axis=1)[np.arange(len(some)), last]
    least = np.maximum(np.ceil(sums - 1e-3), peaks)
    least[lacks[some] > most] = np.inf
    found[some] = np.where(np.isfinite(least), least, NEVER).astype(np.int64)
    return found
