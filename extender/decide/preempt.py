"""Preempt: which of the scheduler's candidate nodes really seat the pod once victims are gone, and which victims.

The scheduler proposes victims for what it counts itself; it may propose none where only kvitej refuses (from v1.38 on).
A node is answered only with at least one victim, since one node returned empty fails the whole call up to v1.37.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from _core import Ask
from extender.cluster.request import Request
from extender.cluster.seats import Phase, Seat
from extender.cluster.snapshot import Snapshot
from extender.decide.place import fits_without
from extender.wire.extender import Victims


@dataclass(frozen=True, slots=True)
class Protection:
    """Who is never a victim: pods of these namespaces, and pods of this priority or above."""

    namespaces: Collection[str]
    priority: int

    def covers(self, seat: Seat) -> bool:
        return seat.namespace in self.namespaces or seat.priority >= self.priority


def victims_by_node(
    snapshot: Snapshot,
    uid: str,
    request: Request,
    priority: int,
    proposed: Mapping[str, Victims],
    protection: Protection,
) -> dict[str, Victims]:
    """The nodes on which the pod would sit, each with its victims; nodes that can't help are left out.

    Nobody makes room for a pod that has a seat, be it an uncertain one.
    """
    ask = snapshot.ask(request)
    if ask is None or uid in snapshot.seats:
        return {}
    answer: dict[str, Victims] = {}
    for node, victims in proposed.items():
        chosen = _choose(snapshot, ask, node, victims.uids, priority, protection)
        if chosen:
            answer[node] = Victims(chosen, victims.pdb_violations)
    return answer


def _choose(
    snapshot: Snapshot, ask: Ask, node: str, proposed: tuple[str, ...], priority: int, protection: Protection
) -> tuple[str, ...]:
    """The proposed victims, and as few more as it takes, of the lowest priority; empty when the node can't help."""
    seats = snapshot.seats_by_node.get(node, {})
    if snapshot.index.get(node) < 0 or any(
        uid in seats and protection.covers(seats[uid]) for uid in proposed
    ):
        return ()
    more = sorted(
        (
            seat
            for uid, seat in seats.items()
            if uid not in proposed
            and seat.request.devices
            and seat.phase is Phase.BOUND
            and seat.priority < priority
            and not protection.covers(seat)
        ),
        key=lambda seat: (seat.priority, sum(count for _, count in seat.request.devices), seat.uid),
    )
    leaving = [seats[uid] for uid in dict.fromkeys(proposed) if uid in seats]
    added: list[Seat] = []
    while not fits_without(snapshot, ask, node, leaving + added):
        if len(added) == len(more):
            return ()
        added.append(more[len(added)])
    for seat in reversed(added[:]):
        spared = [other for other in added if other is not seat]
        if fits_without(snapshot, ask, node, leaving + spared):
            added = spared
    return (*proposed, *(seat.uid for seat in added))
