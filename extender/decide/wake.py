"""Wake: which refused pods fit now that there is room, in the order of their turn.

The scheduler retries a pod that an extender refused when something it watches changes; when that retry comes before
kvitej has seen the same change, the pod is refused once more and nothing wakes it again for minutes. So the pods that
would be seated now are nudged, each at most once for the same room.
"""

import numpy as np

from extender.cluster.request import RequestError, request_of
from extender.cluster.snapshot import Snapshot, Waiting
from extender.decide.place import place
from extender.wire.objects import Pod


def to_nudge(snapshot: Snapshot, most: int) -> list[Pod]:
    """At most `most` pods, by priority, then age, each for a node that no other of them was given."""
    rows = np.fromiter(
        (snapshot.index.get(name) for name in snapshot.inventories), np.int32, len(snapshot.inventories)
    )
    taken: set[int] = set()
    chosen: list[Pod] = []
    hopeless: set[object] = set()
    for waiting in sorted(
        filter(lambda w: _is_refused(w, snapshot.room), snapshot.waiting.values()), key=_turn
    ):
        if len(chosen) == most:
            break
        try:
            request = request_of(waiting.pod)
        except RequestError:
            continue
        if request in hopeless or not request.devices:
            continue
        placement = place(snapshot, request, rows, len(taken) + 1)
        free = [row for row in placement.kept.tolist() if row not in taken]
        if not free:
            hopeless.add(request)
            continue
        taken.add(free[0])
        chosen.append(waiting.pod)
    return chosen


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
