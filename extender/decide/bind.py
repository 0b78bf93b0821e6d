"""Bind, the last door: is the seat really free, now? A seat with its cards, or a veto with its reason."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from _core import CONTENDED, IS_UNFIT, IS_WITHHELD, LACKING, Table
from extender.cluster.assignment import record
from extender.cluster.request import Request
from extender.cluster.seats import Phase, Seat, share_cost
from extender.cluster.snapshot import Snapshot
from extender.decide.doubts import doubt
from extender.decide.place import cards_for, fits, table_without
from extender.decide.reasons import SENTENCES
from extender.wire.devices import encode


@dataclass(frozen=True, slots=True)
class Granted:
    """Reserve the seat and write the Binding with this annotation value (None: no device, no annotation)."""

    devices: str | None


@dataclass(frozen=True, slots=True)
class AlreadyBound:
    """The pod sits on that node: a lost answer is asked for again."""


@dataclass(frozen=True, slots=True)
class Veto:
    reason: str


def seat_pod(snapshot: Snapshot, uid: str, request: Request, node: str) -> Granted | AlreadyBound | Veto:
    """Decide on the pod for the node that the scheduler chose.

    Soft claims do not count here: only reservations and bound pods make a node infeasible. The caller reserves in
    the same synchronous step, so that nothing can come between.
    """
    seat = snapshot.seats.get(uid)
    if seat is not None and seat.node != node:
        return Veto(f"the pod {_HELD[seat.phase]} {seat.node}, so it can't go to {node}")
    if seat is not None and seat.phase is Phase.BOUND:
        return AlreadyBound()
    if seat is not None and seat.phase is Phase.RESERVED:
        return Veto(f"the pod is being bound to {node} already")
    row = snapshot.index.get(node)
    if row < 0:
        return Veto(f"node {node} is not there (any more)")
    if not request.devices:
        return Granted(None)
    ask = snapshot.ask(request)
    if seat is not None:
        table = table_without(snapshot, node, [seat])
        code = LACKING if ask is None else fits(table, 0, ask)
        if ask is None or code > CONTENDED:
            why = doubt(snapshot, table, 0, node, request, code)
            return Veto(f"the pod {_HELD[seat.phase]} {node}, which has changed since: {why}")
        if seat.cards is None:
            return Veto(f"the pod {_HELD[seat.phase]} {node}, which has changed since")
        if node in snapshot.reports and seat.phase is Phase.CLAIMED and not _are_good(table, seat):
            cards = cards_for(snapshot, table, 0, ask, soft=False)
            return Granted(encode(record(request, snapshot.inventories[node], cards)))
        return Granted(seat.record)
    if ask is None:
        return Veto(f"{SENTENCES[LACKING]}: {describe(request)} on {node}")
    code = fits(snapshot.table, row, ask)
    if code > CONTENDED:
        why = doubt(snapshot, snapshot.table, row, node, request, code)
        return Veto(f"{why}: {describe(request)} on {node}" if why == SENTENCES[code] else why)
    cards = cards_for(snapshot, snapshot.table, row, ask, soft=False)
    return Granted(encode(record(request, snapshot.inventories[node], cards)))


def _are_good(table: Table, seat: Seat) -> bool:
    """Whether the cards that the seat was planned on would do still; `table` has the node in row 0 without the seat."""
    assert seat.cards is not None
    shares = Counter(seat.cards.shared)
    for card in {*seat.cards.whole, *shares}:
        alone, trouble, memory = card in seat.cards.whole, table.trouble[0, card], int(table.memory[0, card])
        left = memory - int(table.memory_used[0, card] + table.extra[0, card])
        cost = (seat.declared or 0) if alone else shares[card] * share_cost(table, 0, card, seat.declared)
        if trouble & (IS_UNFIT | IS_WITHHELD) or (alone and trouble) or (memory and left < cost):
            return False
    # Below 0, the card is cut no more.
    return all(table.slices[0, place.card] >= 0 for place in seat.slices)


def describe(request: Request) -> str:
    """What the pod asks for, in words."""
    asks = [f"{count} {name}" for name, count in request.devices]
    if request.gpu_memory:
        asks.append(f"{request.gpu_memory >> 20} MiB of GPU memory each")
    return ", ".join(asks) or "nothing"


def devices_without(snapshot: Snapshot, request: Request, node: str, leaving: Iterable[Seat]) -> str | None:
    """The annotation's value for a seat on the node once these are gone; None: it would not fit even then."""
    ask = snapshot.ask(request)
    row = snapshot.index.get(node)
    if ask is None or row < 0:
        return None
    table = table_without(snapshot, node, leaving)
    if fits(table, 0, ask) > CONTENDED:
        return None
    cards = cards_for(snapshot, table, 0, ask, soft=False)
    return encode(record(request, snapshot.inventories[node], cards))


_HELD = {
    Phase.CLAIMED: "has a seat kept on",
    Phase.RESERVED: "is being bound to",
    Phase.UNCERTAIN: "may be bound already to",
    Phase.BOUND: "is bound to",
}
