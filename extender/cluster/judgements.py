"""What the kernels said of every row for an ask, kept and renewed only where a row has changed since.

Pods come in few shapes, and between two decisions few rows change: so a decision costs what changed, not the size
of the cluster. Kept for the asks used last, at 17 bytes per row and ask, until the demand is another.
"""

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from _core import Ask, Demand, Table, renew
from extender.cluster.columns import Columns

MOST_BYTES = 64 * 1024**2
_ROW_BYTES = 17


@dataclass(frozen=True, slots=True)
class Judgement:
    """For every row of the table: the code [N] and the score [N] of the ask, as of version `seen` [N] of the row."""

    ask: Ask
    demand: Demand
    table: Table
    codes: NDArray[np.int8]
    scores: NDArray[np.float64]
    seen: NDArray[np.int64]

    def holds(self, columns: Columns, demand: Demand) -> bool:
        """Whether rows that have not changed since are still judged alike: by the same tables, for the same demand."""
        return self.table is columns.table and self.demand is demand


class Judgements:
    """The judgements of the asks used last, in at most `most_bytes`; equal asks must be one object."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[int, Judgement] = OrderedDict()

    def of(self, columns: Columns, ask: Ask, demand: Demand) -> Judgement:
        """The judgement of the ask on the columns as they are now, for the pods that are to come."""
        rows = len(columns.version)
        kept = self._kept.get(id(ask))
        if kept is None or not kept.holds(columns, demand):
            never = np.full(rows, -1, np.int64)
            kept = Judgement(ask, demand, columns.table, np.zeros(rows, np.int8), np.zeros(rows), never)
            self._kept[id(ask)] = kept
            while len(self._kept) > max(1, self._most_bytes // (_ROW_BYTES * rows)):
                self._kept.popitem(last=False)
        self._kept.move_to_end(id(ask))
        renew(columns.table, columns.version, kept.seen, kept.codes, kept.scores, ask, demand)
        return kept

    def kept(self) -> list[Judgement]:
        return list(self._kept.values())
