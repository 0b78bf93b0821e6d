"""Preempt: which of the scheduler's candidate nodes really seat the pod once victims are gone, and which victims.

The scheduler proposes victims for what it counts itself; it may propose none where only kvitej refuses (from v1.38 on).
A node is answered only with at least one victim, since one node returned empty fails the whole call up to v1.37.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from _core import Ask
from extender.cluster.assignment import units
from extender.cluster.request import Request
from extender.cluster.seats import Phase, Seat
from extender.cluster.snapshot import Snapshot
from extender.decide.place import fits_without
from extender.wire.extender import Victims


class Guard(Protocol):
    """What a preemptor must spare; `units` is what it would be charged on the victims' node."""

    def covers(self, seat: Seat) -> bool:
        """Whether the pod is never a victim."""

    def allows(self, victims: Sequence[Seat], units: float) -> bool:
        """Whether these may go together, none of them being covered."""

    def suffices(self, victims: Sequence[Seat], units: float) -> bool:
        """Whether enough is given back if these go."""


@dataclass(frozen=True, slots=True)
class Protection:
    """Who is never a victim: pods of these namespaces, and pods of this priority or above."""

    namespaces: Collection[str]
    priority: int

    def covers(self, seat: Seat) -> bool:
        return seat.namespace in self.namespaces or seat.priority >= self.priority

    def allows(self, victims: Sequence[Seat], units: float) -> bool:
        return True

    def suffices(self, victims: Sequence[Seat], units: float) -> bool:
        return True


def victims_by_node(
    snapshot: Snapshot,
    uid: str,
    request: Request,
    priority: int,
    proposed: Mapping[str, Victims],
    guard: Guard,
) -> dict[str, Victims]:
    """The nodes on which the pod would sit, each with its victims; nodes that can't help are left out.

    Nobody makes room for a pod that has a seat, be it an uncertain one.
    """
    ask = snapshot.ask(request)
    if ask is None or uid in snapshot.seats:
        return {}
    answer: dict[str, Victims] = {}
    for node, victims in proposed.items():
        chosen = _choose(snapshot, ask, request, node, victims.uids, priority, guard)
        if chosen:
            answer[node] = Victims(chosen, victims.pdb_violations)
    return answer


def _choose(
    snapshot: Snapshot,
    ask: Ask,
    request: Request,
    node: str,
    proposed: tuple[str, ...],
    priority: int,
    guard: Guard,
) -> tuple[str, ...]:
    """The proposed victims, and as few more as it takes, of the lowest priority; empty when the node can't help."""
    seats = snapshot.seats_by_node.get(node, {})
    if snapshot.index.get(node) < 0 or any(uid in seats and guard.covers(seats[uid]) for uid in proposed):
        return ()
    charged = units(request, snapshot.inventories[node])
    more = sorted(
        (
            seat
            for uid, seat in seats.items()
            if uid not in proposed
            and seat.request.devices
            and seat.phase is Phase.BOUND
            and seat.priority < priority
            and not guard.covers(seat)
        ),
        key=lambda seat: (seat.priority, sum(count for _, count in seat.request.devices), seat.uid),
    )
    leaving = [seats[uid] for uid in dict.fromkeys(proposed) if uid in seats]
    if not guard.allows(leaving, charged):
        return ()

    def settled(added: list[Seat]) -> bool:
        going = leaving + added
        return fits_without(snapshot, ask, node, going) and guard.suffices(going, charged)

    added: list[Seat] = []
    for seat in more:
        if settled(added):
            break
        if guard.allows([*leaving, *added, seat], charged):
            added.append(seat)
    if not settled(added):
        return ()
    for seat in reversed(added[:]):
        spared = [other for other in added if other is not seat]
        if settled(spared) and guard.allows(leaving + spared, charged):
            added = spared
    return (*proposed, *(seat.uid for seat in added))
