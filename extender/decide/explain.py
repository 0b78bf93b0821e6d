"""Why a pod would go where it goes: each kernel's part of the score, what it saw, and what is left afterwards.

The same numbers as `place`, for the best few nodes or the one that is asked about; words only here.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from _core import CONTENDED, FITS, Demand, Table, parts, slots
from extender.cluster.assignment import Cards
from extender.cluster.request import Request
from extender.cluster.seats import Phase, Seat, charge_devices
from extender.cluster.snapshot import Snapshot
from extender.decide.bind import describe
from extender.decide.doubts import doubt
from extender.decide.place import Score, cards_for, place

_SHOWN = 4
"""Classes of the demand whose room is told."""


@dataclass(frozen=True, slots=True)
class Room:
    """How many pods of a kind the node takes before and after; `kind` in words."""

    kind: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What the kernels saw of one node. `rank` counts from 1; None: the pod does not fit, and `reason` says why.

    `slowest` is MB/s between the slowest two of the pod's whole cards; None where links are not known or not needed.
    """

    node: str
    rank: int | None
    reason: str
    score: Score
    free: tuple[int, ...]
    cards: Cards
    slowest: int | None
    room: tuple[Room, ...]

    def words(self) -> Iterator[str]:
        """One line each."""
        if self.rank is None:
            yield f"{self.node}: refused: {self.reason}"
        else:
            behind = f" ({self.reason})" if self.reason else ""
            yield f"{self.node}: rank {self.rank}, score {self.score}{behind}"
        if self.free or self.cards.whole or self.cards.shared:
            yield f"  free GPUs {_numbers(self.free)}{self._taken()}"
        elif self.cards.slices:
            yield f"  {self._taken().removeprefix('; ')}"
        if self.room:
            yield "  room left for " + ", ".join(
                f"{room.kind}: {room.before} -> {room.after}" for room in self.room
            )

    def _taken(self) -> str:
        said = ""
        if self.cards.whole:
            said += f"; takes {_numbers(self.cards.whole)}"
        if self.cards.shared:
            said += f"; shares {_numbers(self.cards.shared)}"
        for resource, card, start in self.cards.slices:
            said += f"; cuts {resource.removeprefix('nvidia.com/mig-')} at {start} of MIG card {card}"
        if self.slowest is not None:
            said += f"; slowest link {self.slowest / 1000:g} GB/s"
        return said


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the pod asks for, on how many nodes it fits, and what was seen of some of them."""

    asks: str
    fitting: int
    nodes: int
    seen: tuple[Seen, ...]

    def words(self) -> Iterator[str]:
        yield f"asks for {self.asks}; fits on {self.fitting} of {self.nodes} nodes"
        for seen in self.seen:
            yield from seen.words()


def explain(
    snapshot: Snapshot,
    request: Request,
    node: str | None = None,
    best: int = 3,
    borrowed: bool | None = None,
) -> Explanation:
    """For `node`, or for the `best` nodes, or, if the pod fits nowhere, for as many that refuse it.

    `borrowed`: whether the pod's work can be asked back; None where no policy says so.

    Raises KeyError for a node that the book does not have.
    """
    names = list(snapshot.inventories)
    rows = np.fromiter((snapshot.index.get(name) for name in names), np.int32, len(names))
    placement = place(snapshot, request, rows, len(rows), borrowed) if len(rows) else None
    ranked = [] if placement is None else placement.ranked.tolist()
    ranks = {position: rank for rank, position in enumerate(ranked, 1)}
    if node is not None and node not in snapshot.inventories:
        raise KeyError(node)
    shown = [names.index(node)] if node is not None else (ranked or list(range(len(names))))[:best]
    seen = tuple(
        _see(snapshot, request, names[at], int(placement.codes[at]), ranks.get(at), borrowed)
        for at in shown
        if placement is not None
    )
    return Explanation(describe(request), len(ranked), len(names), seen)


def _see(
    snapshot: Snapshot, request: Request, name: str, code: int, rank: int | None, borrowed: bool | None
) -> Seen:
    row, ask = snapshot.index.get(name), snapshot.ask(request, borrowed)
    free = _free(snapshot.table, row)
    reason = ""
    if code == CONTENDED:
        reason = "only if other pods' expected seats come to nothing"
    elif code != FITS:
        reason = doubt(snapshot, snapshot.table, row, name, request, code)
    if rank is None or ask is None:
        return Seen(name, None, reason, Score(0, 0, 0, 0), free, Cards(), None, ())
    demand = snapshot.demand()
    cards = cards_for(snapshot, snapshot.table, row, ask, soft=code == FITS)
    return Seen(
        name,
        rank,
        reason if code == CONTENDED else "",
        Score(*parts(snapshot.table, row, code, ask, demand)),
        free,
        cards,
        slowest(snapshot.table, row, cards),
        _room(snapshot, row, name, request, cards, demand),
    )


def slowest(table: Table, row: int, cards: Cards) -> int | None:
    """MB/s between the slowest two of the whole cards, where that is known."""
    topology = int(table.topology[row])
    if len(cards.whole) < 2 or not 0 <= topology < table.hardware.topologies:
        return None
    sets = table.hardware.links[topology]
    mask = sum(1 << card for card in cards.whole)
    return int(sets.bottleneck[mask]) if sets.gpus == int(table.cards[row]) else None


def _free(table: Table, row: int) -> tuple[int, ...]:
    """Cards that nobody holds any of."""
    count = int(table.cards[row])
    held = table.shares[row, :count] + table.exclusive[row, :count]
    return tuple(np.flatnonzero(held == 0).tolist())


def _room(
    snapshot: Snapshot, row: int, name: str, request: Request, cards: Cards, demand: Demand
) -> tuple[Room, ...]:
    """How many more pods of the demand's first classes fit, without the pod and with it."""
    before = after = snapshot.table.copy_row(row)
    counts = slots(before, demand)
    seat = Seat("", "", "", name, request, Phase.RESERVED, cards=cards, slices=cards.slices)
    charge_devices(after, 0, snapshot.inventories[name], seat, snapshot.ids, 1)
    after.cpu_used[0] += request.cpu
    left = slots(after, demand)
    order = np.argsort(-demand.often * demand.gpus * demand.share, kind="stable")[:_SHOWN]
    return tuple(
        Room(_kind(demand, int(at)), int(counts[at]), int(left[at])) for at in order if demand.gpus[at]
    )


def _kind(demand: Demand, at: int) -> str:
    cores = f"{int(demand.cpu[at]) / 1000:.3g} cores"
    if demand.share[at] < 1:
        return f"{demand.share[at]:.2f} GPU with {cores}"
    return f"{int(demand.gpus[at])} GPU with {cores}"


def _numbers(cards: tuple[int, ...]) -> str:
    return ",".join(map(str, cards)) or "none"
