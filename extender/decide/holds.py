"""Holds: a node is kept free for a job of several GPUs that has waited long, so that small jobs don't starve it.

The node is one that the job fits once GPUs of it are freed. First come those where no job as big sits, since what that
one leaves goes to the first in line as it is and a hold would add nothing; of these, the one with the fewest GPUs still
to be freed, and then with the fewest pods, since each has to end. What nobody may evict does not count as to be freed,
nor what has outlasted both the job's wait and `OUTLASTS` times the policy's `holdAfter`: it may stay for ever.

Nothing else is placed there until the job sits, or until a pod that is in its way has outlasted that too. A hold that
just gains nothing for a while stays, since the last pods of a node take the longest. When the node is free and one that
is held for a job that waits longer would do for this one too, the two change places. When the job finds room elsewhere
first, the next one takes over its hold: what the node has gained would be lost to small jobs at once (`bench line`).
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from _core import fit
from extender.cluster.request import GPU, Request
from extender.cluster.seats import Seat
from extender.cluster.snapshot import Snapshot
from extender.decide.place import fits_without
from extender.decide.room import NEVER, Room, Shape

PART = 0.025
"""Of a pool's nodes may be held at once, but one always may: beyond, small jobs pay and big ones gain nothing."""
OUTLASTS = 32
"""Times `holdAfter`: a pod that is older than that isn't counted on to leave."""
_TRIED = 32
"""Nodes looked at closely in one search."""


@dataclass(slots=True, eq=False)
class Hold:
    """The node on that row is kept free for the pod."""

    uid: str
    node: str
    row: int


def most_holds(nodes: int) -> int:
    """How many nodes of a pool of that many may be held at once."""
    return max(1, int(PART * nodes))


def is_big(request: Request) -> bool:
    return request.count(GPU) >= 2


def missing(snapshot: Snapshot, request: Request, node: str) -> int:
    """GPUs that have to be freed on the node before the request fits."""
    row = np.array([snapshot.index.get(node)], np.int32)
    return max(0, request.count(GPU) - int(_free(snapshot, row)[0]))


def node_to_hold(
    snapshot: Snapshot,
    room: Room,
    shape: Shape,
    barred: Collection[int],
    leaves: Callable[[Seat], bool],
    pinned: Callable[[str], int],
    vain: set[int],
) -> int | None:
    """The row of the best node to hold, None if there is none.

    `leaves` tells which seats may be counted on to leave, `pinned` how many GPUs of a node the others have. A search
    looks at a few nodes; `vain` are rows that earlier ones have looked at in vain, and it is empty after the last.
    """
    request = shape.request
    rows = shape.eligible.all()
    ask = snapshot.ask(request)
    if ask is None or not len(rows):
        return None
    rows = rows[~np.isin(rows, [*barred, *vain])] if barred or vain else rows
    columns, need = snapshot.columns, request.count(GPU)
    rows = rows[(columns.cpu[rows] >= request.cpu) & (columns.ram[rows] >= request.memory)]
    rows = rows[~np.isin(fit(snapshot.table, rows, ask), NEVER)]
    lacking = np.maximum(0, need - _free(snapshot, rows))
    near: list[tuple[bool, int, int, int]] = []
    for position in np.lexsort((columns.order[rows], lacking)).tolist():
        row = int(rows[position])
        node = snapshot.index.name(row)
        if int(columns.cards[row]) - pinned(node) < need or not room.allows(shape, row):
            continue
        asked = [seat.request.count(GPU) for seat in snapshot.seats_by_node.get(node, {}).values()]
        near.append((any(each >= need for each in asked), int(lacking[position]), len(asked), row))
        if len(near) == _TRIED:
            break
    for *_, row in sorted(near, key=lambda each: each[:3]):
        if holds_without(snapshot, request, snapshot.index.name(row), leaves):
            vain.clear()
            return row
    if len(near) == _TRIED:
        vain.update(row for *_, row in near)
    else:
        vain.clear()
    return None


def holds_without(snapshot: Snapshot, request: Request, node: str, leaves: Callable[[Seat], bool]) -> bool:
    """Whether the node has the GPUs, CPU and memory once all seats that may leave are gone."""
    ask = snapshot.ask(request)
    row = snapshot.index.get(node)
    if ask is None or row < 0:
        return False
    leaving = [seat for seat in snapshot.seats_by_node.get(node, {}).values() if leaves(seat)]
    columns = snapshot.columns
    cpu = int(columns.cpu[row] - columns.cpu_used[row]) + sum(seat.request.cpu for seat in leaving)
    ram = int(columns.ram[row] - columns.ram_used[row]) + sum(seat.request.memory for seat in leaving)
    return cpu >= request.cpu and ram >= request.memory and fits_without(snapshot, ask, node, leaving)


def _free(snapshot: Snapshot, rows: NDArray[np.int32]) -> NDArray[np.int64]:
    """Whole GPUs of each row that nobody has."""
    columns = snapshot.columns
    busy = ((columns.exclusive[rows] > 0) | (columns.shares[rows] > 0)).sum(axis=1)
    return np.asarray(columns.cards[rows] - busy - columns.opaque[rows], np.int64)
