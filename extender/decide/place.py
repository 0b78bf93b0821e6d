"""Where a pod could sit: snapshot + request → ranked rows, each with a reason.

The one function behind Filter, Prioritize, Bind, preemption's what-if and the waking of pods.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from _core import CLOSED, CONTENDED, FITS, LACKING, Ask, Table, best, fit, parts, seat
from extender.cluster.assignment import Cards, Slice
from extender.cluster.columns import OPEN
from extender.cluster.request import Request
from extender.cluster.seats import Seat, imagine
from extender.cluster.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Placement:
    """Rows asked about [n], a code and a score for each, and the positions of the best, best first."""

    rows: NDArray[np.int32]
    codes: NDArray[np.int8]
    scores: NDArray[np.float64]
    ranked: NDArray[np.int32]

    @property
    def kept(self) -> NDArray[np.int32]:
        """Rows of the ranked positions, best first."""
        return self.rows[self.ranked]


def place(
    snapshot: Snapshot, request: Request, rows: NDArray[np.int32], keep: int, borrowed: bool | None = None
) -> Placement:
    """Fit and score `rows` for `request`, and rank the best `keep` (> 0) of those that fit.

    `borrowed`: whether the pod's work can be asked back; None where no policy says so.

    A row that fits only if other pods' soft claims come to nothing ranks behind all others; ties go to the stable
    hash of the node's name.
    """
    judged = snapshot.judge(request, borrowed)
    if judged is None:
        codes = np.where(snapshot.table.state[rows] == OPEN, LACKING, CLOSED).astype(np.int8)
        return Placement(rows, codes, np.zeros(len(rows)), np.empty(0, np.int32))
    at = rows.astype(np.intp)  # numpy gathers by its own index type at twice the speed
    codes, scores = judged.codes[at], judged.scores[at]
    return Placement(rows, codes, scores, best(codes, scores, snapshot.table.order[at], keep))


def fits(table: Table, row: int, ask: Ask) -> int:
    """The code of one row."""
    return int(fit(table, np.array([row], np.int32), ask)[0])


def fits_without(snapshot: Snapshot, ask: Ask, node: str, leaving: Iterable[Seat]) -> bool:
    """What-if: would the pod fit on the node if these seats were gone?"""
    return fits(table_without(snapshot, node, leaving), 0, ask) <= CONTENDED


def table_without(snapshot: Snapshot, node: str, leaving: Iterable[Seat]) -> Table:
    """A copy of the node's row, as row 0, from which these seats are gone."""
    copy = snapshot.table.copy_row(snapshot.index.get(node))
    for leaver in leaving:
        if leaver.request.devices:
            imagine(copy, snapshot.inventories[node], leaver, snapshot.ids, -1)
    return copy


def cards_for(snapshot: Snapshot, table: Table, row: int, ask: Ask, *, soft: bool) -> Cards:
    """The cards that the pod would get on a row of `table` that fits, counting soft claims or not."""
    whole, shared, instances = seat(table, row, ask, snapshot.demand(), soft=soft)
    slices: tuple[Slice, ...] = ()
    if len(instances):
        names = {kind: name for name, kind in snapshot.ids.items()}
        slices = tuple(Slice(names[kind], card, start) for kind, card, start, _ in instances.tolist())
    return Cards(tuple(whole.tolist()), tuple(shared.tolist()), slices=slices)


@dataclass(frozen=True, slots=True, repr=False)
class Score:
    """GPUs; the higher, the better. `total` is what ranks nodes."""

    fragmentation: float
    mig: float
    topology: float
    shares: float

    @property
    def total(self) -> float:
        return self.fragmentation + self.mig + self.topology + self.shares

    def __repr__(self) -> str:
        return (
            f"{self.total:+.3f} = fragmentation {self.fragmentation:+.3f}, mig {self.mig:+.3f}, "
            f"topology {self.topology:+.3f}, shares {self.shares:+.3f}"
        )


@dataclass(frozen=True, slots=True)
class Expected:
    """Where the pod will probably sit, and the parts of the score that put it there."""

    node: str
    cards: Cards
    score: Score


def expect(
    snapshot: Snapshot, request: Request, placement: Placement, borrowed: bool | None = None
) -> Expected | None:
    """The best of the placement, with its cards; None when nothing fits."""
    ask = snapshot.ask(request, borrowed)
    if ask is None or not len(placement.ranked):
        return None
    best_position = int(placement.ranked[0])
    row = int(placement.rows[best_position])
    soft = int(placement.codes[best_position]) == FITS
    score = Score(*parts(snapshot.table, row, int(placement.codes[best_position]), ask, snapshot.demand()))
    return Expected(snapshot.index.name(row), cards_for(snapshot, snapshot.table, row, ask, soft=soft), score)
