"""Filter: of the nodes that the scheduler found feasible, keep the best K; if none is, say why for each.

Names left out without a reason are fine while at least one is kept, and the fewer the scheduler gets back, the less
it scores. A pod that already has a seat is sent to that node and nowhere else.
"""

import numpy as np
from numpy.typing import NDArray

from _core import FITS
from extender.cluster.request import Request
from extender.cluster.seats import Phase
from extender.cluster.snapshot import Snapshot
from extender.decide.place import Placement, place
from extender.decide.reasons import PROMISED, UNCERTAIN


def filter_nodes(
    snapshot: Snapshot,
    uid: str,
    request: Request,
    rows: NDArray[np.int32],
    keep: int,
    borrowed: bool | None = None,
) -> Placement:
    """Decide on `rows` for the pod; the answer is `kept`, or a reason per row when that is empty.

    `borrowed`: whether its work can be asked back; None where no policy says so.
    """
    seat = snapshot.seats.get(uid)
    if seat is None:
        return place(snapshot, request, rows, keep, borrowed)
    here = rows == snapshot.index.get(seat.node)
    elsewhere = PROMISED if seat.phase is Phase.CLAIMED else UNCERTAIN
    codes = np.where(here, FITS, elsewhere).astype(np.int8)
    return Placement(rows, codes, np.zeros(len(rows)), np.flatnonzero(here).astype(np.int32))
