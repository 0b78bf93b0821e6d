"""Prioritize: the order of `place` as the protocol's integers 0..10; the best node that fits always gets 10."""

import numpy as np
from numpy.typing import NDArray

from _core import grade
from extender.cluster.request import Request
from extender.cluster.snapshot import Snapshot
from extender.decide.filter import filter_nodes
from extender.decide.place import Placement


def grade_nodes(
    snapshot: Snapshot, uid: str, request: Request, rows: NDArray[np.int32], borrowed: bool | None = None
) -> tuple[Placement, NDArray[np.int8]]:
    """The placement on `rows` [n] and a grade for each [n]; a pod that has a seat gets 10 there, 0 elsewhere.

    The pod's own soft claim must be gone from the snapshot, or its best node would look taken by itself.
    """
    placement = filter_nodes(snapshot, uid, request, rows, keep=1, borrowed=borrowed)
    return placement, grade(placement.codes, placement.scores, placement.ranked)
