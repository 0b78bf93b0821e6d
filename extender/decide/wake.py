"""Wake: which refused pods fit now that there is room, in the order of their turn.

The scheduler retries a pod that an extender refused when something it watches changes; when that retry comes before
kvitej has seen the same change, the pod is refused once more and nothing wakes it again for minutes. So the pods that
would be seated now are nudged, each at most once for the same room.
"""

import numpy as np

from _core import CONTENDED, Table
from extender.cluster.request import Request, RequestError, request_of
from extender.cluster.seats import Phase, Seat, charge_devices
from extender.cluster.snapshot import Snapshot, Waiting
from extender.decide.place import cards_for, fits, place
from extender.wire.objects import Pod


def to_nudge(snapshot: Snapshot, most: int) -> list[Pod]:
    """At most `most` pods, by priority, then age, as many as have room beside each other."""
    rows = np.fromiter(
        (snapshot.index.get(name) for name in snapshot.inventories), np.int32, len(snapshot.inventories)
    )
    promised: dict[int, Table] = {}
    chosen: list[Pod] = []
    hopeless: set[Request] = set()
    refused = [
        waiting
        for uid, waiting in snapshot.waiting.items()
        if uid not in snapshot.seats and _is_refused(waiting, snapshot.room)
    ]
    for waiting in sorted(refused, key=_turn):
        if len(chosen) == most:
            break
        try:
            request = request_of(waiting.pod)
        except RequestError:
            continue
        if request in hopeless or not request.devices:
            continue
        kept = place(snapshot, request, rows, len(promised) + 1).kept
        if any(_promise(snapshot, promised, row, request) for row in kept.tolist()):
            chosen.append(waiting.pod)
        else:
            hopeless.add(request)
    return chosen


def _promise(snapshot: Snapshot, promised: dict[int, Table], row: int, request: Request) -> bool:
    """Seat the pod on a copy of the row, beside those that were promised a seat there; False if it has no room."""
    ask = snapshot.ask(request)
    table = promised.get(row) or snapshot.table.copy_row(row)
    if ask is None or fits(table, 0, ask) > CONTENDED:
        return False
    node = snapshot.index.name(row)
    cards = cards_for(snapshot, table, 0, ask, soft=False)
    seat = Seat("", "", "", node, request, Phase.RESERVED, cards=cards, slices=cards.slices)
    charge_devices(table, 0, snapshot.inventories[node], seat, snapshot.ids, 1)
    promised[row] = table
    return True


def _is_refused(waiting: Waiting, room: int) -> bool:
    status = waiting.pod.status
    return waiting.nudged < room and any(
        condition.type == "PodScheduled"
        and condition.status == "False"
        and condition.reason == "Unschedulable"
        for condition in (status.conditions if status else None) or ()
    )


def _turn(waiting: Waiting) -> tuple[int, str]:
    pod = waiting.pod
    return -((pod.spec.priority if pod.spec else None) or 0), pod.metadata.creation_timestamp or ""
